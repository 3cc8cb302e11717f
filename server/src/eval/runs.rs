//! Which routers are measured at which thresholds.

use tokenrouter_engine::{EngineInfo, RouteInfo};
use tokenrouter_scheduler::router::{Direction, HeadKind, calibrate, closest};
use tokenrouter_scheduler::{RouteId, Threshold};
use toml::Value;

use super::problems::Problem;
use super::setting::{Setting, blank};
use crate::config::Config;

/// The first model alone.
const SMALL: &str = "small";
/// The last model alone.
pub(super) const LARGE: &str = "large";
/// Routers that need no training, in the order in which they are shown.
const UNTRAINED: [&str; 4] = ["r-stitch", "me", QUERY, "fixed"];
/// Whole answers by one model.
const QUERY: &str = "query";
/// Shares of the large model for routers that are given one.
const SHARES: [f32; 4] = [0.05, 0.1, 0.2, 0.4];

/// One point of the table.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Run {
    /// `small`, `large`, or the router's name.
    pub(super) router: String,
    pub(super) route: RouteId,
    /// What the table calls the threshold: a threshold, a share or a weight.
    pub(super) shown: Option<Threshold>,
    /// What the requests bring.
    pub(super) threshold: Option<Threshold>,
}

/// What is asked for on the command line.
#[derive(Clone, Debug, Default)]
pub(super) struct Sweep {
    /// Names of routers or of served routes; empty: all.
    pub(super) routers: Vec<String>,
    /// For routers that compare; empty: a grid of their own.
    pub(super) thresholds: Vec<Threshold>,
    /// For routers that are given a share; empty: [`SHARES`].
    pub(super) shares: Vec<f32>,
}

impl Sweep {
    /// Reads the lists of the command line.
    ///
    /// # Errors
    /// The flag and the entry at fault.
    pub(super) fn parse(routers: &[String], thresholds: &[String], shares: &[f32]) -> Result<Self, String> {
        let threshold = |text: &String| {
            let threshold: Threshold = text.parse().map_err(|e| format!("--thresholds: {e}"))?;
            let wrong = || {
                format!("--thresholds has {threshold}; `always`, `never` or numbers from 0 to 1 are needed")
            };
            threshold.is_share().then_some(threshold).ok_or_else(wrong)
        };
        if let Some(bad) = shares.iter().find(|s| !(0.0..=1.0).contains(*s)) {
            return Err(format!("--shares has {bad}; numbers from 0 to 1 are needed"));
        }
        Ok(Sweep {
            routers: routers.to_vec(),
            thresholds: thresholds.iter().map(threshold).collect::<Result<_, _>>()?,
            shares: shares.to_vec(),
        })
    }

    /// Adds the large model alone to the routers that were asked for.
    pub(super) fn need_large(&mut self) {
        if !self.routers.is_empty() {
            self.routers.push(LARGE.into());
        }
    }

    fn shares(&self) -> &[f32] {
        if self.shares.is_empty() { &SHARES } else { &self.shares }
    }

    fn wants(&self, router: &str, served: &str) -> bool {
        self.routers.is_empty() || self.routers.iter().any(|r| r == router || r == served)
    }

    /// The routes that the sweep needs beside those of the configuration are added to it.
    ///
    /// # Errors
    /// A router of the command line that this deployment cannot have.
    pub(super) fn extend(&self, setting: &mut Setting) -> Result<(), String> {
        let config = &mut setting.config;
        if config.models.len() < 2 {
            return Err("one model is configured; routers are compared on two or more".into());
        }
        let by_head = config.routed().any(|r| r.router == QUERY && r.file.is_some());
        let plain = plain_query(by_head, &setting.problems);
        for router in UNTRAINED {
            let shown = if router == QUERY { plain } else { router };
            if !self.wants(shown, shown) {
                continue;
            }
            let configured =
                config.routed().any(|r| r.router == router && (router != QUERY || r.file.is_none()));
            match router {
                "me" => self.shares().iter().for_each(|share| add_mixture(config, *share)),
                _ if configured => {}
                QUERY if setting.problems.iter().all(|p| p.score.is_some()) => {
                    add(config, plain, QUERY, ("threshold", Value::Float(0.5)));
                }
                QUERY | "fixed" => add(config, shown, router, ("fraction", Value::Float(0.5))),
                _ => add(config, router, router, ("threshold", Value::String("never".into()))),
            }
        }
        self.check_names(config, plain)
    }

