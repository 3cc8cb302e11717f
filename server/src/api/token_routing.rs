//! The `token_routing` object of a request: what it wants to know, and which route, threshold and budget it wants, within
//! what the operator allows (`[request_limits]`).
//!
//! `router` names another configured route, by its served name or its algorithm; `pin` names one of the models of the
//! route, which then writes alone. Both leave `model` in the answer as the client asked for it. An unknown key is refused:
//! these are ours.

use serde_json::Value;
use tokenrouter_scheduler::{RouteId, Threshold};

use crate::api::ApiError;
use crate::api::fields::Fields;
use crate::api::models::ServedRoute;
use crate::api::request::{ApiLimits, RoutingReturn};
use crate::config::ThresholdLimit;

const NAME: &str = "token_routing";
const KEYS: [&str; 6] = ["return", "threshold", "max_llm_fraction", "query_score", "router", "pin"];

/// What requests may set about routing.
#[derive(Clone, Debug, PartialEq)]
pub struct RoutingLimits {
    /// Whether, or between which numbers, a request may bring a threshold.
    pub threshold: ThresholdLimit,
    /// The largest share of an answer by models beside the entry, on routes with several models; a request may ask for
    /// less.
    pub max_llm_fraction: Option<f32>,
    /// Whether a request may name another route.
    pub router: bool,
    /// The routes; the index is the [`RouteId`].
    pub routes: Vec<ServedRoute>,
}

impl Default for RoutingLimits {
    fn default() -> Self {
        Self {
            threshold: ThresholdLimit::Allowed(true),
            max_llm_fraction: None,
            router: true,
            routes: Vec::new(),
        }
    }
}

/// What `token_routing` asks for.
#[derive(Debug, PartialEq)]
pub(crate) struct TokenRouting {
    /// The route that answers.
    pub(crate) route: RouteId,
    pub(crate) back: RoutingReturn,
    pub(crate) threshold: Option<Threshold>,
    /// The request's own budget, or the operator's cap.
    pub(crate) max_llm_fraction: Option<f32>,
    pub(crate) query_score: Option<f32>,
}

/// Reads the object; `route` is the one that `model` named.
pub(crate) fn token_routing(
    fields: &Fields<'_>,
    limits: &ApiLimits,
    route: RouteId,
) -> Result<TokenRouting, ApiError> {
    let empty = serde_json::Map::new();
    let map = fields.object(NAME)?.unwrap_or(&empty);
    if map.keys().any(|key| !KEYS.contains(&key.as_str())) {
        let message = format!("token_routing has an unknown key; known are {}", KEYS.join(", "));
        return Err(ApiError::invalid(NAME, message));
    }
    let inner = Fields::nested(map, "token_routing.");
    let back = match inner.text("return")? {
        None => RoutingReturn::None,
        Some(text) => RoutingReturn::parse(text)
            .ok_or_else(|| inner.invalid("return", "`none`, `summary` or `tokens`"))?,
    };
    let route = other_route(&inner, &limits.routing, route)?;
    Ok(TokenRouting {
        route,
        back,
        threshold: threshold(&inner, limits.routing.threshold)?,
        max_llm_fraction: budget(&inner, &limits.routing, route)?,
        query_score: inner.number("query_score", 0.0..=1.0)?,
    })
}

