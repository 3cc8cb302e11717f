//! What the network thread counts itself: requests from their arrival to their end, and the times between.
//!
//! A choice is known from the moment it goes to the engine until the engine has said its last word, also when its
//! client has left before: so aborted ones are counted too, and the sums agree with the engine's.

use std::collections::HashMap;
use std::time::Instant;

use tokenrouter_engine::{ClientId, EngineRequest};
use tokenrouter_scheduler::{FailKind, FinishReason, MAX_MODELS, ModelId, Nanos, Usage};

use super::histogram::Histogram;
use super::http::Tally;

/// From a request's arrival to the first token of a choice, in seconds.
const FIRST_TOKEN: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0,
    100.0, 250.0, 600.0,
];
/// Between two tokens of a choice, in seconds.
const INTER_TOKEN: &[f64] = &[
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75,
    1.0, 2.5, 5.0, 10.0, 50.0,
];
/// Phases of a choice up to all of it, in seconds.
const WHOLE: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 120.0,
    240.0, 600.0, 1800.0,
];
/// Tokens of a prompt or an answer.
const TOKENS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0, 50000.0,
    100000.0,
];
/// Share of an answer.
const SHARE: &[f64] = &[0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0];

/// Why requests end, in the words of the `finished_reason` label.
pub(crate) const REASONS: [&str; 4] = ["stop", "length", "abort", "error"];

fn reason_index(reason: &FinishReason) -> usize {
    match reason {
        FinishReason::Eos(_) | FinishReason::StopId(_) | FinishReason::Stop => 0,
        FinishReason::Length => 1,
        FinishReason::Cancelled => 2,
        FinishReason::Failed(_) => 3,
    }
}

/// Why requests are not taken up, in the words of the `reason` label.
pub(crate) const REFUSALS: [&str; 6] =
    ["invalid", "not_found", "unsupported", "queue_full", "unavailable", "error"];

fn refusal_index(status: u16) -> usize {
    match status {
        404 => 1,
        422 => 2,
        429 => 3,
        503 => 4,
        500.. => 5,
        _ => 0,
    }
}

/// A choice that the engine works on.
struct Open {
    arrived: Instant,
    /// When its last token came.
    last: Option<Instant>,
    /// The model that starts its answer.
    entry: ModelId,
    most_tokens: u32,
    /// Tokens counted so far, by writer.
    counted: [u32; MAX_MODELS],
}

/// The counts.
pub(crate) struct Traffic {
    /// Entry models by route.
    entries: Vec<ModelId>,
    open: HashMap<ClientId, Open>,
    /// By [`REASONS`].
    pub(crate) finished: [u64; REASONS.len()],
    /// By [`REFUSALS`].
    pub(crate) refused: [u64; REFUSALS.len()],
    /// Tokens of the prompts of ended choices, and those of them that the entry model found in its cache.
    pub(crate) prompt_tokens: u64,
    pub(crate) entry_hits: u64,
    /// By model: tokens of answers, prompt tokens found in the cache, candidates dropped by the router.
    pub(crate) committed: [u64; MAX_MODELS],
    pub(crate) cached: [u64; MAX_MODELS],
    pub(crate) discarded: [u64; MAX_MODELS],
    /// Choices that failed on their way from one model to another, `[from][to]`.
    pub(crate) peer_errors: [[u64; MAX_MODELS]; MAX_MODELS],
    /// What came over HTTP.
    pub(crate) http: Tally,
    pub(crate) first_token: Histogram,
    pub(crate) inter_token: Histogram,
    pub(crate) whole: Histogram,
    /// From the queue's front door to admission, on to the first token, on to the end; and from admission to the end.
    pub(crate) queue: Histogram,
    pub(crate) prefill: Histogram,
    pub(crate) decode: Histogram,
    pub(crate) inference: Histogram,
    /// `max_tokens`, or what it was cut to.
    pub(crate) most_tokens: Histogram,
    pub(crate) prompt_len: Histogram,
    pub(crate) answer_len: Histogram,
    pub(crate) routed: Histogram,
}

