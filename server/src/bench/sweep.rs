//! Which settings are measured: every combination of what the flags list, or what a preset says.

use std::path::PathBuf;

use serde_json::Value;
use tokenrouter_scheduler::router::{HeadKind, closest};

use super::arrivals::Load;
use super::variant::{self, Change};
use super::workload::Kind;
use crate::config::{Config, RouteSection};

/// What a server is started with.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Choice {
    /// What a preset calls it; empty: policy and handoff say it.
    pub(super) name: String,
    pub(super) change: Change,
}

impl Choice {
    /// In words; empty where nothing is different from the file.
    pub(super) fn label(&self) -> String {
        if !self.name.is_empty() {
            return self.name.clone();
        }
        let parts = [&self.change.policy, &self.change.handoff].into_iter().flatten();
        parts.map(String::as_str).collect::<Vec<_>>().join(" ")
    }
}

/// What is combined.
#[derive(Clone, Debug, Default)]
pub(super) struct Sweep {
    pub(super) choices: Vec<Choice>,
    pub(super) routers: Vec<String>,
    pub(super) kinds: Vec<Kind>,
    pub(super) loads: Vec<Load>,
}

/// Who answers.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Route {
    /// As the user wrote it.
    pub(super) name: String,
    /// The served name.
    pub(super) served: String,
    /// Sent with every request.
    pub(super) threshold: Option<Value>,
}

/// What does not change between repeats.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Setting {
    /// Which pair, by its place among the files.
    pub(super) pair: usize,
    pub(super) choice: Choice,
    /// By its place among the routes of the pair.
    pub(super) route: usize,
    pub(super) kind: Kind,
    pub(super) load: Load,
}

impl Sweep {
    /// Every combination for `pairs` pairs with so many routes each; settings of one server stand together. A threshold
    /// above the number of clients can never be met, and is left out.
    pub(super) fn settings(&self, routes: &[usize]) -> Vec<Setting> {
        let mut all = Vec::new();
        for (pair, &routes) in routes.iter().enumerate() {
            for choice in &self.choices {
                for &kind in &self.kinds {
                    for route in 0..routes {
                        for &load in &self.loads {
                            if !waits_for_ever(choice, load) {
                                all.push(Setting { pair, choice: choice.clone(), route, kind, load });
                            }
                        }
                    }
                }
            }
        }
        all
    }

    /// Most clients of any setting.
    pub(super) fn most_clients(&self, most_open: u32) -> u32 {
        let clients = self.loads.iter().map(|load| match load {
            Load::Closed(clients) => *clients,
            Load::Poisson(_) => most_open,
        });
        clients.max().unwrap_or(1)
    }
}

fn waits_for_ever(choice: &Choice, load: Load) -> bool {
    let threshold = choice.change.policy.as_deref().and_then(|policy| policy.split_once('='));
    let Some((name, numbers)) = threshold.filter(|(name, _)| *name != "lookahead") else { return false };
    let first = numbers.split(',').next().and_then(|n| n.trim().parse::<u32>().ok());
    match load {
        // `exclusive` counts ready requests of the one model that may run, too.
        Load::Closed(clients) => name != "auto" && first.is_some_and(|b| b > clients),
        Load::Poisson(_) => false,
    }
}

/// The routes of a server that runs elsewhere.
///
/// # Errors
/// A name that it does not serve.
pub(super) fn foreign_routes(asked: &[String], served: &[String]) -> Result<Vec<Route>, String> {
    if asked.is_empty() {
        let first = served.first().cloned().unwrap_or_else(|| "default".into());
        return Ok(vec![Route { name: first.clone(), served: first, threshold: None }]);
    }
    let read = |text: &String| {
        // A name may hold an equals sign itself.
        let (name, threshold) = match served.contains(text) {
            true => (text.as_str(), None),
            false => split(text)?,
        };
        if !served.is_empty() && !served.iter().any(|s| s == name) {
            return Err(unknown(name, served.iter().map(String::as_str)));
        }
        Ok(Route { name: text.clone(), served: name.to_owned(), threshold })
    };
    asked.iter().map(read).collect()
}

/// The routes of a configuration, and those that it needs beside its own.
///
/// # Errors
/// A name that is neither served nor a router, or a router that needs a file.
pub(super) fn routes(
    config: &Config,
    asked: &[String],
    files: &[PathBuf],
) -> Result<(Vec<Route>, Vec<RouteSection>), String> {
    let main = &config.server.served_model_name;
    if asked.is_empty() {
        return Ok((vec![Route { name: main.clone(), served: main.clone(), threshold: None }], Vec::new()));
    }
    let (mut routes, mut sections): (Vec<Route>, Vec<RouteSection>) = (Vec::new(), Vec::new());
    for text in asked.iter().map(|text| if text.is_empty() { main } else { text }) {
        let (name, threshold) = split(text)?;
        let alone = |index: usize| config.models.get(index).map(|m| m.name.clone());
        let served: Vec<&str> =
            config.routed().map(|r| r.served).chain(config.models.iter().map(|m| m.name.as_str())).collect();
        let found = if served.contains(&name) {
            Some(name.to_owned())
        } else {
            match name {
                "small" => alone(0),
                "large" => alone(config.models.len().saturating_sub(1)),
                // A route of the configuration by its algorithm.
                _ => config.routed().find(|r| r.router == name && name != "me").map(|r| r.served.to_owned()),
            }
        };
        let served = match found {
            Some(served) => served,
            None => {
                let known = ["r-stitch", "fixed", "me", "query"];
                let learned = HeadKind::ALL.iter().map(|kind| kind.name());
                if !known.contains(&name) && !learned.clone().any(|kind| kind == name) {
                    return Err(unknown(name, served.into_iter().chain(known).chain(learned)));
                }
                let value = threshold.as_ref().and_then(Value::as_f64);
                let file = files.iter().find(|file| kind_of(file).as_deref() == Some(name));
                let mut section = variant::route(config, name, value, file.map(PathBuf::as_path))?;
                // Every weight of ME is a route of its own; the others take their number from the request.
                section.name = if name == "me" { text.clone() } else { name.to_owned() };
                if !sections.iter().any(|s| s.name == section.name) {
                    sections.push(section.clone());
                }
                section.name
            }
        };
        let threshold = threshold.filter(|_| name != "me");
        routes.push(Route { name: text.clone(), served, threshold });
    }
    Ok((routes, sections))
}

