//! The online planner: when to plan, what to do with the answer, and when to give a plan up (scheduling study,
//! section 8).
//!
//! It plans once the estimates hold something, when an estimate has changed, when they have drifted or grown better,
//! and when the number of requests is another; it installs a plan only for a gain that is worth it, and falls back
//! to the configured policy when a plan does not keep what it has promised. The work itself is a [`PlanJob`] that
//! runs elsewhere.

mod judge;
mod status;

use crate::estimate::Estimates;
use crate::ids::{ModelId, Nanos};
use crate::planner::{PlanJob, PlanReply, PlanRow, PlanTable, Proposal, SearchSpec, Setting};
use crate::policy::{LatencyTable, Policy};
use judge::{Interval, Judge};

pub use status::{ModelStatus, PlannerStatus};

/// Decisions of a model before its routing is planned with.
const ENOUGH_DECISIONS: u64 = 60;
/// Steps of a model, in all, before their times are planned with, unless they were measured before.
const ENOUGH_STEPS: u64 = 3;
/// The state is looked at every so many decisions.
const LOOK_EVERY: u64 = 10;
/// A plan is made again when its estimates are from so many times as many decisions, up to the most.
const REFINED_AT: u64 = 3;
const REFINED_UP_TO: u64 = 3_000;
/// Least distance of rounds that only a drift asks for, in decisions.
const DRIFT_EVERY: u64 = 150;
/// A relative distance of estimates that counts as a drift.
const DRIFT: f64 = 0.15;
/// ...but less than so many standard errors, or so little of a probability, does not.
const DRIFT_ERRORS: f64 = 3.0;
const DRIFT_LEAST: f64 = 0.02;
/// After a change no other is planned for at once: for so many decisions, twice as many each time while changes come in
/// quick succession, up to the most.
const HUSH: u64 = 60;
const MOST_HUSH: u64 = 2_000;
const QUICK: u64 = 2_000;
/// A gain must hold with every share so many standard errors nearer to what was planned for.
const DOUBT_ERRORS: f64 = 1.5;
/// N follows the last so many decisions.
const REQUESTS_WINDOW: f64 = 30.0;
/// N for which a round is worth it: off by a quarter.
const REQUESTS_OFF: f64 = 0.25;
/// Decisions for which no plan is made after the first fallback, and at most; each doubles the next.
const FIRST_PAUSE: u64 = 1_000;
const MOST_PAUSE: u64 = 1_000_000;

/// How to plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlannerConfig {
    /// The most that the 99th percentile of the time between two tokens of a request may be.
    pub p99_limit: Option<Nanos>,
    /// The least predicted gain for which a policy is changed, as a fraction.
    pub min_gain: f64,
    /// A plan is given up when the measured rate is below this fraction of the predicted one...
    pub fall_back_below: f64,
    /// ...over so many tokens, twice in a row: by chance alone one time is 10 % low once in a hundred.
    pub fall_back_tokens: u64,
    /// Plans are made for at most this many requests; more use the last one.
    pub most_requests: usize,
}

impl Default for PlannerConfig {
    /// No limit on the tail; 1 % of gain; 10 % below over 1,000 tokens; up to 256 requests.
    fn default() -> Self {
        Self {
            p99_limit: None,
            min_gain: 0.01,
            fall_back_below: 0.9,
            fall_back_tokens: 1_000,
            most_requests: 256,
        }
    }
}

/// What the last round was made from.
#[derive(Debug)]
struct Basis {
    setting: Setting,
    requests: usize,
    /// Decisions so far when it was asked for.
    at: u64,
    /// The fewest decisions since a change that a row of its routing had.
    samples: u64,
}

/// What a completed step tells the planner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Landed {
    /// Now.
    pub(crate) now: Nanos,
    /// Tokens that it committed.
    pub(crate) tokens: u64,
    /// Admitted requests that may visit more than one model.
    pub(crate) requests: usize,
    /// Nothing else ran: no prompt was fed, no request was pinned.
    pub(crate) clean: bool,
}