impl Traffic {
    /// Nothing has come yet; `entries` are the entry models by route.
    pub(crate) fn new(entries: Vec<ModelId>) -> Self {
        Self {
            entries,
            open: HashMap::new(),
            finished: Default::default(),
            refused: Default::default(),
            prompt_tokens: 0,
            entry_hits: 0,
            committed: Default::default(),
            cached: Default::default(),
            peer_errors: Default::default(),
            http: Tally::default(),
            discarded: Default::default(),
            first_token: Histogram::new(FIRST_TOKEN),
            inter_token: Histogram::new(INTER_TOKEN),
            whole: Histogram::new(WHOLE),
            queue: Histogram::new(WHOLE),
            prefill: Histogram::new(WHOLE),
            decode: Histogram::new(WHOLE),
            inference: Histogram::new(WHOLE),
            most_tokens: Histogram::new(TOKENS),
            prompt_len: Histogram::new(TOKENS),
            answer_len: Histogram::new(TOKENS),
            routed: Histogram::new(SHARE),
        }
    }

    /// A choice of a request that arrived then goes to the engine.
    pub(crate) fn submitted(&mut self, choice: &EngineRequest, arrived: Instant) {
        let entry = self.entries.get(usize::from(choice.route.0)).copied().unwrap_or_default();
        let most_tokens = choice.max_new_tokens;
        let open = Open { arrived, last: None, entry, most_tokens, counted: [0; MAX_MODELS] };
        self.open.insert(choice.client, open);
    }

    /// A request is answered with this status instead of being taken up.
    pub(crate) fn refuse(&mut self, status: u16) {
        self.refused[refusal_index(status)] += 1;
    }

    /// The engine did not take a choice, or the choice never got there.
    pub(crate) fn forget(&mut self, client: ClientId) {
        self.open.remove(&client);
    }

    /// A token of a choice has come.
    pub(crate) fn token(&mut self, client: ClientId, now: Instant) {
        let Some(open) = self.open.get_mut(&client) else { return };
        let seconds = |since: Instant| now.saturating_duration_since(since).as_secs_f64();
        match open.last.replace(now) {
            Some(last) => self.inter_token.add(seconds(last)),
            None => self.first_token.add(seconds(open.arrived)),
        }
    }

    /// A token of a choice belongs to its answer: it came before the choice's stop string was complete.
    pub(crate) fn count(&mut self, client: ClientId, model: u8) {
        let Some(open) = self.open.get_mut(&client) else { return };
        if let Some(counted) = open.counted.get_mut(usize::from(model)) {
            *counted += 1;
            self.committed[usize::from(model)] += 1;
        }
    }

    /// Tokens of all answers so far.
    pub(crate) fn generation_tokens(&self) -> u64 {
        self.committed.iter().sum()
    }

    /// A choice has ended.
    pub(crate) fn finished(&mut self, client: ClientId, reason: &FinishReason, usage: &Usage, now: Instant) {
        let Some(open) = self.open.remove(&client) else { return };
        self.finished[reason_index(reason)] += 1;
        self.prompt_tokens += u64::from(usage.prompt_tokens);
        self.entry_hits += u64::from(usage.cached[open.entry.index()]);
        match reason {
            FinishReason::Failed(FailKind::OutOfReach { from, to }) => {
                self.peer_errors[from.index()][to.index()] += 1;
            }
            FinishReason::Failed(FailKind::ModelLost { model }) => {
                self.peer_errors[open.entry.index()][model.index()] += 1;
            }
            _ => {}
        }
        for m in 0..MAX_MODELS {
            // Those that its client did not wait for, or has not read yet: the sums are those of the accounts.
            self.committed[m] += u64::from(usage.committed[m].saturating_sub(open.counted[m]));
            self.cached[m] += u64::from(usage.cached[m]);
            self.discarded[m] += u64::from(usage.discarded[m]);
        }
        self.whole.add(now.saturating_duration_since(open.arrived).as_secs_f64());
        self.phases(usage);
        self.most_tokens.add(f64::from(open.most_tokens));
        self.prompt_len.add(f64::from(usage.prompt_tokens));
        self.answer_len.add(f64::from(usage.completion_tokens));
        if usage.completion_tokens > 0 {
            let own = usage.committed[open.entry.index()];
            let routed = usage.completion_tokens.saturating_sub(own);
            self.routed.add(f64::from(routed) / f64::from(usage.completion_tokens));
        }
    }

