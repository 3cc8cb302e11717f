//! Routes of scenarios, as data: every built-in router, alone, within a budget, and learning.

use super::random::Random;
use super::random_router::RandomRouter;
use crate::config::NewRequest;
use crate::event::MAX_HEADS;
use crate::ids::{MAX_MODELS, ModelId};
use crate::router::{
    Budget, Budgeted, Choice, Fixed, HeadKind, Mixture, Online, Query, RStitch, Router, Scored, Single,
    Source, Threshold,
};

const A: ModelId = ModelId(0);
const B: ModelId = ModelId(1);

/// A router of a scenario, as data. Those of two models work between models 0 and 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RouteKind {
    /// [`RandomRouter`].
    Random {
        /// Its seed.
        seed: u64,
        /// Chance to move.
        moves: f64,
        /// Chance to drop when moving.
        drops: f64,
    },
    /// `single` at a model.
    Single(ModelId),
    /// `fixed`.
    Fixed(f64),
    /// `r-stitch`.
    RStitch(Threshold),
    /// `r2r`, `citer` or `co-llm`.
    Scored {
        /// Which of them.
        kind: HeadKind,
        /// The head.
        head: u8,
        /// The threshold.
        threshold: Threshold,
    },
    /// `me`.
    Mixture {
        /// One weight per model; the models beyond have none.
        weights: [f64; MAX_MODELS],
        /// Whether the first token is drawn too.
        draw_at_admission: bool,
    },
    /// `query`.
    Query(Choice),
}

/// A route of a scenario.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimRoute {
    /// The router.
    pub kind: RouteKind,
    /// Its `max_llm_fraction`.
    pub budget: Option<Budget>,
    /// What it learns.
    pub online: Online,
}

impl From<RouteKind> for SimRoute {
    fn from(kind: RouteKind) -> Self {
        Self { kind, budget: None, online: Online::default() }
    }
}

impl SimRoute {
    /// Builds the router, over the first `models` models.
    pub fn build(&self, models: usize) -> Box<dyn Router> {
        Box::new(Budgeted::new(self.kind.build(models), self.budget).learning(self.online))
    }

    /// One of the algorithms, for at least two models.
    pub(super) fn random(random: &mut Random, models: usize) -> Self {
        let share = |random: &mut Random| random.range(0, 10) as f32 / 10.0;
        let threshold = |random: &mut Random| match random.range(0, 9) {
            0 => Threshold::Always,
            1 => Threshold::Never,
            _ => Threshold::Value(share(random)),
        };
        let kind = match random.range(0, 7) {
            0 => RouteKind::Query(Choice::Share(share(random))),
            1 if random.chance(0.5) => RouteKind::Query(Choice::Score(threshold(random))),
            1 => RouteKind::Query(Choice::Head {
                head: random.range(0, MAX_HEADS as u64 - 1) as u8,
                threshold: threshold(random),
                source: Source::Config,
            }),
            2 | 3 => {
                RouteKind::Mixture { weights: weights(random, models), draw_at_admission: random.chance(0.5) }
            }
            4 => RouteKind::RStitch(threshold(random)),
            _ => RouteKind::Scored {
                kind: HeadKind::OF_TOKENS[random.size(0, 2)],
                head: random.range(0, MAX_HEADS as u64 - 1) as u8,
                threshold: threshold(random),
            },
        };
        let learns = matches!(kind, RouteKind::Scored { .. } | RouteKind::RStitch(_)) && random.chance(0.2);
        let online = Online {
            target_share: learns.then(|| share(random)),
            deployment: random.chance(0.2).then(|| share(random)).and_then(Budget::new),
        };
        let budget = random.chance(0.2).then(|| share(random)).and_then(Budget::new);
        Self { kind, budget, online }
    }
}

/// At least two of them above zero.
fn weights(random: &mut Random, models: usize) -> [f64; MAX_MODELS] {
    let mut weights = [0.0; MAX_MODELS];
    weights[..models].iter_mut().for_each(|w| *w = random.range(0, 5) as f64);
    let (first, second) = (random.size(0, models - 1), random.size(1, models - 1));
    weights[first] += 1.0;
    weights[(first + second) % models] += 1.0;
    weights
}

/// What requests say to the algorithms.
pub(super) fn dress(random: &mut Random, request: &mut NewRequest, route: &SimRoute) {
    let score = random.range(0, 1_000) as f32 / 1_000.0;
    request.query_score = Some(score);
    request.max_llm_fraction = random.chance(0.3).then(|| random.range(0, 10) as f32 / 10.0);
    if matches!(route.kind, RouteKind::Mixture { .. }) {
        request.threshold = request.threshold.filter(|t| !matches!(t, Threshold::Value(_)));
    }
}

impl RouteKind {
    /// Builds the router, over the first `models` models.
    pub fn build(&self, models: usize) -> Box<dyn Router> {
        match *self {
            Self::Random { seed, moves, drops } => Box::new(RandomRouter::new(seed, models, moves, drops)),
            Self::Single(model) => Box::new(Single::new(model)),
            Self::Fixed(fraction) => Box::new(Fixed::new(A, B, fraction)),
            Self::RStitch(threshold) => Box::new(RStitch::new(A, B, threshold)),
            Self::Scored { kind, head, threshold } => {
                Box::new(Scored::new(kind, [A, B], head, (threshold, Source::Config)))
            }
            Self::Mixture { weights, draw_at_admission } => {
                match Mixture::new(A, &weights, draw_at_admission) {
                    Ok(router) => Box::new(router),
                    // A scenario with weights that are none: the entry writes alone.
                    Err(_) => Box::new(Single::new(A)),
                }
            }
            Self::Query(choice) => Box::new(Query::new([A, B], choice)),
        }
    }
}
