//! On what terms a request is served: fixed once, at submit, from the request, what the route has learned, the
//! configuration and the router file, in this order.

use super::{Core, Route};
use crate::config::{NewRequest, SubmitError};
use crate::event::Usage;
use crate::ids::{ModelId, RouteId};
use crate::online::{Calibrator, Purse};
use crate::router::{Budget, EntryRow, RouteRow, Router, Source, Terms};

/// What a route learns while it serves; nothing unless configured.
#[derive(Default)]
pub(super) struct Learner {
    calibrator: Option<Calibrator>,
    purse: Option<Purse>,
}

impl Learner {
    pub(super) fn of(router: &dyn Router) -> Self {
        let online = router.online();
        let calibrator =
            online.target_share.zip(router.gauge()).map(|(share, gauge)| Calibrator::new(share, gauge));
        Self { calibrator, purse: online.deployment.map(Purse::new) }
    }
}

impl Route {
    /// The terms of a request and the model that starts it. Nothing is learned or spent.
    pub(super) fn settle_terms(&self, new: &NewRequest) -> Result<(Terms, ModelId), SubmitError> {
        let standing = self.router.terms();
        if let Some(threshold) = new.threshold.filter(|&t| !t.is_number() || !self.router.accepts(t)) {
            return Err(match threshold.is_number() {
                true => SubmitError::ThresholdRefused { threshold },
                false => SubmitError::ThresholdNotANumber,
            });
        }
        let own = match new.max_llm_fraction {
            None => None,
            Some(fraction) => {
                Some(Budget::new(fraction).ok_or(SubmitError::FractionOutOfRange { fraction })?)
            }
        };
        let calibrated = || self.learner.calibrator.as_ref().and_then(Calibrator::threshold);
        let threshold = match new.threshold {
            Some(threshold) => Some((threshold, Source::Request)),
            None => calibrated().map(|t| (t, Source::Calibrated)).or(standing.threshold),
        };
        let offered = self.learner.purse.map(|purse| purse.offer(new.max_new_tokens));
        let budget = Budget::tighter(Budget::tighter(own, standing.budget), offered);
        let row = EntryRow {
            position: new.prompt.len() as u32,
            threshold: threshold.map(|(threshold, _)| threshold),
            budget,
            query_score: new.query_score,
            seed: new.seed,
            choice: new.choice,
        };
        let entry = self.router.entry_for(&row).ok_or(SubmitError::NoQueryScore { route: new.route })?;
        if !self.reach.contains(entry) {
            return Err(SubmitError::EntryOutOfReach { entry });
        }
        Ok((Terms { threshold, budget }, entry))
    }
}

impl Core {
    /// What a request of the route gets that says nothing, from the configuration and the router file: for a log line.
    pub fn terms(&self, route: RouteId) -> Option<Terms> {
        self.routes.get(usize::from(route.0)).map(|route| route.router.terms())
    }

    /// A request is accepted on these terms.
    pub(super) fn spend(&mut self, new: &NewRequest, terms: Terms) {
        let route = &mut self.routes[usize::from(new.route.0)];
        if let (Some(purse), Some(budget)) = (&mut route.learner.purse, terms.budget) {
            purse.take(budget, new.max_new_tokens);
        }
    }

    /// The router of `route` has compared these rows with its threshold.
    pub(super) fn learn(route: &mut Route, rows: &[RouteRow]) {
        let Some(calibrator) = &mut route.learner.calibrator else { return };
        let Some(gauge) = route.router.gauge() else { return };
        for row in rows.iter().filter(|row| gauge.compares(row.generated)) {
            calibrator.observe(row.model == route.entry, gauge.read(&row.signals));
        }
    }

    /// A request of `route` has ended.
    pub(super) fn settle_purse(&mut self, route: RouteId, max_new_tokens: u32, usage: &Usage) {
        let route = &mut self.routes[usize::from(route.0)];
        if let (Some(purse), Some(budget)) = (&mut route.learner.purse, usage.terms.budget) {
            purse.settle(budget, max_new_tokens, usage, route.entry);
        }
    }
}
