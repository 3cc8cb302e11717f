//! What an answer says about routing: who wrote how much.
//!
//! `routed_tokens` are committed tokens not written by the entry model, `routed_fraction` is their share of all
//! committed tokens (0 when there are none), `switches` counts handoffs in both directions. The committed tokens of
//! all models sum to `usage.completion_tokens`; discarded candidates are in neither.

use crate::api::models::ServedRoute;
use serde_json::{Map, Value, json};
use tokenrouter_scheduler::{MAX_MODELS, Threshold, Usage};

/// Counts over all choices of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RoutingCounts {
    committed: [u64; MAX_MODELS],
    discarded: [u64; MAX_MODELS],
    steps: [u64; MAX_MODELS],
    prefill: [u64; MAX_MODELS],
    switches: u64,
}

impl RoutingCounts {
    /// Adds one choice. `committed` replaces the engine's count when the answer was cut at a stop string.
    pub(crate) fn add(&mut self, usage: &Usage, committed: &[u32; MAX_MODELS]) {
        add(&mut self.committed, committed);
        add(&mut self.discarded, &usage.discarded);
        add(&mut self.steps, &usage.steps);
        add(&mut self.prefill, &usage.prefill);
        self.switches += u64::from(usage.handoffs);
    }

    fn routed(&self, route: &ServedRoute) -> u64 {
        let entry = self.committed.get(usize::from(route.entry)).copied().unwrap_or(0);
        self.committed.iter().sum::<u64>() - entry
    }

    /// The share of committed tokens that other models than the entry model wrote.
    pub(crate) fn routed_fraction(&self, route: &ServedRoute) -> f64 {
        let all: u64 = self.committed.iter().sum();
        if all == 0 { 0.0 } else { self.routed(route) as f64 / all as f64 }
    }

    /// The `token_routing` object.
    pub(crate) fn to_json(&self, route: &ServedRoute, threshold: Option<Threshold>) -> Value {
        let models: Vec<Value> = route
            .models
            .iter()
            .filter(|model| usize::from(model.index) < MAX_MODELS)
            .map(|model| {
                let index = usize::from(model.index);
                json!({
                    "index": model.index,
                    "name": model.name,
                    "committed_tokens": self.committed[index],
                    "discarded_tokens": self.discarded[index],
                    "forward_steps": self.steps[index],
                    "prefill_tokens": self.prefill[index],
                })
            })
            .collect();
        let mut object = Map::new();
        object.insert("algorithm".into(), route.algorithm.clone().into());
        object.insert("entry_model".into(), route.entry.into());
        if let Some(threshold) = threshold {
            object.insert("threshold".into(), threshold_json(threshold));
        }
        object.insert("models".into(), models.into());
        object.insert("routed_tokens".into(), self.routed(route).into());
        object.insert("routed_fraction".into(), self.routed_fraction(route).into());
        object.insert("switches".into(), self.switches.into());
        Value::Object(object)
    }
}

fn add(totals: &mut [u64; MAX_MODELS], more: &[u32; MAX_MODELS]) {
    totals.iter_mut().zip(more).for_each(|(total, &count)| *total += u64::from(count));
}

fn threshold_json(threshold: Threshold) -> Value {
    match threshold {
        // The shortest decimal that reads back as the same f32, not the digits of its f64 value.
        Threshold::Value(value) => value.to_string().parse::<f64>().map_or(Value::Null, Value::from),
        word => word.to_string().into(),
    }
}
