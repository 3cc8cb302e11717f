//! Shared by the tests of this module.

use crate::api::{AnswerContext, ApiLimits, ServedModel, ServedRoute};
use crate::text::TextModel;
use std::sync::Arc;

fn model(index: u8, role: &'static str) -> ServedModel {
    let name = if index == 0 { "small" } else { "large" };
    ServedModel { index, name: name.into(), role }
}

/// A pair and its members.
pub(crate) fn routes() -> Vec<ServedRoute> {
    let single = |index: u8, name: &str| ServedRoute {
        name: name.into(),
        algorithm: "single".into(),
        entry: index,
        models: vec![model(index, "entry")],
    };
    let models = vec![model(0, "entry"), model(1, "peer")];
    let pair = ServedRoute { name: "org/pair".into(), algorithm: "r-stitch".into(), entry: 0, models };
    vec![pair, single(0, "small"), single(1, "large")]
}

pub(crate) fn limits(text: &TextModel, context_len: usize) -> ApiLimits {
    let mut limits =
        ApiLimits::new(text, context_len, routes().into_iter().map(|route| route.name).collect());
    limits.routing.routes = routes();
    limits
}

pub(crate) fn context(text: &Arc<TextModel>) -> Arc<AnswerContext> {
    Arc::new(AnswerContext {
        text: Arc::clone(text),
        eos_ids: text.eos_ids().to_vec(),
        routes: routes(),
        models: vec!["small".into(), "large".into()],
        prices: Vec::new(),
        system_fingerprint: "fp_test".into(),
    })
}
