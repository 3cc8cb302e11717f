//! The launch rules that a search tries: families with whole-number parameters, and where to start in each.

use super::setting::Setting;
use super::thresholds::closed_form;
use crate::ids::{MAX_MODELS, ModelId};
use crate::policy::{CountTable, Policy, Thresholds};

/// Parameters of a family: one threshold per model, then H for [`Family::Hold`].
pub(super) type Point = [u32; MAX_MODELS + 1];

/// Rules that differ in numbers alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// `threshold+hold(B)` and (B, H).
    Hold,
    /// One model at a time.
    Exclusive,
}

/// Where the families stand for one setting and N.
pub(super) struct Space {
    models: usize,
    requests: u32,
    /// The model with the shortest step, as the rules see it.
    base: usize,
    /// B per model by the closed form.
    closed: Point,
    /// K per model: each peer's share of the requests that are with peers.
    exclusive: Point,
}

impl Space {
    pub(super) fn new(setting: &Setting, requests: usize) -> Self {
        let models = setting.models();
        let step = |i: usize, rows: usize| setting.latency[i].at(rows.clamp(1, setting.max_batch[i])) as f64;
        let base = (0..models).min_by_key(|&i| (setting.latency[i].at(1), i)).unwrap_or(0);
        let n = requests as u32;
        let visits = setting.visits();
        let peers: f64 = (0..models).filter(|&i| i != base).map(|i| visits[i]).sum();
        let (mut closed, mut exclusive) = ([1; MAX_MODELS + 1], [1; MAX_MODELS + 1]);
        for i in (0..models).filter(|&i| i != base) {
            let half = (requests / 2).max(1);
            closed[i] = closed_form(setting.routing[base][i], step(base, half), step(i, half), n);
            // In the study K* is about 0.7 N over all peers.
            let share = if peers > 0.0 { visits[i] / peers } else { 0.0 };
            exclusive[i] = ((0.7 * share * f64::from(n)).round() as u32).clamp(1, n);
        }
        Self { models, requests: n, base, closed, exclusive }
    }

    /// Where to start a climb.
    pub(super) fn start(&self, family: Family) -> Point {
        match family {
            Family::Hold => self.closed,
            Family::Exclusive => self.exclusive,
        }
    }

    /// The coordinates that a climb moves in, the most telling first: the peers' thresholds, H, the base's threshold.
    pub(super) fn coordinates(&self, family: Family) -> Vec<usize> {
        let peers = (0..self.models).filter(|&i| i != self.base);
        match family {
            Family::Hold => peers.chain([MAX_MODELS, self.base]).collect(),
            // The base of the exclusive rule has no threshold.
            Family::Exclusive => peers.collect(),
        }
    }

    /// The point `step` up or down in one coordinate; none at the end of the range. Thresholds under which all could
    /// wait stay out: there the rule for "nothing would run" decides, not they.
    pub(super) fn moved(&self, at: Point, coordinate: usize, up: bool, step: u32) -> Option<Point> {
        let mut next = at;
        let to = if up { at[coordinate] + step } else { at[coordinate].saturating_sub(step) };
        next[coordinate] = to.clamp(1, self.requests);
        let waiting: u64 = next[..self.models].iter().map(|&b| u64::from(b) - 1).sum();
        (next != at && waiting < u64::from(self.requests)).then_some(next)
    }

    /// The same thresholds with another H.
    pub(super) fn beside(&self, mut at: Point, h: u32) -> Point {
        at[MAX_MODELS] = h.clamp(1, self.requests);
        at
    }

    /// The rule at a point.
    pub(super) fn policy(&self, family: Family, at: Point) -> Policy {
        let thresholds = Thresholds::constants(&at[..self.models]);
        match family {
            Family::Hold => Policy::Hold { thresholds, beside: CountTable::constant(at[MAX_MODELS]) },
            Family::Exclusive => Policy::Exclusive(thresholds),
        }
    }
}

/// The rule for `to` requests that corresponds to one for `from`: numbers of requests in proportion, rounded up or
/// down.
pub(super) fn scaled(policy: &Policy, models: usize, from: usize, to: usize, up: bool) -> Policy {
    // One is no wait at all, whatever the number of requests.
    let number = |value: usize| match value {
        0 | 1 => 1,
        _ => ((value * to + if up { from.saturating_sub(1) } else { 0 }) / from.max(1)).max(1) as u32,
    };
    let all = |t: &Thresholds| {
        let values: Vec<u32> = (0..models).map(|i| number(t.at(ModelId(i as u8), from))).collect();
        Thresholds::constants(&values)
    };
    match policy {
        Policy::Exclusive(k) => Policy::Exclusive(all(k)),
        Policy::Threshold(b) => Policy::Threshold(all(b)),
        Policy::Hold { thresholds, beside } => {
            let beside = CountTable::constant(number(beside.at(from)));
            Policy::Hold { thresholds: all(thresholds), beside }
        }
        Policy::StepSync | Policy::Eager | Policy::Lookahead { .. } => policy.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_carried_over_in_proportion() {
        let exclusive = |k: u32| Policy::Exclusive(Thresholds::constants(&[1, k]));
        assert_eq!(scaled(&exclusive(6), 2, 8, 12, false), exclusive(9));
        assert_eq!(scaled(&exclusive(6), 2, 8, 11, false), exclusive(8));
        assert_eq!(scaled(&exclusive(6), 2, 8, 11, true), exclusive(9));
        assert_eq!(scaled(&exclusive(1), 2, 8, 64, true), exclusive(1), "no wait stays no wait");
        assert_eq!(scaled(&exclusive(6), 2, 8, 1, false), exclusive(1));
        let hold = |b: u32, h: u32| Policy::Hold {
            thresholds: Thresholds::constants(&[1, b]),
            beside: CountTable::constant(h),
        };
        assert_eq!(scaled(&hold(4, 2), 2, 8, 16, false), hold(8, 4));
        assert_eq!(scaled(&Policy::Eager, 2, 8, 16, true), Policy::Eager);
    }
}
