//! Measures every setting, repeats interleaved: each round goes once through all of them, every other one backwards, so that
//! what drifts on the machine hits all alike.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::args::{ApiName, BenchArgs, warm_up};
use super::arrivals::Load;
use super::ask::{Api, Terms};
use super::child::Server;
use super::drive::{Cut, Limits, Plan, WarmUp, drive};
use super::machine::Clocks;
use super::material::material;
use super::outcome::{Repeat, Row};
use super::scrape::ServerSide;
use super::sweep::{Route, Setting};
use super::target::Target;
use super::variant;
use super::workload::{Kind, Material, Sizes, Workload};
use crate::cli::tell;
use crate::config::{Config, RouteSection};
use crate::eval::Check;

/// A pair of models to be started, and what may answer.
pub(super) struct Pair {
    pub(super) name: String,
    pub(super) config: Config,
    pub(super) sections: Vec<RouteSection>,
    /// Prompts that lie beside it.
    pub(super) problems: Option<PathBuf>,
}

/// Where servers come from.
pub(super) enum Source {
    /// One that runs.
    Running(Target),
    /// Started for each setting.
    Pairs(Vec<Pair>),
}

/// A measurement under way.
pub(super) struct Bench<'a> {
    pub(super) args: &'a BenchArgs,
    pub(super) interrupted: &'a AtomicBool,
    pub(super) source: Source,
    /// The routes of each pair.
    pub(super) routes: Vec<Vec<Route>>,
    pub(super) settings: Vec<Setting>,
    /// One per setting.
    pub(super) rows: Vec<Row>,
    pub(super) limits: Limits,
    pub(super) repeats: u32,
    pub(super) answer_tokens: Option<u32>,
    pub(super) most_clients: u32,
    /// What the reader must know, each once.
    pub(super) notes: Vec<String>,
    /// What ended the whole.
    pub(super) failure: Option<String>,
    prepared: BTreeMap<(usize, &'static str), (Material, Sizes)>,
}

impl<'a> Bench<'a> {
    pub(super) fn new(args: &'a BenchArgs, interrupted: &'a AtomicBool, source: Source) -> Self {
        Bench {
            args,
            interrupted,
            source,
            routes: Vec::new(),
            settings: Vec::new(),
            rows: Vec::new(),
            limits: Limits::default(),
            repeats: 1,
            answer_tokens: None,
            most_clients: 1,
            notes: Vec::new(),
            failure: None,
            prepared: BTreeMap::new(),
        }
    }

    /// A line that is said once.
    pub(super) fn note(&mut self, text: String) {
        if !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }

    fn is_over(&self) -> bool {
        self.failure.is_some() || self.interrupted.load(Ordering::Relaxed)
    }

    /// All repeats of all settings.
    pub(super) fn run(&mut self) {
        self.rows = self.settings.iter().map(|_| Row::default()).collect();
        for repeat in 0..self.repeats {
            let mut groups = self.groups();
            if repeat % 2 == 1 {
                groups.reverse();
            }
            for mut group in groups {
                if repeat % 2 == 1 {
                    group.reverse();
                }
                if self.is_over() {
                    return;
                }
                self.group(&group, repeat);
            }
        }
    }

    /// Settings of one server each.
    fn groups(&self) -> Vec<Vec<usize>> {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for (index, setting) in self.settings.iter().enumerate() {
            let same = |last: &Vec<usize>| {
                let first = &self.settings[last[0]];
                (first.pair, &first.choice) == (setting.pair, &setting.choice)
            };
            match groups.last_mut().filter(|last| same(last)) {
                Some(last) => last.push(index),
                None => groups.push(vec![index]),
            }
        }
        groups
    }

    /// The settings of one server, once each.
    fn group(&mut self, group: &[usize], repeat: u32) {
        let Some(first) = group.first().map(|i| self.settings[*i].clone()) else { return };
        let started = match self.start(&first) {
            Ok(started) => started,
            Err(_) if self.interrupted.load(Ordering::Relaxed) => return,
            Err(why) => {
                let label = self.label(&first);
                return self.note(format!("{label}: not measured: {why}"));
            }
        };
        let Some((mut server, target)) = started else {
            // The one that runs stands in `source`, which is needed elsewhere meanwhile.
            let taken = std::mem::replace(&mut self.source, Source::Pairs(Vec::new()));
            if let Source::Running(target) = taken {
                for index in group {
                    if !self.is_over() {
                        self.measure(*index, repeat, &target, &mut None);
                    }
                }
                self.source = Source::Running(target);
            }
            return;
        };
        target.notes.iter().for_each(|note| self.note(note.clone()));
        for index in group {
            if !self.is_over() && server.as_mut().is_some_and(Server::alive) {
                self.measure(*index, repeat, &target, &mut server);
            }
        }
    }

