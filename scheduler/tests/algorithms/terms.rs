//! Which threshold wins, and that the answer says so.

use crate::drive::{A, config, fake, request, serve};
use std::collections::BTreeMap;
use tokenrouter_scheduler::router::{
    Direction, HeadInfo, ParamValue, Registry, RouterError, RouterSpec, Source, Terms,
};
use tokenrouter_scheduler::*;

fn build(
    name: &str,
    file: Option<f32>,
    params: &[(&str, ParamValue)],
) -> Result<Box<dyn Router>, RouterError> {
    let direction = match name {
        "r2r" | "query" => Direction::AtLeast,
        "citer" => Direction::Below,
        _ => Direction::Above,
    };
    let head = HeadInfo { kind: name.into(), threshold: file.map(Threshold::Value), direction };
    let heads = [vec![head], vec![]];
    let params: BTreeMap<String, ParamValue> =
        params.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect();
    let spec = RouterSpec { models: 2, entry: A, heads: Some(&heads), params, ..RouterSpec::default() };
    Registry::builtin().build(name, &spec)
}

#[test]
fn request_before_configuration_before_file_and_never_a_silent_default() {
    for name in ["r2r", "citer", "co-llm", "query"] {
        // That a file is there says to `query` that its head chooses.
        let head = [("head", ParamValue::Int(0))];
        let given = [head[0].clone(), ("threshold", ParamValue::Float(0.25))];
        let own = Some(Threshold::Value(0.75));
        for (file, config_, own, expected) in [
            (Some(0.5), &given[..], own, Some((0.75, Source::Request))),
            (Some(0.5), &given[..], None, Some((0.25, Source::Config))),
            (Some(0.5), &head, None, Some((0.5, Source::File))),
            (None, &given[..], None, Some((0.25, Source::Config))),
            (None, &head, None, None),
        ] {
            let Some((value, source)) = expected else {
                let error = build(name, file, config_).err().unwrap().to_string();
                assert!(error.contains("`threshold` is missing") && error.contains("router file"), "{error}");
                continue;
            };
            let router = build(name, file, config_).unwrap();
            let mut core = Core::new(config(2, Policy::Eager), vec![router]).unwrap();
            let answer =
                serve(&mut core, vec![NewRequest { threshold: own, ..request(3, 9) }], &fake).remove(0);
            assert_eq!(answer.usage.terms.threshold, Some((Threshold::Value(value), source)), "{name}");
        }
        let router = build(name, Some(0.5), &head).unwrap();
        let core = Core::new(config(2, Policy::Eager), vec![router]).unwrap();
        let line = core.terms(RouteId(0)).unwrap().to_string();
        assert_eq!(line, "threshold 0.5 from the router file");
        assert_eq!(core.terms(RouteId(1)), None);
    }
    let stitch = build("r-stitch", None, &[]).unwrap().terms();
    assert_eq!(stitch, Terms { threshold: Some((Threshold::Value(0.03), Source::Published)), budget: None });
}

#[test]
fn a_request_cannot_bring_a_threshold_that_means_nothing() {
    let weights = ParamValue::List(vec![ParamValue::Int(1), ParamValue::Float(0.5)]);
    let routes =
        vec![build("r2r", Some(0.5), &[]).unwrap(), build("me", None, &[("weights", weights)]).unwrap()];
    let mut core = Core::new(config(2, Policy::Eager), routes).unwrap();
    let mut submit = |route, threshold| {
        let new = NewRequest { route: RouteId(route), threshold: Some(threshold), ..request(3, 9) };
        core.submit(0, new).map(drop).map_err(|e| e.to_string())
    };
    for bad in [-0.1, 1.5, f32::INFINITY] {
        let error = submit(0, Threshold::Value(bad)).unwrap_err();
        assert!(error.contains(&bad.to_string()) && error.contains("from 0 to 1"), "{error}");
    }
    assert!(submit(0, Threshold::Value(f32::NAN)).unwrap_err().contains("not a number"));
    assert!(submit(1, Threshold::Value(0.5)).unwrap_err().contains("means nothing"));
    assert_eq!(submit(1, Threshold::Always), Ok(()));
    assert_eq!(submit(0, Threshold::Value(1.0)), Ok(()));
}