/// The planner's state in one core.
#[derive(Debug)]
pub(crate) struct Pilot {
    config: PlannerConfig,
    plan: Option<PlanTable>,
    /// Forecast rate of the configured policy at the basis' N.
    unplanned: Option<f64>,
    /// Measured over predicted rate under the configured policy: what the forecast does not know.
    bias: f64,
    /// The configured policy does worse than predicted: a plan may be worth more than the forecast says.
    disappointed: bool,
    /// The last window was below the plan's promise.
    doubted: bool,
    basis: Option<Basis>,
    /// The job that is out: its decision.
    out: Option<(u64, u64)>,
    /// The decision of the last job.
    asked_at: u64,
    looked_at: u64,
    requests: f64,
    judge: Judge,
    last: Option<Landed>,
    /// The last decision at which a change was planned for, and how long no other is.
    change_at: Option<u64>,
    hush: u64,
    paused_until: u64,
    pause: u64,
    measured: Option<f64>,
    rounds: u64,
    plans: u64,
    fallbacks: u64,
    error: Option<String>,
}

impl Pilot {
    pub(crate) fn new(config: PlannerConfig) -> Self {
        Self {
            config,
            plan: None,
            unplanned: None,
            bias: 1.0,
            disappointed: false,
            doubted: false,
            basis: None,
            out: None,
            asked_at: 0,
            looked_at: 0,
            requests: 0.0,
            judge: Judge::default(),
            last: None,
            change_at: None,
            hush: HUSH,
            paused_until: 0,
            pause: FIRST_PAUSE,
            measured: None,
            rounds: 0,
            plans: 0,
            fallbacks: 0,
            error: None,
        }
    }

    /// The plan for `requests` requests, if there is one.
    pub(crate) fn row(&self, requests: usize) -> Option<&PlanRow> {
        self.plan.as_ref().filter(|_| requests > 0).map(|table| table.at(requests))
    }

    /// Whether a round of planning is due. Cheap unless it is.
    pub(crate) fn is_due(&mut self, estimates: &Estimates, requests: usize) -> bool {
        let decisions = estimates.decisions();
        if self.out.is_some() || requests == 0 || decisions < self.looked_at + LOOK_EVERY {
            return false;
        }
        let seen = (decisions - self.looked_at) as f64;
        self.looked_at = decisions;
        self.requests += (requests as f64 - self.requests) * (seen / REQUESTS_WINDOW).min(1.0);
        let hushed = self.change_at.is_some_and(|at| decisions < at + self.hush);
        let changed = !hushed && estimates.changed().is_some_and(|at| at > self.asked_at);
        if changed {
            // What was measured before says nothing about what is.
            self.judge.reset();
            self.doubted = false;
            let quick = self.change_at.is_some_and(|at| decisions < at + QUICK);
            self.hush = if quick { (2 * self.hush).min(MOST_HUSH) } else { HUSH };
            self.change_at = Some(decisions);
        } else if decisions < self.paused_until {
            return false;
        }
        let Some(basis) = &self.basis else { return true };
        let since = decisions - basis.at;
        let moved = (self.requests / basis.requests as f64 - 1.0).abs() > REQUESTS_OFF;
        changed
            || (moved && since >= ENOUGH_DECISIONS)
            || self.disappointed && since >= DRIFT_EVERY
            || (basis.samples < REFINED_UP_TO / REFINED_AT
                && since >= DRIFT_EVERY
                && fewest_decisions(estimates, basis.setting.models()) >= REFINED_AT * basis.samples)
            || (since >= DRIFT_EVERY && drifted(&basis.setting, estimates))
    }

    /// The job of a round. `setting` is none while the estimates do not hold enough.
    pub(crate) fn job(
        &mut self,
        setting: Option<Setting>,
        estimates: &Estimates,
        most: usize,
        base: &Policy,
    ) -> Option<PlanJob> {
        let setting = setting?;
        let requests = (self.requests.round() as usize).max(1);
        let current = self.row(requests).map_or(base, |row| &row.policy).clone();
        let most = requests.next_power_of_two().max(8).min(most).max(requests).min(self.config.most_requests);
        self.asked_at = estimates.decisions();
        self.out = Some((self.asked_at, fewest_decisions(estimates, setting.models())));
        let doubt = self.basis.as_ref().map(|basis| doubt(&setting, &basis.setting, estimates));
        Some(PlanJob {
            setting,
            doubt,
            requests: requests.min(most),
            most,
            spec: SearchSpec { p99_limit: self.config.p99_limit, ..SearchSpec::default() },
            current,
            min_gain: self.config.min_gain,
            measured: self.measured.filter(|_| self.plan.is_none() && self.disappointed),
        })
    }