    fn check_names(&self, config: &Config, plain_query: &str) -> Result<(), String> {
        let mut known = vec![SMALL, LARGE, plain_query];
        known.extend(config.routed().flat_map(|r| [r.router, r.served]));
        known.extend(config.models.iter().map(|m| m.name.as_str()));
        known.dedup();
        for name in &self.routers {
            if known.contains(&name.as_str()) {
                continue;
            }
            if HeadKind::ALL.iter().any(|kind| kind.name() == name) {
                return Err(format!(
                    "--router {name} needs a router file: give --router-file DIR, or a [[route]] with `file` in the \
                     configuration"
                ));
            }
            let hint = closest(name, known.iter().copied()).map(|n| format!("; did you mean \"{n}\"?"));
            return Err(format!(
                "--router is \"{name}\"{} (known: {})",
                hint.unwrap_or_default(),
                known.join(", ")
            ));
        }
        Ok(())
    }

    /// The points to measure, each model alone first.
    ///
    /// # Errors
    /// When no point is left.
    pub(super) fn runs(&self, info: &EngineInfo, problems: &[Problem]) -> Result<Vec<Run>, String> {
        let last = info.models.len().saturating_sub(1);
        let mut runs = Vec::new();
        for (index, model) in info.models.iter().enumerate() {
            let between = format!("{} alone", model.name);
            let router = match index {
                0 => SMALL,
                i if i == last => LARGE,
                _ => &between,
            };
            let route = info.routes.iter().position(|r| r.name == model.name && r.router == "single");
            if let Some(route) = route.filter(|_| self.wants(router, &model.name)) {
                runs.push(Run {
                    router: router.into(),
                    route: RouteId(route as u16),
                    shown: None,
                    threshold: None,
                });
            }
        }
        let alone = |r: &RouteInfo| info.models.iter().any(|m| m.name == r.name);
        let plain = plain_query(info.routes.iter().any(compares_once), problems);
        for (index, route) in info.routes.iter().enumerate() {
            let is_plain = route.router == QUERY && !compares_once(route);
            let shown = if is_plain { plain } else { &route.router };
            if !alone(route) && self.wants(shown, &route.name) {
                self.points((route, shown), RouteId(index as u16), problems, &mut runs);
            }
        }
        if runs.is_empty() { Err("there is nothing to measure".into()) } else { Ok(runs) }
    }

    fn points(
        &self,
        (route, router): (&RouteInfo, &str),
        id: RouteId,
        problems: &[Problem],
        runs: &mut Vec<Run>,
    ) {
        let mut push = |shown: Option<Threshold>, threshold: Option<Threshold>| {
            runs.push(Run { router: router.to_owned(), route: id, shown, threshold });
        };
        let own = route.terms.threshold.map(|(threshold, _)| threshold);
        match (route.router.as_str(), own) {
            ("me", _) => match mixture_share(&route.name) {
                Some(share) => push(Some(Threshold::Value(share)), end(share)),
                None => push(None, None),
            },
            (QUERY, _) if !compares_once(route) => {
                for share in self.shares() {
                    push(Some(Threshold::Value(*share)), Some(query_threshold(*share, problems)));
                }
            }
            ("fixed", _) => {
                for share in self.shares() {
                    push(Some(Threshold::Value(*share)), Some(Threshold::Value(*share)));
                }
            }
            (router, Some(own)) => {
                for threshold in self.grid(router, own) {
                    push(Some(threshold), Some(threshold));
                }
            }
            (_, None) => push(None, None),
        }
    }

    /// The thresholds of a router that compares: those asked for, or a grid that covers what it is used at, with its own.
    fn grid(&self, router: &str, own: Threshold) -> Vec<Threshold> {
        if !self.thresholds.is_empty() {
            return self.thresholds.clone();
        }
        let usual: &[f32] = match router {
            "r-stitch" => &[0.003, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2],
            "r2r" | QUERY => &[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9],
            "citer" => &[0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98],
            "co-llm" => &[0.02, 0.05, 0.1, 0.15, 0.3, 0.5],
            _ => &[],
        };
        let mut grid: Vec<f32> = usual.to_vec();
        grid.extend(match own {
            Threshold::Value(own) if !grid.contains(&own) => Some(own),
            _ => None,
        });
        grid.sort_by(f32::total_cmp);
        if grid.is_empty() { vec![own] } else { grid.into_iter().map(Threshold::Value).collect() }
    }
}

