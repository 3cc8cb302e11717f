//! What an answer says about routing: who wrote how much, and where the time went. `docs/routing-info.md` defines every
//! field, and the tests here hold the identities between them.

use crate::api::models::ServedRoute;
use serde_json::{Map, Value, json};
use tokenrouter_scheduler::router::{Source, Terms};
use tokenrouter_scheduler::{MAX_MODELS, Nanos, Threshold, Usage};

/// Sums of one model.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sums {
    committed: u64,
    discarded: u64,
    steps: u64,
    fed: u64,
    prefill: u64,
    cached: u64,
    queue: Nanos,
    pending: Nanos,
    compute: Nanos,
}

/// Counts over all choices of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RoutingCounts {
    models: [Sums; MAX_MODELS],
    switches: u64,
    waiting: Nanos,
    /// Of the first choice.
    terms: Option<Terms>,
    degraded: bool,
}

impl RoutingCounts {
    /// Adds one choice. `committed` replaces the engine's count when the answer was cut at a stop string.
    pub(crate) fn add(&mut self, usage: &Usage, committed: &[u32; MAX_MODELS]) {
        for (m, sums) in self.models.iter_mut().enumerate() {
            sums.committed += u64::from(committed[m]);
            sums.discarded += u64::from(usage.discarded[m]);
            sums.steps += u64::from(usage.steps[m]);
            sums.fed += u64::from(usage.fed[m]);
            sums.prefill += u64::from(usage.prefill[m]);
            sums.cached += u64::from(usage.cached[m]);
            sums.queue += usage.spent.queue_ns[m];
            sums.pending += usage.spent.pending_ns[m];
            sums.compute += usage.spent.compute_ns[m];
        }
        self.switches += u64::from(usage.handoffs);
        self.waiting += usage.spent.waiting(usage.times.finished.unwrap_or_default());
        self.terms = self.terms.or(Some(usage.terms));
        self.degraded |= usage.degraded;
    }

    fn committed(&self) -> u64 {
        self.models.iter().map(|sums| sums.committed).sum()
    }

    fn routed(&self, route: &ServedRoute) -> u64 {
        let entry = self.models.get(usize::from(route.entry)).map_or(0, |sums| sums.committed);
        self.committed() - entry
    }

    /// The share of committed tokens that other models than the entry model wrote.
    pub(crate) fn routed_fraction(&self, route: &ServedRoute) -> f64 {
        let all = self.committed();
        if all == 0 { 0.0 } else { self.routed(route) as f64 / all as f64 }
    }

    /// A lost model's place was taken by others.
    pub(crate) fn is_degraded(&self) -> bool {
        self.degraded
    }

    /// The `token_routing` object. `prices` are those of a million tokens fed, by model.
    pub(crate) fn to_json(&self, route: &ServedRoute, prices: &[Option<f64>]) -> Value {
        let known = || route.models.iter().filter(|model| usize::from(model.index) < MAX_MODELS);
        let models: Vec<Value> = known()
            .map(|model| {
                let sums = &self.models[usize::from(model.index)];
                json!({
                    "index": model.index,
                    "name": model.name,
                    "committed_tokens": sums.committed,
                    "discarded_tokens": sums.discarded,
                    "forward_steps": sums.steps,
                    "fed_tokens": sums.fed,
                    "prefill_tokens": sums.prefill,
                    "cached_tokens": sums.cached,
                    "queue_ms": ms(sums.queue),
                    "pending_ms": ms(sums.pending),
                    "compute_ms": ms(sums.compute),
                })
            })
            .collect();
        let mut object = Map::new();
        object.insert("algorithm".into(), route.algorithm.clone().into());
        object.insert("entry_model".into(), route.entry.into());
        self.add_terms(&mut object);
        object.insert("models".into(), models.into());
        object.insert("routed_tokens".into(), self.routed(route).into());
        object.insert("routed_fraction".into(), self.routed_fraction(route).into());
        object.insert("switches".into(), self.switches.into());
        object.insert("waiting_ms".into(), ms(self.waiting).into());
        if let Some(cost) = self.cost(route, prices) {
            object.insert("cost".into(), cost);
        }
        if self.degraded {
            object.insert("degraded".into(), true.into());
        }
        Value::Object(object)
    }

    /// What the answer was routed by.
    fn add_terms(&self, object: &mut Map<String, Value>) {
        let Some(terms) = self.terms else { return };
        if let Some((threshold, source)) = terms.threshold {
            object.insert("threshold".into(), threshold_json(threshold));
            object.insert("threshold_from".into(), source_name(source).into());
        }
        if let Some(budget) = terms.budget {
            object.insert("max_llm_fraction".into(), decimal(budget.share()));
        }
    }

