//! The exact chain at batch-completion epochs (D.2.1, D.2.2): its reachable states and transitions.

use super::error::PlanError;
use super::outcomes::OutcomeCache;
use super::rule::{LaunchRule, Launcher, Loads};
use super::states::StateTable;
use super::system::System;

/// Transitions allowed per allowed state: what bounds the memory together with the limit on states.
const EDGES_PER_STATE: usize = 64;

/// The reachable chain of a system under a launch rule.
///
/// Memory: 12 bytes per model and 8 to 16 bytes of index per state, 12 bytes per transition; solving doubles the
/// transitions. The chain of three models (20, 40, 93 quanta) and six requests has 403,283 states and 2.3 million
/// transitions: about 60 MB.
#[derive(Clone, Debug)]
pub struct Chain<'a> {
    system: &'a System,
    states: StateTable,
    /// Transitions of state s are `row[s]..row[s + 1]`.
    row: Vec<usize>,
    to: Vec<u32>,
    probability: Vec<f64>,
}

impl<'a> Chain<'a> {
    /// Finds every state that can be reached from "all requests wait at the entry model", breadth first, and the
    /// transitions between them. At one epoch all models whose batch ends route first, then launches are decided.
    ///
    /// # Errors
    /// A rule that does not fit the system, or more than `state_limit` states (or 64 times as many transitions).
    pub fn new(system: &'a System, rule: &LaunchRule, state_limit: usize) -> Result<Self, PlanError> {
        let launcher = Launcher::new(system, rule)?;
        let models = system.models();
        let state_limit = state_limit.min(u32::MAX as usize - 1);
        let mut outcomes = OutcomeCache::new(system, state_limit)?;
        let mut chain = Self {
            system,
            states: StateTable::new(3 * models),
            row: vec![0],
            to: Vec::new(),
            probability: Vec::new(),
        };
        let mut loads = Loads { queue: vec![0; models], batch: vec![0; models], left: vec![0; models] };
        loads.queue[system.entry()] = system.requests();
        launcher.launch(&mut loads);
        let mut packed = vec![0; 3 * models];
        chain.intern(&loads, &mut packed);

        let mut finished = vec![0; models];
        let mut before = loads.clone();
        let mut from = 0;
        while from < chain.states.len() {
            chain.finish_batches(from, &mut before, &mut finished);
            let outcomes = outcomes.get(&finished);
            for (arrivals, probability) in outcomes.iter() {
                loads.batch.copy_from_slice(&before.batch);
                loads.left.copy_from_slice(&before.left);
                for (queue, (waiting, new)) in loads.queue.iter_mut().zip(before.queue.iter().zip(arrivals)) {
                    *queue = waiting + new;
                }
                launcher.launch(&mut loads);
                let to = chain.intern(&loads, &mut packed);
                chain.to.push(to);
                chain.probability.push(probability);
            }
            chain.row.push(chain.to.len());
            let edges_left = chain.to.len() <= state_limit.saturating_mul(EDGES_PER_STATE);
            if chain.states.len() > state_limit || !edges_left {
                return Err(PlanError::TooManyStates { limit: state_limit });
            }
            from += 1;
        }
        Ok(chain)
    }

    /// Reads state `from` at its next epoch: time has passed, the finished batches are taken out.
    fn finish_batches(&self, from: usize, before: &mut Loads, finished: &mut [u32]) {
        let tau = self.holding(from);
        for (i, cell) in self.states.state(from).chunks_exact(3).enumerate() {
            let (batch, left) = (cell[1], cell[2]);
            let ends = batch > 0 && left == tau;
            finished[i] = if ends { batch } else { 0 };
            before.queue[i] = cell[0];
            before.batch[i] = if ends { 0 } else { batch };
            before.left[i] = left.saturating_sub(tau);
        }
    }

    fn intern(&mut self, loads: &Loads, packed: &mut [u32]) -> u32 {
        for (i, cell) in packed.chunks_exact_mut(3).enumerate() {
            cell.copy_from_slice(&[loads.queue[i], loads.batch[i], loads.left[i]]);
        }
        self.states.intern(packed)
    }

    /// The system that the chain belongs to.
    pub fn system(&self) -> &'a System {
        self.system
    }

    /// Reachable states; state 0 is the start.
    pub fn states(&self) -> usize {
        self.states.len()
    }

    /// Transitions (of different targets).
    pub fn transitions(&self) -> usize {
        self.to.len()
    }

    /// State `index` as `k_0, b_0, r_0, k_1, ...`: waiting, running, residual in quanta, after launching (Eq. 4).
    pub fn state(&self, index: usize) -> &[u32] {
        self.states.state(index)
    }

    /// Successors of state `index` with their probabilities, each successor once (Eq. 15).
    pub fn successors(&self, index: usize) -> impl Iterator<Item = (usize, f64)> {
        let edges = self.row[index]..self.row[index + 1];
        self.to[edges.clone()].iter().map(|&to| to as usize).zip(self.probability[edges].iter().copied())
    }

    /// Holding time of state `index` in quanta, before any slowdown (Eq. 8).
    pub fn holding(&self, index: usize) -> u32 {
        let cells = self.states.state(index).chunks_exact(3);
        // Some batch runs in every state: when nothing would run, everything launches.
        cells.filter(|c| c[1] > 0).map(|c| c[2]).min().unwrap_or(0)
    }

    /// Targets of the transitions of state `index`.
    pub(super) fn targets(&self, index: usize) -> &[u32] {
        &self.to[self.row[index]..self.row[index + 1]]
    }
}