/// A share of nothing or of everything as the word that every router takes.
fn end(share: f32) -> Option<Threshold> {
    match share {
        s if s <= 0.0 => Some(Threshold::Never),
        s if s >= 1.0 => Some(Threshold::Always),
        _ => None,
    }
}

/// The number that makes `query` send this share of the requests to the large model: the share itself for the random
/// choice, a quantile of the scores where every prompt has one.
fn query_threshold(share: f32, problems: &[Problem]) -> Threshold {
    let scores: Option<Vec<f32>> = problems.iter().map(|p| p.score).collect();
    let by_score = scores.and_then(|s| calibrate(&s, f64::from(share), Direction::AtLeast).ok());
    by_score.unwrap_or(Threshold::Value(share))
}

/// Whether a route is `query` by a head, which judges every answer once.
fn compares_once(route: &RouteInfo) -> bool {
    route.gauge.is_some_and(|gauge| gauge.once)
}

/// What the table calls `query` without a head, by the scores of the prompts or at random: where a route with a head bears
/// the name, another one.
fn plain_query(by_head: bool, problems: &[Problem]) -> &'static str {
    match by_head {
        false => QUERY,
        true if problems.iter().all(|p| p.score.is_some()) => "query-score",
        true => "query-random",
    }
}

fn add(config: &mut Config, served: &str, router: &str, (key, value): (&str, Value)) {
    let mut section = blank(config, router);
    section.name = served.to_owned();
    section.params.insert(key.into(), value);
    config.routes.push(section);
}

const MIXTURE: &str = "me with ";

/// ME has no threshold: every weight is a route of its own. The model is drawn for the first token too, as in the published
/// code.
fn add_mixture(config: &mut Config, share: f32) {
    let mut section = blank(config, "me");
    section.name = format!("{MIXTURE}{share}");
    // Of none or all the threshold takes care; the weights must leave two models.
    let share = if end(share).is_some() { 0.5 } else { f64::from(share) };
    let mut weights = vec![0.0; config.models.len()];
    if let [first, .., last] = weights.as_mut_slice() {
        (*first, *last) = (1.0 - share, share);
    }
    section.params.insert("weights".into(), Value::Array(weights.into_iter().map(Value::Float).collect()));
    section.params.insert("draw_at_admission".into(), Value::Boolean(true));
    config.routes.push(section);
}

