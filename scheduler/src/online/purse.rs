//! What a deployment may still spend on the models beside the entry.

use crate::event::Usage;
use crate::ids::ModelId;
use crate::router::Budget;

/// What a request may get beyond the deployment's share is at most this part of what others have left over.
const PART: u64 = 4;
/// No more than this many tokens are saved up, in millionths.
const MOST: u64 = 1_000_000 * 1_000_000;

/// Keeps all requests of a route together within a share, by the budgets that it gives to each.
///
/// A request gets the share itself plus a part of what earlier ones have left over; that part, times the longest
/// answer it may write, is taken out of the purse until it ends. A request within budget `b` has at every moment at
/// most `share * c + (b - share) * max_new_tokens` of its `c` tokens by others, so over all requests of the route,
/// running ones included, the tokens by others never exceed the share of the tokens.
#[derive(Clone, Copy, Debug)]
pub struct Purse {
    share: Budget,
    /// Tokens that may be written beyond the share of those to come, in millionths.
    left: u64,
}

impl Purse {
    /// An empty purse for a share.
    pub fn new(share: Budget) -> Self {
        Self { share, left: 0 }
    }

    /// The most that a request may be given now.
    pub fn offer(&self, max_new_tokens: u32) -> Budget {
        let beyond = self.left / PART / u64::from(max_new_tokens.max(1));
        Budget::from_millionths(self.share.millionths().saturating_add(beyond))
    }

    /// A request starts with this budget, at most what was offered.
    pub fn take(&mut self, budget: Budget, max_new_tokens: u32) {
        self.left = self.left.saturating_sub(self.reserved(budget, max_new_tokens));
    }

    /// A request ends that started with this budget.
    pub fn settle(&mut self, budget: Budget, max_new_tokens: u32, usage: &Usage, entry: ModelId) {
        let own = usage.committed.get(entry.index()).copied().unwrap_or(0);
        let others = u64::from(usage.completion_tokens.saturating_sub(own)) * 1_000_000;
        let earned = self.share.millionths() * u64::from(usage.completion_tokens);
        let left = self.left.saturating_add(self.reserved(budget, max_new_tokens)).saturating_add(earned);
        self.left = left.saturating_sub(others).min(MOST);
    }

    fn reserved(&self, budget: Budget, max_new_tokens: u32) -> u64 {
        budget.millionths().saturating_sub(self.share.millionths()) * u64::from(max_new_tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Random;

    /// Requests that write as the budget lets them, some greedily, some not at all, many at a time.
    #[test]
    fn all_requests_together_stay_within_the_share_at_every_token() {
        for seed in 0..40 {
            let mut random = Random::new(seed);
            let share = Budget::new(0.05 * random.range(0, 12) as f32).unwrap();
            let mut purse = Purse::new(share);
            let (mut all, mut others, mut widest) = (0u64, 0u64, share);
            let mut live: Vec<(Budget, u32, f64, Usage)> = Vec::new();
            for _ in 0..3_000 {
                if live.len() < 6 {
                    let max = random.range(1, 80) as u32;
                    let budget = purse.offer(max);
                    purse.take(budget, max);
                    widest = widest.max(budget);
                    live.push((budget, max, random.unit(), Usage::default()));
                }
                let at = random.size(0, live.len() - 1);
                let (budget, max, greed, usage) = &mut live[at];
                let wants = random.chance(*greed);
                let other = wants && budget.allows(u64::from(usage.committed[1]), usage.completion_tokens);
                usage.completion_tokens += 1;
                usage.committed[usize::from(other)] += 1;
                all += 1;
                others += u64::from(other);
                assert!(others * 1_000_000 <= share.millionths() * all, "seed {seed}: {others} of {all}");
                if usage.completion_tokens == *max || random.chance(0.02) {
                    purse.settle(*budget, *max, usage, ModelId(0));
                    live.swap_remove(at);
                }
            }
            assert!(share.millionths() == 0 || widest > share, "seed {seed}: nothing was handed on");
        }
    }
}