    /// Every choice is in every family, with nothing where it did not come that far, so that the sums add up.
    fn phases(&mut self, usage: &Usage) {
        let seconds = |nanos: Nanos| nanos as f64 * 1e-9;
        let end = usage.times.finished.unwrap_or_default();
        let admitted = usage.times.admitted.unwrap_or(end);
        let first = usage.times.first_token.unwrap_or(end);
        self.queue.add(seconds(admitted));
        self.prefill.add(seconds(first.saturating_sub(admitted)));
        self.decode.add(seconds(end.saturating_sub(first)));
        self.inference.add(seconds(end.saturating_sub(admitted)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokenrouter_scheduler::{RouteId, Times};

    fn choice(client: ClientId, route: u16) -> EngineRequest {
        EngineRequest { client, route: RouteId(route), ..EngineRequest::new(vec![1], 9) }
    }

    fn usage() -> Usage {
        let mut usage = Usage { prompt_tokens: 7, completion_tokens: 4, ..Usage::default() };
        (usage.committed[0], usage.committed[1]) = (1, 3);
        (usage.cached[0], usage.cached[1]) = (2, 5);
        usage.discarded[1] = 6;
        usage
    }

    #[test]
    fn times_run_from_the_arrival_and_from_token_to_token() {
        let mut traffic = Traffic::new(vec![ModelId(0), ModelId(1)]);
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        traffic.submitted(&choice(1, 1), start);
        traffic.token(1, at(30));
        traffic.token(1, at(36));
        traffic.token(1, at(1036));
        traffic.token(2, at(99));
        traffic.finished(1, &FinishReason::Length, &usage(), at(2000));
        let sums = [&traffic.first_token, &traffic.inter_token, &traffic.whole];
        let sums = sums.map(|h| (h.count(), (h.sum() * 1000.0).round()));
        assert_eq!(sums, [(1, 30.0), (2, 1006.0), (1, 2000.0)]);
        assert_eq!((traffic.prompt_tokens, traffic.entry_hits, traffic.discarded[1]), (7, 5, 6));
        assert_eq!(
            (traffic.routed.sum(), traffic.prompt_len.sum(), traffic.answer_len.sum()),
            (0.25, 7.0, 4.0)
        );
    }

    #[test]
    fn tokens_are_counted_once_whether_the_client_waited_or_not() {
        let mut traffic = Traffic::new(vec![ModelId(0)]);
        let now = Instant::now();
        for (client, seen) in [(1, &[0, 1, 1, 1][..]), (2, &[0, 1]), (3, &[])] {
            traffic.submitted(&choice(client, 0), now);
            seen.iter().for_each(|model| traffic.count(client, *model));
            traffic.finished(client, &FinishReason::Cancelled, &usage(), now);
            traffic.count(client, 0);
        }
        assert_eq!((traffic.committed[0], traffic.committed[1], traffic.generation_tokens()), (3, 9, 12));
    }

    #[test]
    fn the_phases_of_every_request_add_up() {
        let mut traffic = Traffic::new(vec![]);
        let now = Instant::now();
        let ends = [(None, None), (Some(2), None), (Some(2), Some(5))];
        for (client, (admitted, first_token)) in (0..).zip(ends) {
            let times = [admitted, first_token, Some(11)].map(|at| at.map(|at: Nanos| at * 1_000_000_000));
            let [admitted, first_token, finished] = times;
            traffic.submitted(&choice(client, 0), now);
            let times = Times { admitted, first_token, finished };
            traffic.finished(client, &FinishReason::Cancelled, &Usage { times, ..usage() }, now);
        }
        let sums = [&traffic.queue, &traffic.prefill, &traffic.decode, &traffic.inference];
        assert_eq!(sums.map(|h| (h.count(), h.sum())), [(3, 15.0), (3, 12.0), (3, 6.0), (3, 18.0)]);
        assert_eq!(traffic.most_tokens.sum(), 27.0);
    }

    #[test]
    fn every_end_is_counted_once_under_its_reason() {
        let mut traffic = Traffic::new(vec![]);
        let now = Instant::now();
        let failed = FinishReason::Failed(tokenrouter_scheduler::FailKind::NoProgress { drops: 1 });
        let reasons = [
            FinishReason::Eos(1),
            FinishReason::StopId(2),
            FinishReason::Stop,
            FinishReason::Length,
            FinishReason::Cancelled,
            failed,
        ];
        for (client, reason) in (0..).zip(&reasons) {
            traffic.submitted(&choice(client, 9), now);
            traffic.finished(client, reason, &usage(), now);
            traffic.finished(client, reason, &usage(), now);
        }
        assert_eq!((traffic.finished, traffic.whole.count()), ([3, 1, 1, 1], 6));
        traffic.submitted(&choice(7, 0), now);
        traffic.forget(7);
        traffic.finished(7, &FinishReason::Stop, &usage(), now);
        assert!(traffic.open.is_empty() && traffic.whole.count() == 6);
        for status in [400, 413, 404, 422, 429, 429, 503, 500] {
            traffic.refuse(status);
        }
        assert_eq!(traffic.refused, [2, 1, 1, 2, 1, 1]);
    }
}
