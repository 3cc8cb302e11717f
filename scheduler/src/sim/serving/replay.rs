//! A router that repeats recorded decisions.

use crate::ids::{ModelId, ModelSet};
use crate::router::{Payload, ReceiveRow, RouteRow, Router, SignalSet, StepView, Verdict, Visit};

/// Request `choice` (its number in the trace) goes after its k-th step where the trace says; past the end of its
/// record it stays. An edge keeps the candidate unless it is said to drop it.
#[derive(Clone, Debug)]
pub struct ReplayRouter {
    destinations: Vec<Vec<u8>>,
    entry: ModelId,
    models: usize,
    keep: Vec<Vec<bool>>,
}

impl ReplayRouter {
    /// Repeats `destinations[choice]`, which must name models below `models`. `keep[i][j]`: whether a candidate of
    /// `i` is kept when the request goes on to `j`; what is absent is kept.
    pub fn new(destinations: Vec<Vec<u8>>, entry: ModelId, models: usize, keep: Vec<Vec<bool>>) -> Self {
        Self { destinations, entry, models, keep }
    }

    /// How many steps the request had before this one: those before the visit travel with it, and in a visit every
    /// step commits one token.
    fn step(row: &RouteRow) -> u32 {
        let [a, b, c, d, ..] = row.visit.scratch;
        u32::from_le_bytes([a, b, c, d]) + row.visit.committed
    }
}

impl Router for ReplayRouter {
    fn name(&self) -> &str {
        "replay"
    }

    fn signals(&self) -> SignalSet {
        SignalSet::NONE
    }

    fn entry(&self) -> ModelId {
        self.entry
    }

    fn reach(&self) -> ModelSet {
        ModelSet::first(self.models)
    }

    fn route(&self, step: &StepView<'_>, to: &mut [ModelId]) {
        for (row, to) in step.rows.iter().zip(to) {
            let recorded = self.destinations.get(row.choice as usize);
            *to = match recorded.and_then(|r| r.get(Self::step(row) as usize)) {
                Some(&model) => ModelId(model),
                None => row.model,
            };
        }
    }

    fn send(&self, row: &RouteRow, to: ModelId, payload: &mut Payload) -> Verdict {
        payload.0[..4].copy_from_slice(&(Self::step(row) + 1).to_le_bytes());
        super::super::matrix::verdict(&self.keep, row.model, to)
    }

    fn receive(&self, _row: &ReceiveRow, _from: ModelId, payload: &Payload, visit: &mut Visit) {
        visit.scratch[..4].copy_from_slice(&payload.0[..4]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NewRequest;
    use crate::sim::reference;

    /// R2R: at 1 the candidate of model 0 is dropped, model 1 writes one token.
    #[test]
    fn a_trace_is_followed_step_by_step() {
        let keep = vec![vec![true, false], vec![true, true]];
        let router = ReplayRouter::new(vec![vec![], vec![0, 1, 0, 0, 1, 1, 0]], ModelId(0), 2, keep);
        let writers = |choice| {
            let request = NewRequest { prompt: vec![1], max_new_tokens: 8, choice, ..NewRequest::default() };
            let stream = reference(&request, &router, &[]);
            stream.writers.iter().map(|m| m.0).collect::<Vec<_>>()
        };
        assert_eq!(writers(0), [0; 8]);
        // Steps: 0 stays, 0 is dropped, 1 returns, 0 stays, 0 is dropped, 1 stays, 1 returns, then the record ends.
        assert_eq!(writers(1), [0, 1, 0, 1, 1, 0, 0, 0]);
    }
}
