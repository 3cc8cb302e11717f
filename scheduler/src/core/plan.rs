//! The online planner beside the state machine: what it sees, when it is asked, what it changes.

use super::Core;
use crate::ids::{ModelId, ModelSet, Nanos};
use crate::measured::Measured;
use crate::pilot::{Landed, ModelStatus, PlannerStatus, setting};
use crate::planner::{PlanJob, PlanReply};
use crate::policy::Policy;
use crate::subserver::Subserver;

impl Core {
    /// The estimates of step times begin with what was measured: entry `i` is of model `i`, what is missing begins with
    /// nothing. Speed only: answers are the same.
    pub fn measured(mut self, models: &[Measured]) -> Self {
        for (sub, measured) in self.subservers.iter().zip(models) {
            self.estimates.seed(sub.model, measured);
        }
        self
    }

    /// The policy in force: the plan's for the requests that may visit more than one model, or the configured one.
    pub(super) fn policy(&self) -> &Policy {
        let row = self.pilot.as_ref().and_then(|pilot| pilot.row(self.routed));
        row.map_or(&self.config.policy, |row| &row.policy)
    }

    /// A round of planning, if one is due: run it elsewhere and hand the reply to [`Core::plan_done`]; until then no
    /// other comes. Ask once per turn; it costs a few compares unless something is due. Never without a planner in
    /// the configuration.
    pub fn plan_due(&mut self) -> Option<PlanJob> {
        let pilot = self.pilot.as_mut()?;
        if !pilot.is_due(&self.estimates, self.routed) {
            return None;
        }
        let most = self.config.max_running;
        let batches: Vec<usize> = self.subservers.iter().map(|sub| sub.most_rows().min(most)).collect();
        // Requests that can move start where the routes with the most models do.
        let entry = self.routes.iter().rev().max_by_key(|route| route.reach.len())?.entry;
        let setting = setting(&self.estimates, entry, &batches);
        pilot.job(setting, &self.estimates, most, &self.config.policy)
    }

    /// The reply of the last [`Core::plan_due`]. The next [`Core::launch`] decides by it.
    pub fn plan_done(&mut self, reply: PlanReply) {
        if self.pilot.as_mut().is_some_and(|pilot| pilot.answer(reply)) {
            self.epoch = true;
        }
    }

    /// The last [`Core::plan_due`] will not be answered (its round broke down): the policy in force stays, and the next
    /// round comes after a pause.
    pub fn plan_failed(&mut self) {
        let decisions = self.estimates.decisions();
        if let Some(pilot) = &mut self.pilot {
            pilot.fail(decisions);
        }
    }

    /// A step has landed that committed `tokens` tokens.
    pub(super) fn note_landed(&mut self, now: Nanos, tokens: u64, prompt: usize) {
        let Some(pilot) = self.pilot.as_mut() else { return };
        let feeds_prompts = |sub: &Subserver| sub.batch().is_some_and(|b| b.prompt_tokens > 0);
        let clean = prompt == 0 && self.admitted == self.routed && !self.subservers.iter().any(feeds_prompts);
        let landed = Landed { now, tokens, requests: self.routed, clean };
        if pilot.landed(landed, self.estimates.decisions()) {
            self.epoch = true;
        }
    }

    /// The policy in force, whether it comes from a plan, changes of it by the planner, and rounds of planning.
    pub(crate) fn plan_progress(&self) -> (&Policy, bool, u64, u64) {
        let planned = self.pilot.as_ref().is_some_and(|pilot| pilot.row(self.routed).is_some());
        let (changes, rounds) = self.pilot.as_ref().map_or((0, 0), |pilot| pilot.progress());
        (self.policy(), planned, changes, rounds)
    }

    /// The planner's estimates, plan and promises. Allocates: for a status page, not for every turn.
    pub fn planner_status(&self) -> PlannerStatus {
        let status = match &self.pilot {
            Some(pilot) => pilot.status(self.routed),
            None => PlannerStatus { requests: self.routed, ..PlannerStatus::default() },
        };
        let models = self.subservers.iter().map(|sub| self.model_status(sub)).collect();
        PlannerStatus { models, policy: self.policy().clone(), ..status }
    }

    fn model_status(&self, sub: &Subserver) -> ModelStatus {
        let (steps, moves) = (self.estimates.steps(sub.model), self.estimates.moves(sub.model));
        let all = ModelSet::first(self.subservers.len());
        let most = sub.most_rows().min(self.config.max_running);
        let by_rows = steps.by_rows(most).unwrap_or_default();
        let rows =
            std::iter::successors(Some(1), |rows| Some(rows * 2)).take_while(|&rows| rows <= by_rows.len());
        let commits = |to: ModelId| moves.commits(to).unwrap_or(0.0);
        ModelStatus {
            latency: rows.map(|rows| (rows, by_rows[rows - 1])).collect(),
            slowdown: steps.slowdown(),
            routing: all.iter().map(|to| moves.share(to)).collect(),
            commit: all.iter().map(commits).collect(),
            decisions: moves.age(),
            steps: steps.age(),
        }
    }
}