fn mixture_share(served: &str) -> Option<f32> {
    served.strip_prefix(MIXTURE)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use tokenrouter_engine::ModelInfo;
    use tokenrouter_scheduler::ModelId;
    use tokenrouter_scheduler::router::{Gauge, Measure, Source, Terms};

    const PAIR: &str = "[[model]]\nname = \"a\"\npath = \"a\"\n[[model]]\nname = \"b\"\npath = \"b\"\n\
                        [router]\nname = \"r-stitch\"\nthreshold = 0.04\n";

    fn problem(score: Option<f32>) -> Problem {
        Problem { prompt: "p".into(), answer: None, score }
    }

    fn setting(scores: &[Option<f32>]) -> Setting {
        let config = Config::parse(PAIR, Path::new("")).expect("a pair");
        Setting { config, problems: scores.iter().map(|s| problem(*s)).collect() }
    }

    fn info(routes: &[(&str, &str, Option<f32>)]) -> EngineInfo {
        let model =
            |name: &str| ModelInfo { name: name.into(), vocab: 9, context_len: 9, ..ModelInfo::default() };
        let route = |(name, router, own): &(&str, &str, Option<f32>)| RouteInfo {
            name: (*name).into(),
            router: (*router).into(),
            entry: ModelId(0),
            reach: Default::default(),
            terms: Terms { threshold: own.map(|t| (Threshold::Value(t), Source::Config)), budget: None },
            gauge: (*name == "judged").then_some(Gauge {
                measure: Measure::Score(0),
                direction: Direction::AtLeast,
                peer_stays: false,
                once: true,
            }),
        };
        EngineInfo {
            models: vec![model("a"), model("b")],
            routes: routes.iter().map(route).collect(),
            ..EngineInfo::default()
        }
    }

    fn shown(sweep: &Sweep, routes: &[(&str, &str, Option<f32>)], scores: &[Option<f32>]) -> Vec<String> {
        let problems: Vec<Problem> = scores.iter().map(|s| problem(*s)).collect();
        let runs = sweep.runs(&info(routes), &problems).expect("runs");
        let point = |r: &Run| {
            let text = |t: Option<Threshold>| t.map_or("-".to_owned(), |t| t.to_string());
            format!("{} {} {}", r.router, text(r.shown), text(r.threshold))
        };
        runs.iter().map(point).collect()
    }

    #[test]
    fn a_grid_has_the_routes_own_threshold_in_its_place() {
        let alone = [("pair", "r-stitch", Some(0.04)), ("a", "single", None), ("b", "single", None)];
        let points = shown(&Sweep::default(), &alone, &[None]);
        assert_eq!(points[..2], ["small - -", "large - -"]);
        assert_eq!(points.len(), 2 + 8);
        assert_eq!(points[5..8], ["r-stitch 0.03 0.03", "r-stitch 0.04 0.04", "r-stitch 0.05 0.05"]);
        let asked = Sweep::parse(&["r-stitch".into()], &["never".into(), "0.5".into()], &[]).expect("flags");
        assert_eq!(shown(&asked, &alone, &[None]), ["r-stitch never never", "r-stitch 0.5 0.5"]);
    }

    #[test]
    fn shares_become_thresholds_weights_or_quantiles() {
        let sweep = Sweep::parse(&[], &[], &[0.0, 0.5]).expect("flags");
        let routes = [("query", "query", Some(0.5)), ("me with 0.5", "me", None), ("me with 1", "me", None)];
        assert_eq!(
            shown(&sweep, &routes, &[None]),
            ["query 0 0", "query 0.5 0.5", "me 0.5 -", "me 1 always"]
        );
        let scores = [0.125, 0.25, 0.75, 0.875].map(Some);
        assert_eq!(shown(&sweep, &routes[..1], &scores), ["query 0 never", "query 0.5 0.5"]);
        let mut setting = setting(&scores);
        sweep.extend(&mut setting).expect("routes");
        let routers: Vec<&str> = setting.config.routed().map(|r| r.router).collect();
        // R-Stitch is configured; ME has a route per weight.
        assert_eq!(routers, ["r-stitch", "me", "me", "query", "fixed"]);
        let query = setting.config.routed().find(|r| r.router == "query").expect("added");
        assert!(query.params.contains_key("threshold"), "every prompt has a score");
    }

    /// With a router file the name `query` is its, over thresholds; the draw, or the scores of the prompts, beside it.
    #[test]
    fn query_by_a_head_and_without_one_are_rows_of_their_own() {
        let sweep = Sweep::parse(&[], &["0.25".into()], &[0.5]).expect("flags");
        let routes = [("judged", "query", Some(0.7)), ("query-random", "query", Some(0.5))];
        assert_eq!(shown(&sweep, &routes, &[None]), ["query 0.25 0.25", "query-random 0.5 0.5"]);
        let scores = [0.125, 0.25, 0.75, 0.875].map(Some);
        assert_eq!(shown(&sweep, &routes, &scores), ["query 0.25 0.25", "query-score 0.5 0.5"]);
        let one = |name: &str| Sweep { routers: vec![name.into()], ..sweep.clone() };
        assert_eq!(shown(&one("query"), &routes, &[None]), ["query 0.25 0.25"]);
        assert_eq!(shown(&one("query-random"), &routes, &[None]), ["query-random 0.5 0.5"]);
        for (names, added) in [(&["query-random"][..], 1), (&["query"], 0), (&["small", "query-random"], 1)] {
            let mut setting = setting(&[None]);
            let mut section = blank(&setting.config, "query");
            section.file = Some("anywhere".into());
            setting.config.routes.push(section);
            let sweep = Sweep { routers: names.iter().map(|n| (*n).into()).collect(), ..sweep.clone() };
            sweep.extend(&mut setting).expect("routes");
            let served =
                setting.config.routed().filter(|r| r.served == "query-random" && r.router == "query");
            assert_eq!(served.count(), added, "{names:?}");
        }
        assert!(
            one("query-random").extend(&mut setting(&[None])).is_err(),
            "there is no head, so no such row"
        );
    }
}
