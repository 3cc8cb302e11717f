//! Routers by name.

use super::factories;
use super::params::{ParamReader, RouterError, RouterSpec};
use super::{Budget, Budgeted, Online, Router};
use std::collections::BTreeMap;

/// Builds one router from its parameters.
pub type Factory = Box<dyn Fn(&mut ParamReader<'_>) -> Result<Box<dyn Router>, RouterError> + Send + Sync>;

/// Every router that configurations may name.
pub struct Registry {
    factories: BTreeMap<String, Factory>,
}

impl Registry {
    /// A registry without routers.
    pub fn empty() -> Self {
        Self { factories: BTreeMap::new() }
    }

    /// The routers of this crate:
    ///
    /// | name | parameters |
    /// | --- | --- |
    /// | `single` | `model`: index of the only model (default: the entry) |
    /// | `fixed` | `fraction`: share of positions the peer writes (0 to 1, required); `peer` |
    /// | `r2r` | `threshold`: the peer writes where score >= it (from the router file); `head`, `peer` |
    /// | `citer` | `threshold`: the peer writes where score < it (from the router file); `head`, `peer` |
    /// | `co-llm` | `threshold`: the peer writes where score > it (from the router file); `head`, `peer` |
    /// | `r-stitch` | `threshold`: normalised entropy, both ways (default 0.03); `peer` |
    /// | `me` | `weights`: one per model (default: all equal); `draw_at_admission` (default false) |
    /// | `query` | `fraction`: share of requests, or `threshold`: large where `query_score` >= it; `peer` |
    /// | `query` | `head`: large where this head's score of the prompt >= `threshold` (from the router file); `peer` |
    ///
    /// `peer` is the index of the other model and may be left out when exactly two models are configured. `head` is
    /// an index into the entry model's heads (default 0). Thresholds are numbers from 0 to 1, `always` or `never`.
    ///
    /// Every router, of this crate or not, also takes
    ///
    /// | parameter | meaning |
    /// | --- | --- |
    /// | `max_llm_fraction` | most of each answer that models beside the entry may write (0 to 1), see [`Budgeted`] |
    /// | `deployment_fraction` | the same over all requests of the route together, see [`Online`] |
    /// | `target_share` | share of tokens for which to choose the threshold while serving, see [`Online`] |
    pub fn builtin() -> Self {
        let mut registry = Self::empty();
        registry.factories.extend(factories::builtin().map(|(name, factory)| (name.to_owned(), factory)));
        registry
    }

    /// Adds a router under a new name.
    pub fn register<F>(&mut self, name: &str, factory: F) -> Result<(), RouterError>
    where
        F: Fn(&mut ParamReader<'_>) -> Result<Box<dyn Router>, RouterError> + Send + Sync + 'static,
    {
        if self.factories.contains_key(name) {
            return Err(RouterError::Duplicate { name: name.to_owned() });
        }
        self.factories.insert(name.to_owned(), Box::new(factory));
        Ok(())
    }

    /// The names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.factories.keys().map(String::as_str)
    }

    /// Builds the router `name`, within a [`Budgeted`]. Unknown names, unknown keys and bad values are refused with
    /// what would be right.
    pub fn build(&self, name: &str, spec: &RouterSpec<'_>) -> Result<Box<dyn Router>, RouterError> {
        let Some(factory) = self.factories.get(name) else {
            let known = self.names().map(str::to_owned).collect();
            return Err(RouterError::UnknownRouter { name: name.to_owned(), known });
        };
        let mut params = ParamReader::new(name, spec);
        let router = factory(&mut params)?;
        let budget = params.share("max_llm_fraction")?.and_then(Budget::new);
        let deployment = params.share("deployment_fraction")?.and_then(Budget::new);
        let target_share = params.share("target_share")?;
        if target_share.is_some() && router.gauge().is_none() {
            return Err(params.models("`target_share` chooses a threshold, but it compares nothing with one"));
        }
        params.finish()?;
        let online = Online { target_share, deployment };
        Ok(Box::new(Budgeted::new(router, budget).learning(online)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::params::{HeadInfo, ParamValue};
    use super::super::{Direction, SignalSet, Single, Threshold};
    use super::*;
    use crate::ids::{ModelId, ModelSet};

    fn build(name: &str, models: usize, params: &[(&str, ParamValue)]) -> Result<Box<dyn Router>, String> {
        let params = params.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect();
        let spec = RouterSpec { models, entry: ModelId(0), vocab: &[], heads: None, params };
        Registry::builtin().build(name, &spec).map_err(|e| e.to_string())
    }

    fn refusal(name: &str, models: usize, params: &[(&str, ParamValue)]) -> String {
        match build(name, models, params) {
            Ok(_) => panic!("{name} {models} {params:?} was accepted"),
            Err(message) => message,
        }
    }

    #[test]
    fn builtin_routers_are_built() {
        let single = build("single", 3, &[("model", ParamValue::Int(2))]).unwrap();
        assert_eq!((single.entry(), single.reach()), (ModelId(2), ModelSet::of(ModelId(2))));
        let fixed = build("fixed", 2, &[("fraction", ParamValue::Float(0.5))]).unwrap();
        assert_eq!((fixed.entry(), fixed.reach()), (ModelId(0), ModelSet::first(2)));
        for value in [ParamValue::Float(0.02), ParamValue::Int(1), ParamValue::Text("never".into())] {
            let router = build("r-stitch", 2, &[("threshold", value)]).unwrap();
            assert_eq!(router.reach(), ModelSet::first(2));
        }
        let wide = build("r-stitch", 3, &[("peer", ParamValue::Int(2))]).unwrap();
        assert!(wide.reach().contains(ModelId(2)) && !wide.reach().contains(ModelId(1)));
    }

    #[test]
    fn unknown_names_and_keys_are_refused_with_a_suggestion() {
        let e = refusal("rstich", 2, &[]);
        assert!(
            e.contains("`rstich`") && e.contains("did you mean `r-stitch`?") && e.contains("fixed"),
            "{e}"
        );
        let e = refusal("r-stitch", 2, &[("treshold", ParamValue::Float(0.1))]);
        assert!(e.contains("`treshold`") && e.contains("did you mean `threshold`?"), "{e}");
        let e = refusal("single", 2, &[("fraction", ParamValue::Float(0.1))]);
        assert!(e.contains("`fraction`") && e.contains("known: model"), "{e}");
    }

    #[test]
    fn bad_values_are_refused_with_what_would_be_right() {
        let cases: &[(&str, usize, &str, ParamValue, &str)] = &[
            ("fixed", 2, "fraction", ParamValue::Text("half".into()), "\"half\""),
            ("fixed", 2, "fraction", ParamValue::Float(1.5), "from 0 to 1"),
            ("fixed", 2, "fraction", ParamValue::Float(f64::NAN), "from 0 to 1"),
            ("r-stitch", 2, "threshold", ParamValue::Bool(true), "`never`"),
            ("r-stitch", 2, "threshold", ParamValue::Text("often".into()), "`always`"),
            ("r-stitch", 2, "threshold", ParamValue::Float(f64::NAN), "`always`"),
            ("r-stitch", 2, "peer", ParamValue::Int(0), "entry model itself"),
            ("r-stitch", 2, "peer", ParamValue::Int(2), "index below 2"),
            ("single", 2, "model", ParamValue::Int(-1), "index below 2"),
            ("single", 2, "model", ParamValue::Float(1.0), "index below 2"),
        ];
        for (router, models, key, value, expected) in cases {
            let e = refusal(router, *models, &[(key, value.clone())]);
            assert!(e.contains(router) && e.contains(key) && e.contains(expected), "{e}");
        }
        assert!(refusal("fixed", 2, &[]).contains("missing"));
        assert!(refusal("r-stitch", 1, &[]).contains("two models"));
        assert!(refusal("r-stitch", 3, &[]).contains("`peer`"));
    }

    #[test]
    fn every_algorithm_is_built_by_name_and_takes_the_common_parameters() {
        let number = ParamValue::Float(0.4);
        let common = [
            ("max_llm_fraction", ParamValue::Float(0.25)),
            ("deployment_fraction", ParamValue::Int(1)),
            ("target_share", ParamValue::Float(0.5)),
        ];
        for name in ["r2r", "citer", "co-llm", "r-stitch"] {
            let params: Vec<_> = [("threshold", number.clone())].into_iter().chain(common.clone()).collect();
            let router = build(name, 2, &params).unwrap();
            assert_eq!((router.name(), router.reach()), (name, ModelSet::first(2)));
            assert_eq!(router.terms().budget, Budget::new(0.25));
            let online = Online { target_share: Some(0.5), deployment: Some(Budget::WHOLE) };
            assert_eq!(router.online(), online);
        }
        let weights = ParamValue::List([5, 3, 0].map(ParamValue::Int).into());
        let drawn = [("weights", weights), ("draw_at_admission", ParamValue::Bool(true))];
        assert_eq!(build("me", 3, &drawn).unwrap().reach(), ModelSet::first(2));
        assert_eq!(build("me", 3, &[]).unwrap().reach(), ModelSet::first(3));
        for choice in ["fraction", "threshold"] {
            assert_eq!(build("query", 2, &[(choice, number.clone())]).unwrap().reach(), ModelSet::first(2));
        }
        let by_head = [("head", ParamValue::Int(1)), ("threshold", number)];
        assert_eq!(build("query", 2, &by_head).unwrap().signals(), SignalSet::score(1));
    }

    #[test]
    fn parameters_of_the_algorithms_are_refused_with_what_would_be_right() {
        let list = |values: &[f64]| ParamValue::List(values.iter().map(|&v| ParamValue::Float(v)).collect());
        type Case<'a> = (&'a str, &'a [(&'a str, ParamValue)], &'a str);
        let cases: &[Case<'_>] = &[
            ("me", &[("weights", list(&[1.0]))], "[1], but must be 2 numbers"),
            ("me", &[("weights", list(&[1.0, 0.0]))], "at least two weights above 0"),
            ("me", &[("weights", list(&[1.0, -1.0]))], "at least 0"),
            ("me", &[("weights", list(&[1.0, f64::INFINITY]))], "finite"),
            ("me", &[("weights", ParamValue::Float(0.5))], "a list of numbers"),
            ("me", &[("draw_at_admission", ParamValue::Int(1))], "true or false"),
            ("me", &[("target_share", ParamValue::Float(0.1))], "compares nothing"),
            ("query", &[], "is needed"),
            ("query", &[("fraction", ParamValue::Float(1.5))], "from 0 to 1"),
            (
                "query",
                &[("fraction", ParamValue::Float(0.5)), ("threshold", ParamValue::Float(0.5))],
                "exclude each other",
            ),
            ("query", &[("fraction", ParamValue::Float(0.5)), ("head", ParamValue::Int(0))], "router file"),
            ("query", &[("head", ParamValue::Int(0))], "`threshold` is missing"),
            ("r2r", &[("threshold", ParamValue::Float(1.5))], "from 0 to 1"),
            ("r-stitch", &[("threshold", ParamValue::Float(-0.5))], "from 0 to 1"),
            ("r2r", &[("head", ParamValue::Int(4))], "an index below 4"),
            ("r-stitch", &[("max_llm_fraction", ParamValue::Float(2.0))], "from 0 to 1"),
            ("single", &[("deployment_fraction", ParamValue::Text("half".into()))], "from 0 to 1"),
        ];
        for (router, params, expected) in cases {
            let e = refusal(router, 2, params);
            assert!(e.contains(router) && e.contains(expected), "{e}");
        }
        assert!(refusal("me", 1, &[]).contains("two models"));
    }

    #[test]
    fn a_head_of_the_wrong_kind_or_direction_is_refused() {
        let info = |kind: &str, direction, stored: f32| HeadInfo {
            kind: kind.to_owned(),
            threshold: Some(Threshold::Value(stored)),
            direction,
        };
        let refused = |heads: Vec<HeadInfo>| {
            let heads = [heads, vec![info("r2r", Direction::AtLeast, 0.5)]];
            let spec = RouterSpec { models: 2, heads: Some(&heads), ..RouterSpec::default() };
            Registry::builtin().build("r2r", &spec).err().map(|e| e.to_string())
        };
        assert_eq!(refused(vec![info("r2r", Direction::AtLeast, 0.5)]), None);
        let cases = [
            (vec![], "which has 0 heads"),
            (vec![info("citer", Direction::Below, 0.5)], "of kind `citer`, not `r2r`"),
            (vec![info("r2r", Direction::Above, 0.5)], "compares by `>`, but `r2r` compares by `>=`"),
            (vec![info("r2r", Direction::AtLeast, 7.0)], "stores the threshold 7"),
        ];
        for (heads, expected) in cases {
            let error = refused(heads).unwrap();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn outsiders_register_and_cannot_take_a_name_twice() {
        let mut registry = Registry::builtin();
        let factory = |params: &mut ParamReader<'_>| -> Result<Box<dyn Router>, RouterError> {
            Ok(Box::new(Single::new(params.spec().entry)))
        };
        registry.register("mine", factory).unwrap();
        assert!(registry.build("mine", &RouterSpec::default()).is_ok());
        let error = registry.register("single", factory).unwrap_err();
        assert!(error.to_string().contains("`single`"));
    }
}
