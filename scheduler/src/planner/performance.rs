//! What the stationary vector says about throughput, load and waiting (D.2.3).

use super::chain::Chain;
use super::error::PlanError;
use super::solve::stationary;
use super::system::positive;

/// Long-run rates of a system under one rule. Times include the slowdown.
#[derive(Clone, Debug, PartialEq)]
pub struct Performance {
    /// T(B), Eq. 21.
    pub tokens_per_s: f64,
    /// Expected tokens per transition, Eq. 19.
    pub tokens_per_epoch: f64,
    /// Expected time per transition in milliseconds, Eq. 20.
    pub epoch_ms: f64,
    /// Request-steps per second, per model.
    pub steps_per_s: Vec<f64>,
    /// Share of the time that each model runs.
    pub utilisation: Vec<f64>,
    /// Batches per second, per model.
    pub launches_per_s: Vec<f64>,
    /// Time that requests spend ready but not running, per committed token.
    pub wait_ms_per_token: f64,
    /// Share of the time that two or more models run.
    pub overlap: f64,
    /// Reachable states of the chain.
    pub states: usize,
    /// States of its closed class.
    pub recurrent: usize,
}

/// A solved chain. One solution serves every common slowdown, which stretches time and leaves the chain as it is.
#[derive(Clone, Debug)]
pub struct Solution<'a> {
    chain: Chain<'a>,
    pi: Vec<f64>,
}

impl<'a> Solution<'a> {
    /// Solves the chain.
    ///
    /// # Errors
    /// Several closed classes, or no convergence.
    pub fn new(chain: Chain<'a>) -> Result<Self, PlanError> {
        let pi = stationary(&chain)?;
        Ok(Self { chain, pi })
    }

    /// The chain.
    pub fn chain(&self) -> &Chain<'a> {
        &self.chain
    }

    /// The stationary probability of every state; 0 for transient states.
    pub fn stationary(&self) -> &[f64] {
        &self.pi
    }

    /// Tokens expected at the end of state `index`.
    pub fn tokens(&self, index: usize) -> f64 {
        let tau = self.chain.holding(index);
        let cells = self.chain.state(index).chunks_exact(3).enumerate();
        let finished = cells.filter(|(_, c)| c[1] > 0 && c[2] == tau);
        finished.map(|(i, c)| f64::from(c[1]) * self.chain.system().tokens_per_step(i)).sum()
    }

    /// The rates when time passes `slowdown` times slower while two or more models run (1: models do not disturb one
    /// another).
    ///
    /// # Errors
    /// A slowdown that is not positive, or a system that never commits a token.
    pub fn performance(&self, slowdown: f64) -> Result<Performance, PlanError> {
        positive("the slowdown", slowdown).map_err(|_| PlanError::Parameter {
            name: "the slowdown",
            value: slowdown,
            allowed: "positive",
        })?;
        let system = self.chain.system();
        let models = system.models();
        let (mut tokens, mut time, mut waiting, mut overlap) = (0.0, 0.0, 0.0, 0.0);
        let mut steps = vec![0.0; models];
        let mut running = vec![0.0; models];
        let mut launches = vec![0.0; models];
        for (index, &pi) in self.pi.iter().enumerate().filter(|(_, pi)| **pi > 0.0) {
            let cells = self.chain.state(index);
            let tau = self.chain.holding(index);
            let busy = cells.chunks_exact(3).filter(|c| c[1] > 0).count();
            let pace = if busy > 1 { slowdown } else { 1.0 };
            let weight = pi * f64::from(tau) * system.quantum_ms() * pace;
            time += weight;
            if busy > 1 {
                overlap += weight;
            }
            for (i, cell) in cells.chunks_exact(3).enumerate() {
                waiting += weight * f64::from(cell[0]);
                if cell[1] > 0 {
                    running[i] += weight;
                    if cell[2] == tau {
                        steps[i] += pi * f64::from(cell[1]);
                        launches[i] += pi;
                    }
                }
            }
        }
        for (i, count) in steps.iter().enumerate() {
            tokens += count * system.tokens_per_step(i);
        }
        if tokens <= 0.0 {
            return Err(PlanError::NothingCommitted);
        }
        let per_second = |count: &f64| 1000.0 * count / time;
        Ok(Performance {
            tokens_per_s: per_second(&tokens),
            tokens_per_epoch: tokens,
            epoch_ms: time,
            steps_per_s: steps.iter().map(per_second).collect(),
            utilisation: running.iter().map(|x| x / time).collect(),
            launches_per_s: launches.iter().map(per_second).collect(),
            wait_ms_per_token: waiting / tokens,
            overlap: overlap / time,
            states: self.pi.len(),
            recurrent: self.pi.iter().filter(|pi| **pi > 0.0).count(),
        })
    }
}