    /// Tokens fed times the configured prices; none unless every model of the route has one.
    fn cost(&self, route: &ServedRoute, prices: &[Option<f64>]) -> Option<Value> {
        let of = |index: u8| {
            let price = prices.get(usize::from(index)).copied().flatten()?;
            Some(self.models.get(usize::from(index))?.fed as f64 * price * 1e-6)
        };
        let costs: Vec<f64> = route.models.iter().map(|model| of(model.index)).collect::<Option<_>>()?;
        let total: f64 = costs.iter().sum();
        Some(json!({"unit": "price_per_million_fed_tokens", "total": total, "per_model": costs}))
    }
}

/// Writers one by one as runs: `[[model, tokens], ...]`.
pub(crate) fn spans(writers: &[u8]) -> Value {
    writers.chunk_by(|a, b| a == b).map(|run| json!([run[0], run.len()])).collect()
}

fn source_name(source: Source) -> &'static str {
    match source {
        Source::Request => "request",
        Source::Calibrated => "calibrated",
        Source::Config => "config",
        Source::File => "file",
        Source::Published => "published",
    }
}

fn ms(nanos: Nanos) -> f64 {
    // To the microsecond, so that it prints as people write it.
    (nanos / 1_000) as f64 / 1e3
}

fn threshold_json(threshold: Threshold) -> Value {
    match threshold {
        Threshold::Value(value) => decimal(value),
        word => word.to_string().into(),
    }
}

/// The shortest decimal that reads back as the same f32, not the digits of its f64 value.
fn decimal(value: f32) -> Value {
    value.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::fixtures;
    use tokenrouter_scheduler::router::Budget;
    use tokenrouter_scheduler::{Spent, Times};

    fn usage() -> Usage {
        let mut usage = Usage { completion_tokens: 5, handoffs: 3, ..Usage::default() };
        (usage.committed[0], usage.committed[1]) = (3, 2);
        (usage.discarded[0], usage.steps[0], usage.steps[1]) = (2, 6, 2);
        (usage.fed[0], usage.fed[1], usage.prefill[0], usage.cached[1]) = (14, 20, 9, 4);
        let mut spent = Spent::default();
        (spent.queue_ns[0], spent.compute_ns[0], spent.compute_ns[1]) = (1_000_000, 2_500_000, 4_000_000);
        spent.pending_ns[0] = 4_000_000;
        usage.spent = spent;
        usage.times = Times { finished: Some(8_000_000), ..Times::default() };
        usage.terms.threshold = Some((Threshold::Value(0.1), Source::Config));
        usage.terms.budget = Budget::new(0.25);
        usage
    }

    #[test]
    fn the_fields_keep_their_identities() {
        let routes = fixtures::routes();
        let mut counts = RoutingCounts::default();
        counts.add(&usage(), &usage().committed);
        // Cut at a stop string: one token of the second model less.
        let cut = [3, 1, 0, 0, 0, 0, 0, 0];
        counts.add(&usage(), &cut);
        let json = counts.to_json(&routes[0], &[Some(1.0), Some(8.0)]);
        let sum = |field: &str| -> f64 {
            json["models"].as_array().unwrap().iter().map(|model| model[field].as_f64().unwrap()).sum()
        };
        assert_eq!(sum("committed_tokens"), 9.0);
        assert_eq!((&json["routed_tokens"], json["routed_fraction"].as_f64()), (&json!(3), Some(3.0 / 9.0)));
        // Every millisecond of both choices is in a queue, in a batch, or before admission.
        let time = sum("queue_ms") + sum("compute_ms") + json["waiting_ms"].as_f64().unwrap();
        assert!((time - 16.0).abs() < 1e-9 && (sum("pending_ms") - 8.0).abs() < 1e-9, "{json}");
        assert_eq!((&json["threshold"], &json["threshold_from"]), (&json!(0.1), &json!("config")));
        assert_eq!((&json["max_llm_fraction"], &json["switches"]), (&json!(0.25), &json!(6)));
        let cost = &json["cost"];
        assert_eq!(cost["per_model"], json!([28.0 * 1e-6, 40.0 * 8.0 * 1e-6]));
        assert!((cost["total"].as_f64().unwrap() - 348e-6).abs() < 1e-12, "{json}");
        assert!(json.get("degraded").is_none());
    }

    #[test]
    fn without_all_prices_there_is_no_cost() {
        let routes = fixtures::routes();
        let mut counts = RoutingCounts::default();
        counts.add(&Usage { degraded: true, ..usage() }, &usage().committed);
        for prices in [&[][..], &[Some(1.0)], &[None, Some(1.0)]] {
            let json = counts.to_json(&routes[0], prices);
            assert!(json.get("cost").is_none());
            assert_eq!(json["degraded"], true);
        }
        assert!(counts.to_json(&routes[1], &[Some(2.0)]).get("cost").is_some(), "the small model alone");
    }

    #[test]
    fn spans_are_runs_of_one_writer() {
        assert_eq!(spans(&[]), json!([]));
        assert_eq!(spans(&[0, 0, 1, 0, 0, 0]), json!([[0, 2], [1, 1], [0, 3]]));
    }
}