    /// Takes the answer of a job. True when the policy is another now.
    pub(crate) fn answer(&mut self, reply: PlanReply) -> bool {
        let Some((at, samples)) = self.out.take() else { return false };
        self.rounds += 1;
        let PlanReply { setting, requests, result } = reply;
        let changed = match result {
            Ok(proposal) => {
                self.error = None;
                self.take(proposal, requests)
            }
            Err(error) => {
                self.error = Some(error.to_string());
                false
            }
        };
        self.basis = Some(Basis { setting, requests, at, samples });
        self.disappointed = false;
        changed
    }

    /// The job that is out will not be answered: the next one comes after a pause.
    pub(crate) fn fail(&mut self, decisions: u64) {
        if self.out.take().is_some() {
            self.error = Some("the round of planning broke down".to_owned());
            self.pause(decisions);
        }
    }

    fn take(&mut self, proposal: Proposal, requests: usize) -> bool {
        if self.plan.is_none() {
            self.unplanned = Some(proposal.current_rate);
        }
        if proposal.worth_it {
            self.plan = Some(proposal.table);
            self.plans += 1;
            self.doubted = false;
            self.judge.reset();
            return true;
        }
        // What is kept is expected to do as well as is known now.
        if let Some(table) = &mut self.plan {
            let promised = table.at(requests).tokens_per_s;
            table.scale(proposal.current_rate / promised);
        }
        false
    }

    /// A step has landed: compares what came with what was predicted. True when the plan was given up.
    pub(crate) fn landed(&mut self, landed: Landed, decisions: u64) -> bool {
        let Some(last) = self.last.replace(landed) else { return false };
        if !(last.clean && landed.clean && last.requests == landed.requests && landed.requests > 0) {
            return false;
        }
        let interval = Interval {
            time: landed.now.saturating_sub(last.now),
            tokens: landed.tokens,
            predicted: self.predicted(landed.requests).unwrap_or(0.0),
        };
        let Some(verdict) = self.judge.add(interval, self.config.fall_back_tokens) else { return false };
        self.measured = Some(verdict.measured);
        if self.plan.is_none() {
            self.bias = verdict.ratio.clamp(0.25, 1.0);
            self.disappointed = verdict.ratio < self.config.fall_back_below;
            return false;
        }
        let again = self.doubted;
        self.doubted = verdict.ratio < self.config.fall_back_below * self.bias;
        let given_up = self.doubted && again;
        if given_up {
            self.fall_back(decisions);
        }
        given_up
    }

    fn fall_back(&mut self, decisions: u64) {
        self.plan = None;
        self.basis = None;
        self.unplanned = None;
        self.fallbacks += 1;
        self.doubted = false;
        self.pause(decisions);
        self.judge.reset();
    }

    fn pause(&mut self, decisions: u64) {
        self.paused_until = decisions + self.pause;
        self.pause = (2 * self.pause).min(MOST_PAUSE);
    }

    /// The predicted rate for `requests` requests under the policy in force.
    pub(crate) fn predicted(&self, requests: usize) -> Option<f64> {
        match self.row(requests) {
            Some(row) => Some(row.tokens_per_s),
            None => self.unplanned.filter(|_| self.basis.as_ref().is_some_and(|b| b.requests == requests)),
        }
    }

    /// Changes of the policy, and rounds of planning.
    pub(crate) fn progress(&self) -> (u64, u64) {
        (self.plans + self.fallbacks, self.rounds)
    }

    /// Fills in what the planner itself knows.
    pub(crate) fn status(&self, requests: usize) -> PlannerStatus {
        let row = self.row(requests);
        PlannerStatus {
            enabled: true,
            requests,
            planned: row.is_some(),
            plan_len: self.plan.as_ref().map_or(0, PlanTable::len),
            predicted: self.predicted(requests),
            measured: self.measured,
            predicted_p99: row.and_then(|row| row.p99),
            rounds: self.rounds,
            plans: self.plans,
            fallbacks: self.fallbacks,
            error: self.error.clone(),
            ..PlannerStatus::default()
        }
    }
}

