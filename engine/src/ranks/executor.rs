//! Steps over ranks: the lead's device is driven here, in the rank loop; every other rank has a thread.
//!
//! A launch becomes one numbered record for all ranks that hold a part of its model, and every rank gets its records in
//! the order of the numbers. The step ends when all its parts have ended, failed or not: only then are its pages free
//! to be used again. The first part that fails gives the step its failure and ends the waits of the others.

use std::collections::VecDeque;
use std::sync::Arc;

use tokenrouter_scheduler::ModelId;

use super::device::RankDevice;
use super::record::{GraphKey, LaunchRecord, RankDone, Room};
use super::thread::{RankEvent, RankThread};
use crate::executor::{Executor, NoGraph, Notify, Ungraphed};
use crate::step::{Step, StepLimits};

/// Why a part fails whose rank is gone.
const DEAD: &str = "its thread has died";

/// A device and its number.
pub(crate) struct Rank {
    /// The device's number in the configuration.
    pub(crate) id: usize,
    /// What it runs.
    pub(crate) device: Box<dyn RankDevice>,
}

/// One model as the executor sees it.
pub(crate) struct Placed {
    /// The devices of its parts, in order; the first one samples.
    pub(crate) devices: Vec<usize>,
    /// Which graph runs a step.
    pub(crate) graph: GraphKey,
    /// Its largest step.
    pub(crate) limits: StepLimits,
}

/// Runs steps on one or more ranks.
pub struct RankExecutor {
    /// Before the threads, which are waited for: they may have to end together.
    lead: Box<dyn RankDevice>,
    /// One per rank, in ascending order; none for the lead.
    threads: Vec<Option<RankThread>>,
    /// How each rank is called in errors.
    names: Vec<String>,
    models: Vec<ModelState>,
    events: flume::Receiver<RankEvent>,
    finished: VecDeque<Box<Step>>,
    /// Models that have broken and were not named yet.
    broken: VecDeque<(ModelId, String)>,
    /// Number of the last launch.
    seq: u64,
}

struct ModelState {
    /// Places of its ranks, in the order of its parts.
    ranks: Vec<usize>,
    /// Whether another rank than the lead reads its records.
    travels: bool,
    graph: GraphKey,
    limits: StepLimits,
    /// Steps that ran uncaptured though something was captured.
    ungraphed: Ungraphed,
    spare: Option<Box<Step>>,
    flight: Option<Flight>,
    /// No further step of it can work.
    broken: bool,
}

struct Flight {
    record: Arc<LaunchRecord>,
    /// The ranks whose parts have not ended: bit `i` for rank `i`.
    waiting: u64,
    room: Room,
    failure: Option<String>,
}

impl RankExecutor {
    /// Starts the threads of all ranks but the first, which leads. `ranks` ascend by number and hold what `models` say;
    /// `wake` wakes the loop that drives this executor.
    ///
    /// # Errors
    /// When the operating system refuses a thread.
    ///
    /// # Panics
    /// When there is no rank, or a model is placed on a device that is none: both are checked before.
    pub(crate) fn start(ranks: Vec<Rank>, models: Vec<Placed>, wake: Notify) -> std::io::Result<Self> {
        let ids: Vec<usize> = ranks.iter().map(|rank| rank.id).collect();
        let names = ranks.iter().map(|rank| format!("rank {} ({})", rank.id, rank.device.name())).collect();
        // Every part of every model, and the end of every thread.
        let (events_in, events) = flume::bounded(ranks.len() * (models.len() + 1));
        let mut ranks = ranks.into_iter();
        let mut lead = ranks.next().expect("a placement has at least one rank").device;
        lead.wake_by(wake.clone());
        let mut threads = vec![None];
        for (rank, place) in ranks.zip(1..) {
            let at = (place, rank.id);
            let thread = RankThread::start(at, rank.device, models.len(), events_in.clone(), wake.clone())?;
            threads.push(Some(thread));
        }
        let place = |device: &usize| {
            ids.iter().position(|id| id == device).expect("every device of a placement is a rank")
        };
        let state = |model: Placed| {
            let ranks: Vec<usize> = model.devices.iter().map(place).collect();
            let (travels, spare) =
                (ranks.iter().any(|rank| *rank > 0), Some(Box::new(Step::new(model.limits))));
            ModelState {
                ranks,
                travels,
                graph: model.graph,
                limits: model.limits,
                ungraphed: Ungraphed::default(),
                spare,
                flight: None,
                broken: false,
            }
        };
        let models: Vec<ModelState> = models.into_iter().map(state).collect();
        let finished = VecDeque::with_capacity(models.len());
        let broken = VecDeque::with_capacity(models.len());
        Ok(Self { lead, threads, names, models, events, finished, broken, seq: 0 })
    }

    /// A part has ended.
    fn ended(&mut self, rank: usize, done: RankDone) {
        let RankDone { record, room, failure, gone } = done;
        let model = record.model();
        if gone {
            self.note_broken(model, rank, failure.as_deref().unwrap_or("it has broken"));
        }
        let Some(flight) = self.models[model.index()].flight.as_mut() else { return };
        // A part that was given up when its rank died may still report.
        if flight.record.seq != record.seq || flight.waiting >> rank & 1 == 0 {
            return;
        }
        drop(record);
        flight.waiting &= !(1 << rank);
        if room.results.capacity() > 0 {
            flight.room = room;
        }
        match failure {
            Some(why) => self.fail(model, rank, &why),
            None => self.finish_if_over(model),
        }
    }

