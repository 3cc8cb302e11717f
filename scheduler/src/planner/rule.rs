//! The launch rules that the exact chain knows: the paper's thresholds, and the rules that go past them.

use super::error::PlanError;
use super::system::System;

/// When an idle model launches its queue (always the whole queue). If nothing would run, everything that can launch
/// does.
#[derive(Clone, Debug, PartialEq)]
pub enum LaunchRule {
    /// Delayed batching (section 4.3, appendix D): model i launches when at least `B_i` requests wait.
    Threshold(Vec<u32>),
    /// Thresholds, and the entry model also waits for a batch that is about to return: it does not launch while a
    /// peer is worth waiting for, and beside a running or just launching peer only with at least `beside` requests.
    Hold {
        /// B.
        thresholds: Vec<u32>,
        /// H; 1 never binds, more than N means that the entry model and its peers never overlap by its doing.
        beside: u32,
    },
    /// No thresholds: every model waits while a peer is worth waiting for, asked in order of increasing step time; a
    /// peer that launched in the same decision counts as running. A peer j with b_j requests and t left is worth
    /// waiting for if `t < L_i` and `alpha p_ji b_j (L_i - t) > q_i t`.
    Lookahead {
        /// Weight of the expected arrivals at every model but the entry model, where it is 1.
        alpha: f64,
    },
    /// One of two models at a time: the peer when at least `at_least` requests wait for it or none waits for the
    /// entry model, else the entry model (Model-Sync with threshold K).
    Exclusive {
        /// K.
        at_least: u32,
    },
}

/// A rule bound to a system and checked.
pub(super) struct Launcher<'a> {
    system: &'a System,
    rule: &'a LaunchRule,
    order: Vec<usize>,
}

/// Queue, batch and residual of every model, before or after launching.
#[derive(Clone, Debug)]
pub(super) struct Loads {
    pub(super) queue: Vec<u32>,
    pub(super) batch: Vec<u32>,
    pub(super) left: Vec<u32>,
}

impl<'a> Launcher<'a> {
    pub(super) fn new(system: &'a System, rule: &'a LaunchRule) -> Result<Self, PlanError> {
        let requests = system.requests();
        match rule {
            LaunchRule::Threshold(thresholds) => check_thresholds(system, thresholds)?,
            LaunchRule::Hold { thresholds, beside } => {
                check_thresholds(system, thresholds)?;
                if *beside == 0 {
                    return Err(PlanError::Parameter { name: "H", value: 0.0, allowed: "at least 1" });
                }
            }
            LaunchRule::Lookahead { alpha } => {
                if !(alpha.is_finite() && *alpha >= 0.0) {
                    return Err(PlanError::Parameter { name: "alpha", value: *alpha, allowed: "0 or more" });
                }
            }
            LaunchRule::Exclusive { at_least } => {
                if system.models() != 2 {
                    return Err(PlanError::TwoModelsOnly { rule: "exclusive", models: system.models() });
                }
                if !(1..=requests).contains(at_least) {
                    let value = f64::from(*at_least);
                    return Err(PlanError::Parameter { name: "K", value, allowed: "in 1..=N" });
                }
            }
        }
        Ok(Self { system, rule, order: system.by_speed() })
    }

    /// Launches what the rule wants, and everything if nothing would run.
    pub(super) fn launch(&self, loads: &mut Loads) {
        for &model in &self.order {
            if loads.batch[model] == 0 && loads.queue[model] > 0 && self.wants(model, loads) {
                self.start(model, loads);
            }
        }
        if loads.batch.iter().all(|&b| b == 0) {
            for model in 0..loads.queue.len() {
                if loads.queue[model] > 0 {
                    self.start(model, loads);
                }
            }
        }
    }

    fn start(&self, model: usize, loads: &mut Loads) {
        loads.batch[model] = std::mem::take(&mut loads.queue[model]);
        loads.left[model] = self.system.step(model, loads.batch[model]);
    }

    fn wants(&self, model: usize, loads: &Loads) -> bool {
        let queue = loads.queue[model];
        match self.rule {
            LaunchRule::Threshold(thresholds) => queue >= thresholds[model],
            LaunchRule::Hold { thresholds, beside } => {
                let enough = queue >= thresholds[model];
                let entry = self.system.entry();
                if model != entry || !enough {
                    return enough;
                }
                let others = (0..thresholds.len()).filter(|&j| j != entry);
                let mut peers = others.map(|j| loads.batch[j] > 0 || loads.queue[j] >= thresholds[j].max(1));
                (queue >= *beside || !peers.any(|runs| runs)) && !self.worth_waiting(model, loads, 1.0)
            }
            LaunchRule::Lookahead { alpha } => {
                let alpha = if model == self.system.entry() { 1.0 } else { *alpha };
                !self.worth_waiting(model, loads, alpha)
            }
            LaunchRule::Exclusive { at_least } => {
                let entry = self.system.entry();
                let peer_first = loads.queue[1 - entry] >= *at_least || loads.queue[entry] == 0;
                loads.batch.iter().all(|&b| b == 0) && (model != entry) == peer_first
            }
        }
    }

    /// Whether a running peer will bring more than waiting for it costs.
    fn worth_waiting(&self, model: usize, loads: &Loads, alpha: f64) -> bool {
        let queue = loads.queue[model];
        let own = self.system.step(model, queue);
        (0..loads.batch.len()).any(|peer| {
            let (batch, left) = (loads.batch[peer], loads.left[peer]);
            let gained = alpha * self.system.probability(peer, model) * f64::from(batch);
            batch > 0 && left < own && gained * f64::from(own - left) > f64::from(queue) * f64::from(left)
        })
    }
}

fn check_thresholds(system: &System, thresholds: &[u32]) -> Result<(), PlanError> {
    let requests = system.requests();
    if thresholds.len() != system.models() {
        return Err(PlanError::Shape {
            what: "the threshold vector",
            found: thresholds.len(),
            needed: system.models(),
        });
    }
    if let Some((model, &value)) = thresholds.iter().enumerate().find(|(_, b)| !(1..=requests).contains(*b)) {
        return Err(PlanError::Threshold { model, value, requests });
    }
    let slack: u64 = thresholds.iter().map(|&b| u64::from(b) - 1).sum();
    if slack >= u64::from(requests) {
        return Err(PlanError::Infeasible { thresholds: thresholds.to_vec(), requests });
    }
    Ok(())
}