    /// A server for a setting; none where one runs already.
    fn start(&self, setting: &Setting) -> Result<Option<(Option<Server>, Target)>, String> {
        let Source::Pairs(pairs) = &self.source else { return Ok(None) };
        let pair = pairs.get(setting.pair).ok_or("there is no such pair")?;
        let file = variant::file(&pair.config, &setting.choice.change, &pair.sections, self.most_clients)?;
        let server = Server::start(&file, self.interrupted)?;
        let served = &pair.config.server.served_model_name;
        let target = Target::probe(
            server.site.clone(),
            Some(server.pid()),
            api(self.args),
            Some(served),
            self.interrupted,
        )?;
        Ok(Some((Some(server), target)))
    }

    /// One repeat of one setting.
    fn measure(&mut self, index: usize, repeat: u32, target: &Target, server: &mut Option<Server>) {
        let setting = self.settings[index].clone();
        let label = self.label(&setting);
        let (material, sizes) = match self.prepare(&setting, target) {
            Ok(prepared) => prepared,
            Err(why) => return self.failure = Some(why),
        };
        let api = if matches!(material, Material::Ids(_)) { Api::Completions } else { target.api };
        let workload = Workload { sizes, material, api, seed: self.args.seed };
        let route = self.routes[setting.pair][setting.route].clone();
        if route.threshold.is_some() && !target.fields.routing {
            self.note("the server knows no token_routing: thresholds of --router are not sent".into());
        }
        let salt = format!("bench-{index}-{repeat}");
        let plan = Plan {
            site: &target.site,
            workload: &workload,
            terms: Terms {
                api,
                fields: target.fields,
                model: &route.served,
                threshold: route.threshold.as_ref(),
                max_tokens: sizes.answer,
                to_the_end: sizes.to_the_end,
                temperature: self.args.temperature,
                seed: self.args.seed,
                salt: &salt,
            },
            load: setting.load,
            warm_up: self.warm_up(setting.load),
            limits: self.limits,
            repeat,
            patience: Duration::from_secs_f64(self.args.timeout),
            most_open: self.args.most_open,
        };
        let check =
            self.args.check.unwrap_or(if self.args.demo { Check::Sentence } else { Check::LastNumber });
        let never = AtomicBool::new(false);
        let mut edges = Vec::new();
        let ran = drive(
            &plan,
            &|text, right| check.passes(text, right),
            self.interrupted,
            &mut || edges.push((Clocks::read(target.pid), target.look(&never))),
            &mut || server.as_mut().is_none_or(Server::alive),
        );
        let window = match ran {
            Ok(window) => window,
            Err(why) => return self.failure = Some(why),
        };
        let [(before, old), (after, new)] = edges.as_slice() else { return };
        let used = before.until(after);
        let mut repeat =
            Repeat { window, server: ServerSide::between(old, new), used, foreign: None, discarded: false };
        if is_local(target) {
            repeat.foreign = used.foreign(repeat.server_cpu());
            repeat.discarded = repeat.foreign.is_some_and(|share| 100.0 * share > self.args.max_foreign_cpu);
        }
        self.tell(&label, &repeat);
        match &repeat.window.cut {
            Some(Cut::Dead) => self.failure = server.as_mut().map(|s| format!("{label}: {}", s.death())),
            Some(Cut::Failing(why)) => {
                let text = format!("{label}: every request failed, the last with: {why}");
                // A server that is gone is gone for every setting; one that refuses may refuse this one alone.
                match why.starts_with("no connection") && server.is_none() {
                    true => self.failure = Some(text),
                    false => self.note(text),
                }
            }
            Some(Cut::Interrupted) | None => {}
        }
        self.rows[index].repeats.push(repeat);
    }

