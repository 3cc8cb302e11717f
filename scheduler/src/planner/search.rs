//! The search for the best launch rule for one number of requests: a race of candidates by forecast.

use super::candidate::{Family, Point, Space};
use super::draws::Draws;
use super::error::PlanError;
use super::forecast::steps_for;
use super::meter::segment;
use super::race::Race;
use super::run::Prepared;
use super::setting::Setting;
use super::table::PlanRow;
use crate::ids::{MAX_MODELS, Nanos};
use crate::policy::Policy;

/// Rates within this (relative) are equal: the rule with less to tune is taken.
const TIE: f64 = 2e-3;
/// Weights of the arrivals that lookahead is tried with; above 1 its worst cases are better (section 5 of the study).
const ALPHAS: [f64; 2] = [1.0, 1.15];
/// Spent on climbs, and on the final: epochs per row of [`SearchSpec::request_steps`].
const CLIMB_COST: f64 = 1.1;
const FINAL_COST: f64 = 1.0;
/// Spent on the final where nothing is climbed.
const BETWEEN_COST: f64 = 0.4;
/// Models with this part of the time must be left so often in a simulation that can tell candidates apart.
const LEAST_TIME: f64 = 0.01;
const LEAST_MOVES: f64 = 50.0;
/// Most candidates in the final.
const FINALISTS: usize = 7;

/// What to search for, and how long.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchSpec {
    /// The most that the 99th percentile of the time between two tokens may be. If nothing keeps it, the candidate
    /// that comes nearest is taken.
    pub p99_limit: Option<Nanos>,
    /// Rows (request-steps) of the simulation of a finalist; the work of a whole search is about ten times this.
    pub request_steps: u64,
    /// Seeds the draws.
    pub seed: u64,
    /// A rule without numbers to tune that is left out.
    pub avoid: Option<Policy>,
}

impl Default for SearchSpec {
    /// No limit; 30,000 rows.
    fn default() -> Self {
        Self { p99_limit: None, request_steps: 30_000, seed: 1, avoid: None }
    }
}

/// The launch rule with the highest forecast rate for `requests` requests that keeps the limit on the tail. Pure:
/// equal arguments give equal plans.
///
/// # Errors
/// As [`Setting::check`]; no requests, or more than 65,536.
pub fn search_policy(setting: &Setting, requests: usize, spec: &SearchSpec) -> Result<PlanRow, PlanError> {
    setting.check_for(requests)?;
    let draws = Draws::new(setting, steps_for(spec.request_steps, requests), spec.seed)?;
    Ok(search_with(setting, requests, spec, &draws, &Candidates { hints: Vec::new(), climb: true }))
}

/// What is tried beside the rules without parameters.
pub(super) struct Candidates {
    /// These.
    pub(super) hints: Vec<Policy>,
    /// Whether the families are climbed; without, the search is several times cheaper.
    pub(super) climb: bool,
}

/// As [`search_policy`], for a checked setting.
pub(super) fn search_with(
    setting: &Setting,
    requests: usize,
    spec: &SearchSpec,
    draws: &Draws,
    candidates: &Candidates,
) -> PlanRow {
    let prepared = Prepared::new(setting, requests);
    let full = steps_for(spec.request_steps, requests);
    // A climb sees one phase.
    let coarse = segment(requests).min(full);
    let mut search = Search {
        space: Space::new(setting, requests),
        race: Race::new(&prepared, draws, spec.p99_limit),
        coarse,
        cap: CLIMB_COST * full as f64,
    };
    let mut rules = simple_rules(setting, requests, full);
    if rules.len() > 1 {
        rules.retain(|rule| Some(rule) != spec.avoid.as_ref());
    }
    let mut finalists: Vec<usize> = rules.into_iter().map(|p| search.race.enter(p, coarse)).collect();
    if finalists.len() > 1 {
        for hint in &candidates.hints {
            search.race.enter(hint.clone(), coarse);
        }
        if candidates.climb {
            search.families(requests as u32);
        }
    }
    search.add_finalists(&mut finalists);
    let cost = if candidates.climb { FINAL_COST } else { BETWEEN_COST };
    let best = search.decide(&finalists, full, cost * full as f64);
    let winner = &search.race.entrants[best];
    PlanRow { policy: winner.policy.clone(), tokens_per_s: winner.score.tokens_per_s, p99: winner.score.p99 }
}

