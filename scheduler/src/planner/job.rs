//! One round of planning as a value: made by the core, run wherever there is time for it, handed back.

use super::draws::Draws;
use super::error::PlanError;
use super::forecast::{Forecast, ForecastSpec, forecast};
use super::search::SearchSpec;
use super::setting::Setting;
use super::table::PlanTable;
use crate::ids::Nanos;
use crate::policy::Policy;

/// What to plan for, see [`crate::Core::plan_due`].
#[derive(Clone, Debug, PartialEq)]
pub struct PlanJob {
    /// What was measured.
    pub setting: Setting,
    /// The same within its errors, nearer to what the policy in force was planned for: a gain must hold there too.
    pub doubt: Option<Setting>,
    /// N for which the gain is judged.
    pub requests: usize,
    /// Plans are made for 1 to this many requests.
    pub most: usize,
    /// The search.
    pub spec: SearchSpec,
    /// The policy in force for N.
    pub current: Policy,
    /// The least gain for which it is given up, as a fraction.
    pub min_gain: f64,
    /// The measured rate of that policy, where it is below its forecast: then the gain is over what was measured.
    pub measured: Option<f64>,
}

/// What came out.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanReply {
    /// The job's setting.
    pub(crate) setting: Setting,
    /// The job's N.
    pub(crate) requests: usize,
    /// The plans and what they promise.
    pub(crate) result: Result<Proposal, PlanError>,
}

/// New plans beside the policy in force.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Proposal {
    pub(crate) table: PlanTable,
    /// The forecast rate of the policy in force, in tokens per second.
    pub(crate) current_rate: f64,
    /// The rate of the new plan over that of the policy in force.
    pub(crate) gain: f64,
    /// Whether it is worth the change.
    pub(crate) worth_it: bool,
}

impl PlanJob {
    /// Plans. Pure and slow (tens of milliseconds for many requests): not for the thread that decides.
    pub fn run(&self) -> PlanReply {
        PlanReply { setting: self.setting.clone(), requests: self.requests, result: self.propose() }
    }

    fn propose(&self) -> Result<Proposal, PlanError> {
        // A policy that does not do what is forecast is not taken again for its forecast.
        let avoid = self.measured.is_some().then(|| self.current.clone());
        let spec = SearchSpec { avoid, ..self.spec.clone() };
        let table = PlanTable::fill(&self.setting, self.requests, self.most, &spec)?;
        let planned = &table.at(self.requests).policy;
        let (new, current) = self.compare(&self.setting, planned)?;
        let rate = self.measured.unwrap_or(current.tokens_per_s).min(current.tokens_per_s);
        let mut gain = new.tokens_per_s / rate;
        if let (Some(doubt), None) = (&self.doubt, self.measured) {
            let (new, current) = self.compare(doubt, planned)?;
            gain = gain.min(new.tokens_per_s / current.tokens_per_s);
        }
        let limit = self.spec.p99_limit;
        let tail_pays = limit.is_some_and(|limit| slower(current.p99, limit) && new.p99 < current.p99);
        let tail_costs = limit.is_some_and(|limit| slower(new.p99, limit) && new.p99 > current.p99);
        let worth_it =
            *planned != self.current && (tail_pays || (gain >= 1.0 + self.min_gain && !tail_costs));
        Ok(Proposal { table, current_rate: current.tokens_per_s, gain, worth_it })
    }

    /// Forecasts of a policy and of the one in force.
    fn compare(&self, setting: &Setting, planned: &Policy) -> Result<(Forecast, Forecast), PlanError> {
        // Other draws than those of the search, among which the winner was lucky.
        let steps = 2 * self.spec.request_steps;
        let draws = Draws::new(setting, steps, self.spec.seed.wrapping_add(1))?;
        let spec = ForecastSpec { request_steps: steps, p99: self.spec.p99_limit.is_some() };
        let rate = |policy: &Policy| forecast(setting, self.requests, policy, &draws, spec);
        Ok((rate(planned), rate(&self.current)))
    }
}

fn slower(p99: Option<Nanos>, limit: Nanos) -> bool {
    p99.is_some_and(|p99| p99 > limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner::search_policy;
    use crate::planner::setting::tests::pair;

    fn job(current: Policy, p99_limit: Option<Nanos>) -> PlanJob {
        PlanJob {
            setting: pair(),
            doubt: None,
            requests: 8,
            most: 8,
            spec: SearchSpec { p99_limit, ..SearchSpec::default() },
            current,
            min_gain: 0.01,
            measured: None,
        }
    }

    #[test]
    fn a_gain_is_proposed_and_a_tie_is_not() {
        let reply = job(Policy::Eager, None).run().result.expect("a plan");
        assert!(reply.worth_it && (reply.gain - 403.7 / 369.2).abs() < 0.015, "{}", reply.gain);
        assert!((reply.current_rate / 369.2 - 1.0).abs() < 0.01, "{}", reply.current_rate);
        // Lookahead is the optimum here.
        let reply = job(Policy::default(), None).run().result.expect("a plan");
        assert!(!reply.worth_it && (reply.gain - 1.0).abs() < 0.01, "{}", reply.gain);
    }

    /// Section 6e of the study: eager has the best tail, 60 ms at N = 8; everything faster has a longer one.
    #[test]
    fn a_tail_beyond_the_limit_is_worth_a_slower_plan() {
        let reply = job(Policy::default(), Some(61_000_000)).run().result.expect("a plan");
        assert!(reply.worth_it && reply.gain < 1.0, "{reply:?}");
        let reply = job(Policy::Eager, Some(61_000_000)).run().result.expect("a plan");
        assert!(!reply.worth_it || reply.gain > 1.0);
    }

    /// Planned for p = 0.15, now 0.35 by few decisions, which may be 0.16 as well.
    #[test]
    fn a_gain_within_the_errors_is_none() {
        let old = search_policy(
            &Setting {
                routing: vec![vec![0.85, 0.15], vec![1.0, 0.0]],
                slowdown: vec![1.5; 2],
                parts: vec![Vec::new(); 2],
                ..job(Policy::Eager, None).setting
            },
            8,
            &SearchSpec::default(),
        );
        let mut job = job(old.expect("a plan").policy, None);
        job.setting.slowdown = vec![1.5; 2];
        assert!(job.run().result.expect("a plan").worth_it);
        let mut doubt = job.setting.clone();
        doubt.routing[0] = vec![0.84, 0.16];
        job.doubt = Some(doubt);
        assert!(!job.run().result.expect("a plan").worth_it);
    }

    #[test]
    fn a_policy_that_disappoints_is_not_proposed_again() {
        let mut job = job(Policy::default(), None);
        job.measured = Some(360.0);
        let reply = job.run().result.expect("a plan");
        assert!(reply.worth_it && reply.table.at(8).policy != Policy::default(), "{reply:?}");
    }

    #[test]
    fn a_setting_that_makes_no_sense_is_an_error() {
        let mut job = job(Policy::Eager, None);
        job.setting.routing[0][0] = f64::NAN;
        assert!(job.run().result.is_err());
    }
}
