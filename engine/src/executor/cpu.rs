//! The CPU as a rank: one thread per model, each with its own worker group.
//!
//! There may be several such ranks in a process, so that models of several parts run as they do on GPUs; their parts meet
//! at an in-process exchange (`comm.rs`).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use tokenrouter_scheduler::ModelId;

use super::step::{Scratch, run_step};
use super::{Notify, RankExecutor};
use crate::affinity;
use crate::comm::Stop;
use crate::model::Model;
use crate::ranks::{LaunchRecord, Placed, Rank, RankDevice, RankDone, Room};
use crate::step::StepLimits;

/// A model for the CPU: whole, or its parts in order.
pub struct CpuModel {
    /// The ranks and what each holds.
    pub parts: Vec<(usize, Model)>,
    /// The largest step.
    pub limits: StepLimits,
}

impl RankExecutor {
    /// An executor on CPU ranks, one for every number that a part names; the index of a model is its `ModelId`. `wake`
    /// wakes the loop that drives it.
    ///
    /// # Errors
    /// When the operating system refuses a thread.
    ///
    /// # Panics
    /// When there is no model, or one without parts.
    pub fn cpu(models: Vec<CpuModel>, wake: Notify) -> std::io::Result<Self> {
        let placed = |model: &CpuModel| Placed {
            devices: model.parts.iter().map(|(rank, _)| *rank).collect(),
            graph: Box::new(|_| Err(super::NoGraph::Off)),
            limits: model.limits,
        };
        let placed = models.iter().map(placed).collect();
        Self::start(CpuRank::all(models)?, placed, wake)
    }
}

/// One CPU rank with its parts of models.
pub(crate) struct CpuRank {
    id: usize,
    /// One per model, `None` where it holds no part.
    lanes: Vec<Option<Lane>>,
    ended: flume::Receiver<RankDone>,
    ended_in: flume::Sender<RankDone>,
    wake: Arc<OnceLock<Notify>>,
}

struct Lane {
    /// Taken only by `drop`.
    records: Option<flume::Sender<Arc<LaunchRecord>>>,
    thread: Option<JoinHandle<()>>,
    /// Ends the waits for the other parts.
    stop: Option<Stop>,
    /// The record that runs.
    running: Option<u64>,
}

impl CpuRank {
    /// The ranks that `models` name, in ascending order, their threads started.
    pub(crate) fn all(models: Vec<CpuModel>) -> std::io::Result<Vec<Rank>> {
        let mut ids: Vec<usize> = models.iter().flat_map(|m| m.parts.iter().map(|(rank, _)| *rank)).collect();
        ids.sort_unstable();
        ids.dedup();
        let mut ranks: Vec<Self> = ids.into_iter().map(|id| Self::new(id, models.len())).collect();
        for (index, model) in models.into_iter().enumerate() {
            for (id, part) in model.parts {
                if let Some(rank) = ranks.iter_mut().find(|rank| rank.id == id) {
                    rank.hold(index, part)?;
                }
            }
        }
        Ok(ranks.into_iter().map(|rank| Rank { id: rank.id, device: Box::new(rank) }).collect())
    }

    fn new(id: usize, models: usize) -> Self {
        // Room for every model's one step twice over: sending never blocks.
        let (ended_in, ended) = flume::bounded(models.max(1) * 2);
        let lanes = (0..models).map(|_| None).collect();
        Self { id, lanes, ended, ended_in, wake: Arc::default() }
    }

    /// Starts the thread of a model's part.
    fn hold(&mut self, index: usize, model: Model) -> std::io::Result<()> {
        let (records, inbox) = flume::bounded::<Arc<LaunchRecord>>(1);
        let (ended, wake, stop) = (self.ended_in.clone(), self.wake.clone(), model.stop());
        let thread = std::thread::Builder::new()
            .name(format!("model-{index}"))
            .spawn(move || run_lane(model, &inbox, &ended, &wake))?;
        self.lanes[index] = Some(Lane { records: Some(records), thread: Some(thread), stop, running: None });
        Ok(())
    }

    fn refuse(&self, record: Arc<LaunchRecord>, why: String) {
        let _ = self.ended_in.send(RankDone { gone: true, ..RankDone::failed(record, why) });
        if let Some(wake) = self.wake.get() {
            wake();
        }
    }
}

impl RankDevice for CpuRank {
    fn launch(&mut self, record: Arc<LaunchRecord>) {
        let model = record.model();
        let Some(lane) = self.lanes.get_mut(model.index()).and_then(Option::as_mut) else {
            return self.refuse(record, format!("holds no part of {model}"));
        };
        let Some(records) = &lane.records else { return };
        lane.running = Some(record.seq);
        if let Err(error) = records.send(record) {
            // The thread is gone: only a panic outside `catch_unwind` can do that.
            self.refuse(error.into_inner(), format!("{model} has no thread any more"));
        }
    }

    fn poll(&mut self) -> Option<RankDone> {
        let done = self.ended.try_recv().ok()?;
        if let Some(Some(lane)) = self.lanes.get_mut(done.record.model().index()) {
            lane.running = None;
        }
        Some(done)
    }

    fn abort(&mut self, model: ModelId, _why: &str) {
        let Some(Some(lane)) = self.lanes.get(model.index()) else { return };
        if let (Some(stop), Some(step)) = (&lane.stop, lane.running) {
            stop.step(step);
        }
    }

    fn polled(&self) -> bool {
        false
    }

    fn name(&self) -> String {
        format!("CPU rank {}", self.id)
    }

    fn wake_by(&mut self, notify: Notify) {
        // Said once; a second one would be a fault of ours, and the first stays.
        let _ = self.wake.set(notify);
    }
}

impl Drop for CpuRank {
    fn drop(&mut self) {
        for lane in self.lanes.iter_mut().flatten() {
            lane.records = None;
            // Without this part no step of the model can end: nobody shall wait for it.
            if let Some(stop) = &lane.stop {
                stop.close();
            }
        }
        for lane in self.lanes.iter_mut().flatten() {
            if let Some(thread) = lane.thread.take() {
                let _ = thread.join();
            }
        }
    }
}

fn run_lane(
    mut model: Model,
    inbox: &flume::Receiver<Arc<LaunchRecord>>,
    ended: &flume::Sender<RankDone>,
    wake: &OnceLock<Notify>,
) {
    if let Err(error) = affinity::pin(model.cores()) {
        // The cores were there when its worker group was started on them; elsewhere the steps are right, too.
        tracing::warn!("the thread of a model cannot be bound to its cores: {error}");
    }
    let mut scratch = Scratch::new(&model);
    while let Ok(record) = inbox.recv() {
        let mut room = if model.samples() { record.take_room() } else { Room::default() };
        // A panic is a bug of ours. It must not take the process: the rows of this step fail by name, and
        // the buffers hold nothing that the next step reads.
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            run_step(&mut model, &mut scratch, record.seq, &record.step, &mut room)
        }));
        let failure = match outcome {
            Ok(Ok(())) => None,
            Ok(Err(stopped)) => Some(stopped.to_string()),
            Err(_) => Some(format!("the step of {} panicked", record.model())),
        };
        if ended.send(RankDone { record, room, failure, gone: false }).is_err() {
            return;
        }
        if let Some(wake) = wake.get() {
            wake();
        }
    }
}