    /// Material and sizes of a workload, made at the first use.
    fn prepare(&mut self, setting: &Setting, target: &Target) -> Result<(Material, Sizes), String> {
        let key = (setting.pair, setting.kind.name());
        if let Some(known) = self.prepared.get(&key) {
            return Ok(known.clone());
        }
        let problems = match &self.source {
            Source::Pairs(pairs) => pairs.get(setting.pair).and_then(|p| p.problems.clone()),
            Source::Running(_) => None,
        };
        let (material, told) =
            material(self.args, setting.kind, problems.as_deref(), target, self.interrupted)?;
        let (sizes, cut) = self.sizes(setting.kind).within(target.context);
        let lengths = match (&material, sizes.to_the_end) {
            (Material::Problems(_), false) => format!("answers of at most {}", sizes.answer),
            (Material::Problems(_), true) => format!("answers of {}", sizes.answer),
            (_, to_the_end) => format!(
                "prompts of {}{}, answers of {}{} tokens",
                if sizes.turns > 1 { "up to " } else { "" },
                sizes.prompt,
                if to_the_end { "" } else { "at most " },
                sizes.answer
            ),
        };
        let turns = if sizes.turns > 1 { format!(", up to {} turns", sizes.turns) } else { String::new() };
        self.note(format!("{}: {lengths}{turns}; prompts: {told}", setting.kind.name()));
        cut.into_iter().for_each(|note| self.note(note));
        self.prepared.insert(key, (material.clone(), sizes));
        Ok((material, sizes))
    }

    /// The workload's sizes under the flags.
    fn sizes(&self, kind: Kind) -> Sizes {
        let mut sizes = kind.sizes();
        sizes.prompt = self.args.prompt_tokens.unwrap_or(sizes.prompt);
        sizes.turns = self.args.turns.unwrap_or(sizes.turns);
        if let Some(answer) = self.args.answer_tokens.or(self.answer_tokens) {
            (sizes.answer, sizes.to_the_end) = (answer, true);
        }
        sizes.to_the_end &= !self.args.natural_end;
        sizes
    }

    fn warm_up(&self, load: Load) -> WarmUp {
        // `BenchArgs::check` has refused what cannot be read.
        match warm_up(self.args.warm_up.as_deref()).unwrap_or_default() {
            (Some(answers), _) => WarmUp { answers, seconds: f64::INFINITY },
            (None, Some(seconds)) => WarmUp { answers: u64::MAX, seconds },
            (None, None) => {
                let answers = match load {
                    Load::Closed(clients) => u64::from(clients),
                    Load::Poisson(_) => 4,
                };
                WarmUp { answers, seconds: 10.0 }
            }
        }
    }

    /// A line on stderr for each repeat, so that a long run shows that it lives.
    fn tell(&self, label: &str, repeat: &Repeat) {
        let done: usize = self.rows.iter().map(|row| row.repeats.len()).sum::<usize>() + 1;
        let all = self.settings.len() * self.repeats as usize;
        let mut line = format!("[{done}/{all}] {label}: {:.1} tokens/s", repeat.tokens_per_s());
        if let Some(share) = repeat.foreign {
            line.push_str(&format!(", others' CPU {:.0} %", 100.0 * share));
        }
        if repeat.discarded {
            line.push_str(" (discarded)");
        }
        let faults = repeat.window.faults.len();
        if faults > 0 {
            line.push_str(&format!(", {faults} requests failed"));
        }
        tell(&line);
    }

    /// A setting in words.
    pub(super) fn label(&self, setting: &Setting) -> String {
        self.parts(setting).into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
    }

    /// Its parts in words: pair, server, route, workload, load. What all settings share is empty.
    pub(super) fn parts(&self, setting: &Setting) -> Vec<String> {
        let pairs = match &self.source {
            Source::Pairs(pairs) => pairs.as_slice(),
            Source::Running(_) => &[],
        };
        let pair = pairs.get(setting.pair).filter(|_| pairs.len() > 1).map(|p| p.name.clone());
        let route = self.routes.get(setting.pair).and_then(|routes| routes.get(setting.route));
        let route = route.filter(|_| self.settings.iter().any(|s| s.route != setting.route));
        let kind = Some(setting.kind).filter(|kind| self.settings.iter().any(|s| s.kind != *kind));
        vec![
            pair.unwrap_or_default(),
            setting.choice.label(),
            route.map(|r| r.name.clone()).unwrap_or_default(),
            kind.map(|k| k.name().to_owned()).unwrap_or_default(),
            setting.load.to_string(),
        ]
    }
}

/// How the user wants to ask.
pub(super) fn api(args: &BenchArgs) -> Option<Api> {
    match args.api {
        Some(ApiName::Chat) => Some(Api::Chat),
        Some(ApiName::Completions) => Some(Api::Completions),
        None => args.random_ids.then_some(Api::Completions),
    }
}

/// Whether the server runs on this machine, as far as that can be told.
fn is_local(target: &Target) -> bool {
    let host = target.site.address.rsplit_once(':').map_or("", |(host, _)| host);
    target.pid.is_some() || ["localhost", "[::1]"].contains(&host) || host.starts_with("127.")
}