/// The fewest decisions since a change among the models that decide.
fn fewest_decisions(estimates: &Estimates, models: usize) -> u64 {
    let ages = (0..models).map(|m| estimates.moves(ModelId(m as u8)).age());
    ages.filter(|&age| age > 0).min().unwrap_or(0)
}

/// Whether the estimates are far from what a plan was made from.
fn drifted(planned: &Setting, estimates: &Estimates) -> bool {
    (0..planned.models()).any(|i| {
        let from = ModelId(i as u8);
        let moves = estimates.moves(from);
        let routed = (0..planned.models()).any(|j| {
            let (to, p) = (ModelId(j as u8), planned.routing[i][j]);
            let least = (DRIFT * p).max(DRIFT_ERRORS * moves.share_error(to)).max(DRIFT_LEAST);
            moves.age() > 0 && (moves.share(to) - p).abs() > least
        });
        let steps = estimates.steps(from);
        let rows = planned.max_batch[i];
        let far = |now: f64, then: f64| (now / then - 1.0).abs() > DRIFT;
        let slower = steps.by_rows(rows).is_some_and(|now| {
            [1, rows / 4, rows].iter().any(|&b| {
                let b = b.max(1);
                far(now[b - 1] as f64, planned.latency[i].at(b) as f64)
            })
        });
        routed || slower || far(steps.slowdown(), planned.slowdown[i])
    })
}

/// `setting` with every share moved within its error towards what was planned for.
fn doubt(setting: &Setting, planned: &Setting, estimates: &Estimates) -> Setting {
    let mut doubt = setting.clone();
    for (i, row) in doubt.routing.iter_mut().enumerate() {
        let moves = estimates.moves(ModelId(i as u8));
        for (j, p) in row.iter_mut().enumerate() {
            let error = DOUBT_ERRORS * moves.share_error(ModelId(j as u8));
            *p += (planned.routing[i][j] - *p).clamp(-error, error);
        }
        let sum: f64 = row.iter().sum();
        row.iter_mut().for_each(|p| *p /= sum);
    }
    doubt
}

/// What the estimates say of every model that requests with a choice visit; none while they hold too little. A model
/// that nobody visits gets values that make no difference. `batches` are the most rows of a batch of each model.
pub(crate) fn setting(estimates: &Estimates, entry: ModelId, batches: &[usize]) -> Option<Setting> {
    let models = batches.len();
    let ids = || (0..models).map(|m| ModelId(m as u8));
    let visited = |to: ModelId| to == entry || ids().any(|from| estimates.share(from, to) > 0.0);
    let mut setting = Setting {
        routing: Vec::new(),
        commit: Vec::new(),
        latency: Vec::new(),
        slowdown: Vec::new(),
        parts: Vec::new(),
        entry,
        max_batch: batches.to_vec(),
    };
    for from in ids() {
        let (moves, steps) = (estimates.moves(from), estimates.steps(from));
        if !visited(from) {
            setting.routing.push(ids().map(|to| f64::from(u8::from(to == entry))).collect());
            setting.commit.push(vec![0.0; models]);
            setting.latency.push(LatencyTable::constant(1));
            setting.slowdown.push(1.0);
            setting.parts.push(Vec::new());
            continue;
        }
        // A model that everybody leaves at once shows it soon; one with a choice needs a sample of it.
        let chooses = ids().filter(|&to| moves.share(to) > 0.0).count() > 1;
        if moves.age() < if chooses || from == entry { ENOUGH_DECISIONS } else { ENOUGH_STEPS }
            || (steps.total() < ENOUGH_STEPS && !steps.is_seeded())
        {
            return None;
        }
        setting.routing.push(ids().map(|to| moves.share(to)).collect());
        let usual = |to: ModelId| f64::from(u8::from(to == from));
        setting.commit.push(ids().map(|to| moves.commits(to).unwrap_or(usual(to))).collect());
        setting.latency.push(LatencyTable::by_rows(steps.by_rows(batches[from.index()])?));
        setting.slowdown.push(steps.slowdown());
        setting.parts.push(estimates.parts_by_rows(from, batches[from.index()]));
    }
    (models > 1).then_some(setting)
}
