//! One GPU as a rank: it launches the steps of the shards that it holds and asks their events for the end.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokenrouter_scheduler::ModelId;

use super::context::RankContext;
use super::model::CudaModel;
use crate::ranks::{LaunchRecord, RankDevice, RankDone, Room};

/// How long a step of several ranks may take before the others are thought dead.
const COLLECTIVE_DEADLINE: Duration = Duration::from_secs(60);
/// How long an aborted step may take to leave the device.
const ABORT_DEADLINE: Duration = Duration::from_secs(10);

/// A shard of a model on this device.
pub(crate) struct Held {
    /// The shard.
    pub(crate) model: CudaModel,
    /// The collective group of its model: steps of a group run one after the other on every rank.
    pub(crate) group: Option<usize>,
}

struct Place {
    held: Held,
    flight: Option<Flight>,
    /// Set when no further step can work: why.
    broken: Option<String>,
}

struct Flight {
    record: Arc<LaunchRecord>,
    deadline: Option<Instant>,
    /// Another rank has failed: the step ends as failed whatever the device says.
    aborted: Option<String>,
}

/// A GPU with its shards.
pub(crate) struct CudaRank {
    ordinal: usize,
    // Before the context: what lives on the device goes first.
    places: Vec<Option<Place>>,
    /// The model that ran last in each collective group.
    last: Vec<Option<usize>>,
    /// Parts that ended without reaching the device.
    refused: VecDeque<RankDone>,
    context: Arc<RankContext>,
}

impl CudaRank {
    /// A rank on device `ordinal`; `held` has one entry per model of the process, `None` where it holds no part.
    pub(crate) fn new(ordinal: usize, context: Arc<RankContext>, held: Vec<Option<Held>>) -> Self {
        let groups = held.iter().flatten().filter_map(|h| h.group).max().map_or(0, |g| g + 1);
        let place = |held: Option<Held>| held.map(|held| Place { held, flight: None, broken: None });
        let places = held.into_iter().map(place).collect();
        Self { ordinal, places, last: vec![None; groups], refused: VecDeque::new(), context }
    }

    /// Queues the step after the last one of its collective group on this device.
    fn start(&mut self, index: usize, record: &Arc<LaunchRecord>) -> Result<(), String> {
        let Some(mut place) = self.places.get_mut(index).and_then(Option::take) else {
            return Err(format!("holds no part of model {index}"));
        };
        let outcome = match (&place.broken, &place.flight) {
            (Some(why), _) => Err(why.clone()),
            (None, Some(_)) => Err("has a step of this model in flight already".to_owned()),
            (None, None) => self.queue(index, &mut place, record),
        };
        self.places[index] = Some(place);
        outcome
    }

    fn queue(&mut self, index: usize, place: &mut Place, record: &Arc<LaunchRecord>) -> Result<(), String> {
        let before = place.held.group.and_then(|g| self.last[g].replace(index)).filter(|m| *m != index);
        let before = before.and_then(|m| self.places[m].as_ref()).map(|p| p.held.model.event());
        if let Err(error) = place.held.model.launch(record, before) {
            let why = error.to_string();
            // An error that the driver repeats when asked for something else stays for good.
            if place.held.model.finished().is_err() {
                place.broken = Some(why.clone());
            }
            return Err(why);
        }
        let deadline = place.held.model.shard().is_cut().then(|| Instant::now() + COLLECTIVE_DEADLINE);
        place.flight = Some(Flight { record: record.clone(), deadline, aborted: None });
        Ok(())
    }
}

impl Place {
    /// The end of the step in flight, if it has ended.
    fn poll(&mut self) -> Option<RankDone> {
        let flight = self.flight.as_mut()?;
        let failure = match self.held.model.finished() {
            Ok(true) => flight.aborted.clone(),
            Ok(false) => {
                let over = flight.deadline.filter(|d| Instant::now() >= *d)?;
                match flight.aborted.clone() {
                    // Not even the abort has ended it: its pages and buffers stay with it, and so does the model.
                    Some(why) => Some(why),
                    None => {
                        let waited = COLLECTIVE_DEADLINE.as_secs();
                        let why = format!("waited {waited} s for the other ranks of the model");
                        flight.aborted = Some(why.clone());
                        flight.deadline = Some(over + ABORT_DEADLINE);
                        self.broken = Some(why);
                        self.held.model.abort();
                        return None;
                    }
                }
            }
            Err(error) => {
                let why = flight.aborted.clone().unwrap_or_else(|| error.to_string());
                // An error that the driver reports after the launch stays for good.
                self.broken.get_or_insert_with(|| why.clone());
                Some(why)
            }
        };
        let record = self.flight.take()?.record;
        let mut room = Room::default();
        if failure.is_none() && self.held.model.shard().samples() {
            room = record.take_room();
            self.held.model.results(&record.step, &mut room);
        }
        Some(RankDone { record, room, failure, gone: self.broken.is_some() })
    }
}

impl RankDevice for CudaRank {
    fn launch(&mut self, record: Arc<LaunchRecord>) {
        let index = record.model().index();
        if let Err(why) = self.start(index, &record) {
            let gone = self.places.get(index).and_then(Option::as_ref).is_none_or(|p| p.broken.is_some());
            self.refused.push_back(RankDone { gone, ..RankDone::failed(record, why) });
        }
    }

    fn poll(&mut self) -> Option<RankDone> {
        self.refused.pop_front().or_else(|| self.places.iter_mut().flatten().find_map(Place::poll))
    }

    fn abort(&mut self, model: ModelId, why: &str) {
        let Some(place) = self.places.get_mut(model.index()).and_then(Option::as_mut) else { return };
        // A model of several ranks cannot go on: its communicator ends with the abort.
        if place.broken.is_none() {
            place.broken = Some(why.to_owned());
            place.held.model.abort();
        }
        if let Some(flight) = &mut place.flight {
            flight.aborted.get_or_insert_with(|| why.to_owned());
            flight.deadline = Some(Instant::now() + ABORT_DEADLINE);
        }
    }

    fn polled(&self) -> bool {
        true
    }

    fn name(&self) -> String {
        format!("CUDA device {} ({})", self.ordinal, self.context.device.name())
    }
}