/// The rules without numbers to tune, in the order in which ties are decided. The first alone where nothing can be
/// told apart: one request or one model, or so few moves in `rows` rows that a simulation shows nothing.
fn simple_rules(setting: &Setting, requests: usize, rows: u64) -> Vec<Policy> {
    let mut rules: Vec<Policy> = ALPHAS.iter().map(|&alpha| Policy::Lookahead { alpha }).collect();
    rules.push(Policy::Eager);
    let visits = setting.visits();
    let time = |i: usize| visits[i] * setting.latency[i].at(1) as f64;
    let all: f64 = (0..setting.models()).map(time).sum();
    let busy = |&i: &usize| time(i) >= LEAST_TIME * all;
    let leaves = |i: usize| visits[i] * (1.0 - setting.routing[i][i]) * rows as f64;
    if requests == 1 || (0..setting.models()).filter(busy).any(|i| leaves(i) < LEAST_MOVES) {
        rules.truncate(1);
    }
    rules
}

struct Search<'a> {
    space: Space,
    race: Race<'a>,
    /// Rows of a candidate in a climb.
    coarse: u64,
    /// No more climbing when so much is spent.
    cap: f64,
}

impl Search<'_> {
    /// Climbs in every family.
    fn families(&mut self, requests: u32) {
        let step = (requests / 8).max(1);
        let start = self.space.start(Family::Hold);
        let found = self.climb(Family::Hold, start, step);
        if !self.keeps(Family::Hold, found) {
            // The tail grows with B in steps, with plains between on which a climb from above is lost.
            self.climb(Family::Hold, [1; MAX_MODELS + 1], step);
        }
        let alone = self.space.start(Family::Exclusive);
        self.climb(Family::Exclusive, alone, step);
        // Where overlap costs, the good H is far from 1, with a valley between.
        let far = self.space.beside(found, found[MAX_MODELS] + (requests / 4).max(1));
        self.climb(Family::Hold, far, step);
    }

    /// Uphill from `start`, one coordinate after the other, with steps that are halved where nothing is better. Says
    /// where it ended.
    fn climb(&mut self, family: Family, start: Point, mut step: u32) -> Point {
        let coordinates = self.space.coordinates(family);
        let mut at = start;
        let mut top = self.enter(family, at);
        loop {
            let before = at;
            for &coordinate in &coordinates {
                for up in [true, false] {
                    let from = at;
                    while let Some(next) = self.space.moved(at, coordinate, up, step) {
                        if self.race.spent() > self.cap {
                            return at;
                        }
                        let index = self.enter(family, next);
                        if !self.race.better(index, top) {
                            break;
                        }
                        (at, top) = (next, index);
                    }
                    if at != from {
                        break;
                    }
                }
            }
            if at == before {
                if step == 1 {
                    return at;
                }
                step /= 2;
            }
        }
    }

    fn keeps(&mut self, family: Family, at: Point) -> bool {
        let index = self.enter(family, at);
        self.race.keeps(self.race.entrants[index].score)
    }

    fn enter(&mut self, family: Family, at: Point) -> usize {
        self.race.enter(self.space.policy(family, at), self.coarse)
    }

    /// The best of the rest join the final.
    fn add_finalists(&self, finalists: &mut Vec<usize>) {
        let mut rest: Vec<usize> = (0..self.race.entrants.len()).filter(|i| !finalists.contains(i)).collect();
        rest.sort_by(|&a, &b| self.race.compare(b, a));
        finalists.extend(rest.into_iter().take(FINALISTS - finalists.len().min(FINALISTS)));
    }

    /// Runs the final, for at most `cost` epochs, and says who has won.
    fn decide(&mut self, finalists: &[usize], full: u64, cost: f64) -> usize {
        // Few requests make many epochs of the same rows: the final is cut to what it may cost.
        let price: f64 = finalists.iter().map(|&i| self.race.price(i, full)).sum();
        let share = (cost / price).min(1.0);
        let rows = ((full as f64 * share) as u64).max(self.coarse);
        finalists.iter().for_each(|&i| self.race.extend(i, rows));
        let mut best = finalists[0];
        for &i in finalists {
            if self.race.better(i, best) {
                best = i;
            }
        }
        let top = self.race.entrants[best].score;
        let ties = |&&i: &&usize| {
            let score = self.race.entrants[i].score;
            self.race.keeps(score) && score.tokens_per_s >= top.tokens_per_s * (1.0 - TIE)
        };
        // The finalists are in the order of preference.
        if self.race.keeps(top) { finalists.iter().find(ties).copied().unwrap_or(best) } else { best }
    }
}