    /// The part of `rank` has failed, and is over.
    fn fail(&mut self, model: ModelId, rank: usize, why: &str) {
        let state = &mut self.models[model.index()];
        let Some(flight) = state.flight.as_mut() else { return };
        flight.waiting &= !(1 << rank);
        if flight.failure.is_none() {
            let why: Arc<str> = format!("{}: {why}", self.names[rank]).into();
            flight.failure = Some(why.to_string());
            let waiting = flight.waiting;
            self.abort(model, waiting, &why);
        }
        self.finish_if_over(model);
    }

    /// The parts of these ranks shall end.
    fn abort(&mut self, model: ModelId, ranks: u64, why: &Arc<str>) {
        for rank in (0..self.threads.len()).filter(|rank| ranks >> rank & 1 == 1) {
            match &self.threads[rank] {
                None => self.lead.abort(model, why),
                Some(thread) => thread.abort(model, why),
            }
        }
    }

    /// No further step of the model can work, because of `rank`.
    fn note_broken(&mut self, model: ModelId, rank: usize, why: &str) {
        if !std::mem::replace(&mut self.models[model.index()].broken, true) {
            self.broken.push_back((model, format!("{}: {why}", self.names[rank])));
        }
    }

    fn finish_if_over(&mut self, model: ModelId) {
        let state = &mut self.models[model.index()];
        let Some(flight) = state.flight.take_if(|flight| flight.waiting == 0) else { return };
        let Flight { record, room, failure, .. } = flight;
        let mut step = match Arc::try_unwrap(record) {
            Ok(record) => record.into_step(),
            // A rank that died holds on to it. The rows are known to the scheduler; only the buffers are new.
            Err(record) => {
                let mut step = Box::new(Step::new(state.limits));
                step.begin(record.step.seq, model, record.step.flags, record.step.heads);
                step
            }
        };
        room.put_into(&mut step);
        step.failure = failure;
        self.finished.push_back(step);
    }

    /// The thread of `rank` is gone: so are the parts that it had.
    fn died(&mut self, rank: usize) {
        tracing::error!("{}: {DEAD}", self.names[rank]);
        if let Some(thread) = &mut self.threads[rank] {
            thread.close();
        }
        for model in (0..self.models.len()).map(|m| ModelId(m as u8)) {
            if self.models[model.index()].ranks.contains(&rank) {
                self.note_broken(model, rank, DEAD);
            }
            let flight = self.models[model.index()].flight.as_ref();
            if flight.is_some_and(|flight| flight.waiting >> rank & 1 == 1) {
                self.fail(model, rank, DEAD);
            }
        }
    }
}

impl Executor for RankExecutor {
    fn buffers(&mut self, model: ModelId) -> Box<Step> {
        let state = &mut self.models[model.index()];
        state.spare.take().expect("one step per model in flight: its buffers are here")
    }

    fn launch(&mut self, step: Box<Step>) {
        let model = step.model;
        self.seq += 1;
        let state = &mut self.models[model.index()];
        let graph = (state.graph)(&step);
        match graph {
            Ok(_) | Err(NoGraph::Off) => {}
            Err(NoGraph::Size) => state.ungraphed.size += 1,
            Err(NoGraph::Attention) => state.ungraphed.attention += 1,
            Err(NoGraph::Scores) => state.ungraphed.scores += 1,
        }
        let record = Arc::new(LaunchRecord::new(self.seq, graph.ok(), step, state.travels));
        let waiting = state.ranks.iter().fold(0, |set, rank| set | 1 << rank);
        state.flight = Some(Flight { record: record.clone(), waiting, room: Room::default(), failure: None });
        // The others first: they have to wake up.
        let mut launched = 0;
        for rank in state.ranks.iter().copied() {
            let Some(thread) = &self.threads[rank] else { continue };
            if !thread.launch(record.clone()) {
                // Nobody else begins what cannot end.
                if let Some(flight) = &mut state.flight {
                    flight.waiting = launched | 1 << rank;
                }
                drop(record);
                self.note_broken(model, rank, DEAD);
                self.fail(model, rank, DEAD);
                return;
            }
            launched |= 1 << rank;
        }
        if waiting & 1 == 1 {
            self.lead.launch(record);
        }
    }

    fn poll(&mut self) -> Option<Box<Step>> {
        while let Some(done) = self.lead.poll() {
            self.ended(0, done);
        }
        while let Ok(event) = self.events.try_recv() {
            match event {
                RankEvent::Done(rank, done) => self.ended(rank, done),
                RankEvent::Dead(rank) => self.died(rank),
            }
        }
        self.finished.pop_front()
    }

    fn recycle(&mut self, step: Box<Step>) {
        let model = step.model;
        self.models[model.index()].spare = Some(step);
    }

    fn ungraphed(&self, model: ModelId) -> Ungraphed {
        self.models[model.index()].ungraphed
    }

    fn broken(&mut self) -> Option<(ModelId, String)> {
        self.broken.pop_front()
    }

    fn abandon(&mut self, model: ModelId, why: &str) {
        let state = &mut self.models[model.index()];
        // A step of one part waits for nobody, and on a GPU an abort is for good.
        let Some(flight) = state.flight.as_mut().filter(|_| state.ranks.len() > 1) else { return };
        flight.failure.get_or_insert_with(|| why.to_owned());
        let waiting = flight.waiting;
        self.abort(model, waiting, &why.into());
    }

    fn must_poll(&self) -> bool {
        let on_lead = |state: &ModelState| state.flight.as_ref().is_some_and(|f| f.waiting & 1 == 1);
        self.models.iter().any(on_lead) && self.lead.polled()
    }
}

impl Drop for RankExecutor {
    fn drop(&mut self) {
        // All at once, since ranks of one model end together.
        self.threads.iter_mut().flatten().for_each(RankThread::close);
    }
}