/// The route that `router` or `pin` names, else the one that `model` did.
fn other_route(inner: &Fields<'_>, limits: &RoutingLimits, route: RouteId) -> Result<RouteId, ApiError> {
    let position = |is: &dyn Fn(&ServedRoute) -> bool| {
        let index = limits.routes.iter().position(is)?;
        u16::try_from(index).ok().map(RouteId)
    };
    match (inner.text("router")?, inner.text("pin")?) {
        (None, None) => Ok(route),
        (Some(_), Some(_)) => Err(inner.invalid("pin", "absent when token_routing.router is given")),
        (Some(_), None) if !limits.router => {
            Err(refused(inner, "router", "not given: this server's request_limits.router is false"))
        }
        (Some(name), None) => {
            let found = position(&|r| r.name == name).or_else(|| position(&|r| r.algorithm == name));
            let names: Vec<&str> = limits.routes.iter().map(|r| r.name.as_str()).collect();
            found.ok_or_else(|| inner.invalid("router", &format!("a configured route: {}", names.join(", "))))
        }
        (None, Some(name)) => {
            let members = limits.routes.get(usize::from(route.0)).map_or(&[][..], |r| r.models.as_slice());
            let names: Vec<&str> = members.iter().map(|m| m.name.as_str()).collect();
            let wrong = || inner.invalid("pin", &format!("a model of the route: {}", names.join(", ")));
            let index = members.iter().find(|m| m.name == name).map(|m| m.index).ok_or_else(wrong)?;
            let alone = |r: &ServedRoute| matches!(r.models.as_slice(), [only] if only.index == index);
            position(&alone).ok_or_else(wrong)
        }
    }
}

fn threshold(inner: &Fields<'_>, limit: ThresholdLimit) -> Result<Option<Threshold>, ApiError> {
    let asked = match inner.get("threshold") {
        None => return Ok(None),
        Some(Value::String(word)) if word == "always" => Threshold::Always,
        Some(Value::String(word)) if word == "never" => Threshold::Never,
        Some(value) => {
            let number = value.as_f64().map(|number| number as f32).filter(|number| number.is_finite());
            Threshold::Value(
                number.ok_or_else(|| inner.invalid("threshold", "a number, `always` or `never`"))?,
            )
        }
    };
    match (limit, asked) {
        (ThresholdLimit::Allowed(true), _) => Ok(Some(asked)),
        (ThresholdLimit::Between([low, high]), Threshold::Value(number))
            if (low..=high).contains(&number) =>
        {
            Ok(Some(asked))
        }
        (ThresholdLimit::Between([low, high]), _) => {
            let right = format!("a number from {low} to {high} (this server's request_limits.threshold)");
            Err(refused(inner, "threshold", &right))
        }
        (ThresholdLimit::Allowed(false), _) => {
            Err(refused(inner, "threshold", "not given: this server's request_limits.threshold is false"))
        }
    }
}

/// What the request asks for, at most the operator's cap; the cap where it asks for nothing.
fn budget(inner: &Fields<'_>, limits: &RoutingLimits, route: RouteId) -> Result<Option<f32>, ApiError> {
    let asked = inner.number("max_llm_fraction", 0.0..=1.0)?;
    let routed = limits.routes.get(usize::from(route.0)).is_some_and(|route| route.models.len() > 1);
    match (asked, limits.max_llm_fraction.filter(|_| routed)) {
        (Some(share), Some(cap)) if share > cap => {
            let right = format!("a number from 0 to {cap} (this server's request_limits.max_llm_fraction)");
            Err(refused(inner, "max_llm_fraction", &right))
        }
        (asked, cap) => Ok(asked.or(cap)),
    }
}