/// The kind of a router file, by its own words.
fn kind_of(file: &std::path::Path) -> Option<String> {
    let about = tokenrouter_engine::heads::RouterFile::load(file).ok()?;
    Some(about.shape.kind().name().to_owned())
}

/// `NAME` or `NAME=T`: a number, `always` or `never`.
fn split(text: &str) -> Result<(&str, Option<Value>), String> {
    let Some((name, threshold)) = text.rsplit_once('=') else { return Ok((text, None)) };
    let number = threshold.parse::<f64>().ok().filter(|t| t.is_finite());
    let value = match (number, threshold) {
        (Some(number), _) => Value::from(number),
        (None, "always" | "never") => Value::from(threshold),
        _ => {
            return Err(format!(
                "--router {text}: {threshold:?} is no threshold; a number, always or never is needed"
            ));
        }
    };
    Ok((name, Some(value)))
}

fn unknown<'a>(name: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    let hint = closest(name, known.clone()).map(|near| format!("; did you mean \"{near}\"?"));
    let mut listed: Vec<&str> = Vec::new();
    for name in known {
        if !listed.contains(&name) {
            listed.push(name);
        }
    }
    format!("--router is \"{name}\"{} (known: {})", hint.unwrap_or_default(), listed.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn pair() -> Config {
        let text = "[[model]]\nname = \"a\"\npath = \"a\"\n[[model]]\nname = \"b\"\npath = \"b\"\n[router]\n\
                    name = \"r-stitch\"\nthreshold = 0.03\n[server]\nserved_model_name = \"pair\"\n";
        Config::parse(text, Path::new("")).expect("a pair")
    }

    fn choice(policy: &str) -> Choice {
        Choice { change: Change { policy: Some(policy.into()), ..Change::default() }, ..Choice::default() }
    }

    #[test]
    fn every_combination_is_a_setting_but_those_that_would_wait_for_ever() {
        let sweep = Sweep {
            choices: vec![choice("eager"), choice("threshold=4"), choice("lookahead=8")],
            routers: Vec::new(),
            kinds: vec![Kind::LowEffort],
            loads: vec![Load::Closed(1), Load::Closed(4)],
        };
        let shown: Vec<String> = sweep
            .settings(&[2, 1])
            .iter()
            .map(|s| {
                let policy = s.choice.change.policy.as_deref().unwrap_or("");
                format!("{} {policy} {} {}", s.pair, s.route, s.load)
            })
            .collect();
        assert_eq!(shown.len(), 2 * (2 * 2 + 1) + (2 * 2 + 1));
        assert!(
            shown.contains(&"0 threshold=4 1 N=4".into()) && !shown.contains(&"0 threshold=4 1 N=1".into())
        );
        assert!(shown.contains(&"1 lookahead=8 0 N=1".into()));
        assert_eq!(sweep.most_clients(99), 4);
    }

    #[test]
    fn routers_are_served_names_or_become_routes() {
        let asked = ["pair", "small", "large", "r-stitch=0.1", "fixed=0.35", "fixed=0.1", "me=0.2"];
        let asked: Vec<String> = asked.iter().map(|s| (*s).to_owned()).collect();
        let (routes, sections) = routes(&pair(), &asked, &[]).expect("all known");
        let served: Vec<&str> = routes.iter().map(|r| r.served.as_str()).collect();
        assert_eq!(served, ["pair", "a", "b", "pair", "fixed", "fixed", "me=0.2"]);
        assert_eq!(routes[3].threshold, Some(0.1.into()));
        assert_eq!((routes[5].threshold.clone(), routes[6].threshold.clone()), (Some(0.1.into()), None));
        assert_eq!(sections.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["fixed", "me=0.2"]);
        let refused = |name: &str| super::routes(&pair(), &[name.to_owned()], &[]).expect_err(name);
        assert!(refused("r-stich").contains("did you mean \"r-stitch\""));
        assert!(refused("citer").contains("--router-file") && refused("pair=x").contains("no threshold"));
    }

    #[test]
    fn a_foreign_server_has_the_names_that_it_says() {
        let served = ["Qwen/Q=8".to_owned(), "b".to_owned()];
        let names = |asked: &[&str]| {
            let asked: Vec<String> = asked.iter().map(|s| (*s).to_owned()).collect();
            foreign_routes(&asked, &served).map(|r| r.into_iter().map(|r| r.served).collect::<Vec<_>>())
        };
        assert_eq!(names(&[]), Ok(vec!["Qwen/Q=8".into()]));
        assert_eq!(names(&["Qwen/Q=8", "b=0.5"]), Ok(vec!["Qwen/Q=8".into(), "b".into()]));
        assert!(names(&["c"]).is_err());
    }
}
