//! What travels between the lead rank and the others: launch records one way, finished parts the other.

use std::sync::{Arc, Mutex, PoisonError};

use tokenrouter_scheduler::{ModelId, RowResult};

use super::checksum;
use crate::executor::NoGraph;
use crate::scores::Scores;
use crate::step::Step;

/// Which captured graph runs a step: its token bucket, or why it runs uncaptured. A pure function of the step, so that
/// every rank would choose alike; the lead chooses once and the record carries it.
pub(crate) type GraphKey = Box<dyn Fn(&Step) -> Result<u32, NoGraph> + Send>;

/// One step for every rank that holds a part of its model.
#[derive(Debug)]
pub(crate) struct LaunchRecord {
    /// Number among all launches of the process, ascending on every rank.
    pub(crate) seq: u64,
    /// The token bucket of the graph, `None` to run uncaptured.
    pub(crate) graph: Option<u32>,
    /// Over everything that decides what is computed; a rank refuses a record that does not match.
    pub(crate) checksum: u64,
    /// The input. `results` and `failure` are filled by the lead when all parts are done.
    pub(crate) step: Box<Step>,
    /// The buffers of the results, which the rank that samples takes and sends back.
    room: Mutex<Room>,
}

impl LaunchRecord {
    /// The record of a launch. `travels` says that another rank than the lead reads it; otherwise there is nobody to check a
    /// sum, and none is made.
    pub(crate) fn new(seq: u64, graph: Option<u32>, mut step: Box<Step>, travels: bool) -> Self {
        let room = Mutex::new(Room {
            results: std::mem::take(&mut step.results),
            scores: std::mem::take(&mut step.scores),
        });
        let mut record = Self { seq, graph, checksum: 0, step, room };
        if travels {
            record.checksum = checksum::of(&record);
        }
        record
    }

    /// The model that runs.
    pub(crate) fn model(&self) -> ModelId {
        self.step.model
    }

    /// Whether the record is what its checksum says.
    pub(crate) fn is_intact(&self) -> bool {
        self.checksum == checksum::of(self)
    }

    /// Empty buffers for the results of the rank that samples, with room for all rows.
    pub(crate) fn take_room(&self) -> Room {
        std::mem::take(&mut *self.room.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The step, with the buffers that nobody took.
    pub(super) fn into_step(mut self) -> Box<Step> {
        let room = self.take_room();
        room.put_into(&mut self.step);
        self.step
    }
}

/// What the rank that samples fills: the results of a step.
#[derive(Debug, Default)]
pub(crate) struct Room {
    /// One per row.
    pub(crate) results: Vec<RowResult>,
    /// What rows ask for beside.
    pub(crate) scores: Scores,
}

impl Room {
    /// Gives a step what it is, where it is something: buffers that nobody has filled stay where they are.
    pub(super) fn put_into(self, step: &mut Step) {
        if self.results.capacity() > 0 {
            step.results = self.results;
        }
        if !self.scores.is_unused() {
            step.scores = self.scores;
        }
    }
}

/// A rank's part of a step has ended.
#[derive(Debug)]
pub(crate) struct RankDone {
    /// The record it belongs to.
    pub(crate) record: Arc<LaunchRecord>,
    /// The results from the rank that samples, nothing from the others.
    pub(crate) room: Room,
    /// Why it failed, if it did.
    pub(crate) failure: Option<String>,
    /// No later step of the model can work on this rank.
    pub(crate) gone: bool,
}

impl RankDone {
    /// A part that failed before it had results.
    pub(crate) fn failed(record: Arc<LaunchRecord>, why: String) -> Self {
        Self { record, room: Room::default(), failure: Some(why), gone: false }
    }
}

#[cfg(test)]
mod tests {
    use tokenrouter_kernels::signals::SignalFlags;
    use tokenrouter_scheduler::PageId;

    use super::*;
    use crate::step::StepLimits;

    fn record(change: impl Fn(&mut Vec<u32>, &mut Vec<PageId>)) -> LaunchRecord {
        let mut step = Box::new(Step::new(StepLimits { rows: 2, tokens: 40, context_len: 64 }));
        step.begin(7, ModelId(1), SignalFlags::default(), 0);
        let (mut tokens, mut pages) = ((0..33).collect(), vec![PageId(4), PageId(2), PageId(9)]);
        change(&mut tokens, &mut pages);
        step.push_row(&tokens, 10..tokens.len(), &pages, None);
        step.push_row(&tokens, 3..4, &pages, None);
        LaunchRecord::new(12, Some(32), step, true)
    }

    #[test]
    fn every_input_counts_in_the_checksum() {
        let good = record(|_, _| {});
        assert!(good.is_intact());
        assert_eq!(good.checksum, record(|_, _| {}).checksum);
        let others = [
            record(|tokens, _| tokens[12] += 1),
            record(|tokens, _| tokens.swap(12, 13)),
            record(|tokens, _| tokens.truncate(32)),
            record(|_, pages| pages[2] = PageId(3)),
            record(|_, pages| pages.swap(0, 1)),
        ];
        for (i, other) in others.iter().enumerate() {
            assert!(other.is_intact() && other.checksum != good.checksum, "{i}");
        }
        let changes: [fn(&mut LaunchRecord); 4] =
            [|r| r.seq += 1, |r| r.graph = None, |r| r.step.model = ModelId(0), |r| r.step.heads = 1];
        for change in changes {
            let mut changed = record(|_, _| {});
            change(&mut changed);
            assert!(!changed.is_intact());
        }
    }

    #[test]
    fn the_room_for_results_travels_and_comes_back() {
        let record = record(|_, _| {});
        let room = record.take_room();
        assert!(room.results.is_empty() && room.results.capacity() >= 2);
        assert_eq!(record.take_room().results.capacity(), 0, "it was taken");
        assert_eq!(record.into_step().results.capacity(), 0);
    }
}