/// 400 that names the operator's limit.
fn refused(inner: &Fields<'_>, name: &str, right: &str) -> ApiError {
    ApiError { code: Some("request_limit"), ..inner.invalid(name, right) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::fixtures;
    use crate::text::fixtures as text;
    use serde_json::json;

    fn limits(change: impl FnOnce(&mut RoutingLimits)) -> ApiLimits {
        let mut limits = fixtures::limits(&text::demo(), 64);
        limits.routing.routes = fixtures::routes();
        limits.routing.routes.push(ServedRoute {
            name: "ensemble".into(),
            algorithm: "me".into(),
            ..fixtures::routes()[0].clone()
        });
        change(&mut limits.routing);
        limits
    }

    fn ask(limits: &ApiLimits, value: Value) -> Result<TokenRouting, ApiError> {
        let body = json!({"token_routing": value});
        token_routing(&Fields::new(body.as_object().expect("an object")), limits, RouteId(0))
    }

    #[test]
    fn another_route_by_name_or_by_algorithm_and_one_model_alone() {
        let limits = limits(|_| ());
        let route = |value: Value| ask(&limits, value).map(|asked| asked.route.0);
        assert_eq!(route(json!({})), Ok(0));
        assert_eq!(route(Value::Null), Ok(0));
        assert_eq!(route(json!({"router": "ensemble"})), Ok(3));
        assert_eq!(route(json!({"router": "me"})), Ok(3));
        assert_eq!(route(json!({"router": "large"})), Ok(2));
        assert_eq!(route(json!({"pin": "large"})), Ok(2));
        assert_eq!(route(json!({"pin": "small"})), Ok(1));
        for (value, part) in [
            (json!({"router": "nobody"}), "org/pair, small, large, ensemble"),
            (json!({"router": 1}), "a string"),
            (json!({"pin": "medium"}), "a model of the route: small, large"),
            (json!({"pin": "small", "router": "me"}), "absent when token_routing.router is given"),
            (json!({"rooter": "me"}), "unknown key"),
        ] {
            let error = ask(&limits, value.clone()).expect_err(part);
            assert!(error.status == 400 && error.message.contains(part), "{value}: {}", error.message);
        }
    }

    #[test]
    fn the_operators_limits_are_named() {
        let asks = [
            (
                json!({"threshold": 0.1}),
                json!({"threshold": 0.9}),
                "from 0.01 to 0.2 (this server's request_limits.threshold)",
            ),
            (json!({"threshold": 0.01}), json!({"threshold": "always"}), "request_limits.threshold"),
            (json!({"threshold": 0.2}), json!({"threshold": "never"}), "request_limits.threshold"),
            (
                json!({"max_llm_fraction": 0.25}),
                json!({"max_llm_fraction": 0.26}),
                "request_limits.max_llm_fraction",
            ),
            (json!({"pin": "small"}), json!({"router": "me"}), "request_limits.router is false"),
        ];
        let tight = limits(|l| {
            l.threshold = ThresholdLimit::Between([0.01, 0.2]);
            l.max_llm_fraction = Some(0.25);
            l.router = false;
        });
        let loose = limits(|_| ());
        for (within, beyond, part) in asks {
            assert!(ask(&tight, within.clone()).is_ok(), "{within}");
            assert!(ask(&loose, beyond.clone()).is_ok(), "{beyond}");
            let error = ask(&tight, beyond.clone()).expect_err(part);
            let param = beyond.as_object().and_then(|map| map.keys().next().cloned()).unwrap_or_default();
            assert_eq!((error.status, error.code), (400, Some("request_limit")));
            assert_eq!(error.param, Some(format!("token_routing.{param}")));
            assert!(error.message.contains(part), "{beyond}: {}", error.message);
        }
        let none = limits(|l| l.threshold = ThresholdLimit::Allowed(false));
        assert!(ask(&none, json!({"threshold": 0.1})).is_err_and(|e| e.message.contains("is false")));
        assert!(ask(&none, json!({"threshold": null})).is_ok());
    }

    #[test]
    fn the_cap_holds_for_routed_requests_that_ask_for_nothing() {
        let tight = limits(|l| l.max_llm_fraction = Some(0.25));
        let share = |value: Value| ask(&tight, value).expect("within").max_llm_fraction;
        assert_eq!(share(Value::Null), Some(0.25));
        assert_eq!(share(json!({"max_llm_fraction": 0.1})), Some(0.1));
        assert_eq!(share(json!({"router": "me"})), Some(0.25));
        // One model alone has nobody beside it.
        assert_eq!(share(json!({"pin": "large"})), None);
        assert_eq!(ask(&limits(|_| ()), Value::Null).expect("none").max_llm_fraction, None);
    }
}
