//! `tokenrouter bench`: speed of a running service, ours or any OpenAI-compatible one, under load.
//!
//! Clients ask over HTTP as users do. What is measured, and how, is in `docs/bench.md`.

mod args;
mod arrivals;
mod ask;
mod body;
mod child;
mod drive;
mod http;
mod machine;
mod material;
mod outcome;
mod plot;
mod predict;
mod presets;
mod report;
mod run;
mod scrape;
mod sse;
mod stats;
mod sweep;
mod table;
mod target;
mod variant;
mod workload;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub use args::{ApiName, BenchArgs};
pub use workload::Kind;

use crate::config::{Config, DeviceName, Overrides};
use crate::demo;
use crate::paint::emit;
use arrivals::Load;
use drive::Limits;
use http::Site;
use presets::{Preset, Shape};
use run::{Bench, Pair, Source};
use sweep::{Choice, Sweep};
use target::Target;
use variant::Change;

/// Seconds of a measurement without any limit.
const SECONDS: f64 = 10.0;

/// Measures and prints.
///
/// # Errors
/// One text that names the flag or file at fault, or says how the server failed; what was measured is printed before.
pub fn run(args: &BenchArgs, device: Option<DeviceName>) -> Result<(), String> {
    if args.preset.as_deref() == Some("list") {
        return emit(&presets::list());
    }
    let preset = args.preset.as_deref().map(presets::preset).transpose()?;
    args.check()?;
    for (flag, path) in [("--json", &args.json), ("--svg", &args.svg)] {
        // Found out before an hour of measuring, not after it.
        path.as_deref().map_or(Ok(()), |path| write_file(flag, path, ""))?;
    }
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, interrupted.clone())
            .map_err(|e| format!("signals cannot be caught: {e}"))?;
    }
    if let Some(file) = &args.prompts {
        crate::eval::read_problems(file, None).map_err(|e| format!("--prompts {e}"))?;
    }
    let mut bench = prepare(args, device, preset.as_ref(), &interrupted)?;
    bench.run();
    if interrupted.load(Ordering::Relaxed) {
        bench.note("interrupted: this is what was measured so far".into());
    }
    tell_all(&bench, preset.as_ref())?;
    match bench.failure.take() {
        Some(failure) => Err(failure),
        None if bench.rows.iter().all(|row| row.repeats.iter().all(|r| r.window.tokens == 0)) => {
            Err("nothing was measured".into())
        }
        None => Ok(()),
    }
}

/// Everything checked before the first server starts.
fn prepare<'a>(
    args: &'a BenchArgs,
    device: Option<DeviceName>,
    preset: Option<&Preset>,
    interrupted: &'a AtomicBool,
) -> Result<Bench<'a>, String> {
    let mut parts = preset.map_or_else(|| vec![Sweep::default()], |preset| preset.parts.clone());
    parts.iter_mut().for_each(|part| override_part(part, args));
    let source = source(args, device, interrupted)?;
    let mut bench = Bench::new(args, interrupted, source);
    bench.most_clients = parts.iter().map(|part| part.most_clients(args.most_open)).max().unwrap_or(1);
    let mut cuda = device == Some(DeviceName::Cuda);
    let mut notes = Vec::new();
    for part in &parts {
        // Places of this part's routes among all routes of each pair.
        let mut places: Vec<Vec<usize>> = Vec::new();
        match &mut bench.source {
            Source::Running(target) => {
                notes.append(&mut target.notes);
                let own = part.choices.iter().any(|choice| choice.change != Change::default());
                if own {
                    notes.push(
                        "policies, handoff modes and placements need --config or --demo: left out".into(),
                    );
                }
                let served = target.models.clone();
                let asked = available(&part.routers, preset, &mut notes, |one| {
                    sweep::foreign_routes(one, &served).map(|routes| (routes, Vec::new()))
                })?;
                places.push(add(&mut bench.routes, 0, asked.0));
            }
            Source::Pairs(pairs) => {
                for (index, pair) in pairs.iter_mut().enumerate() {
                    cuda |= pair.config.device == DeviceName::Cuda;
                    let files = router_files(args, &pair.config);
                    let (routes, sections) = available(&part.routers, preset, &mut notes, |one| {
                        sweep::routes(&pair.config, one, &files)
                    })?;
                    for section in sections {
                        if !pair.sections.iter().any(|known| known.name == section.name) {
                            pair.sections.push(section);
                        }
                    }
                    places.push(add(&mut bench.routes, index, routes));
                }
            }
        }
        let mut part = part.clone();
        if matches!(bench.source, Source::Running(_)) {
            part.choices = vec![Choice::default()];
        }
        let counts: Vec<usize> = places.iter().map(Vec::len).collect();
        for mut setting in part.settings(&counts) {
            setting.route = places[setting.pair][setting.route];
            if !bench.settings.contains(&setting) {
                bench.settings.push(setting);
            }
        }
    }
    if let Some(preset) = preset {
        notes.splice(0..0, preset.missing(cuda));
        if preset.name == "table3" && args.config.len() < 2 {
            notes.push("table3: one pair is given; each further --config adds one".into());
        }
    }
    notes.into_iter().for_each(|note| bench.note(note));
    check_files(&bench)?;
    bench.answer_tokens = preset.and_then(|preset| preset.answer_tokens);
    bench.repeats = args.repeats.or(preset.map(|preset| preset.repeats)).unwrap_or(3);
    bench.limits = limits(args, preset);
    if bench.settings.is_empty() {
        return Err("no setting is left: thresholds above the number of clients would wait for ever".into());
    }
    Ok(bench)
}

/// Appends routes that are not there yet; says where all of them are.
fn add(all: &mut Vec<Vec<sweep::Route>>, pair: usize, routes: Vec<sweep::Route>) -> Vec<usize> {
    if all.len() <= pair {
        all.resize(pair + 1, Vec::new());
    }
    let known = &mut all[pair];
    let place = |route: sweep::Route| {
        known.iter().position(|k| *k == route).unwrap_or_else(|| {
            known.push(route);
            known.len() - 1
        })
    };
    routes.into_iter().map(place).collect()
}

type Routes = (Vec<sweep::Route>, Vec<crate::config::RouteSection>);

/// The routes of a list. What a preset wants and this deployment has not is left out with a note; what the user wants is an
/// error.
fn available(
    routers: &[String],
    preset: Option<&Preset>,
    notes: &mut Vec<String>,
    find: impl Fn(&[String]) -> Result<Routes, String>,
) -> Result<Routes, String> {
    let Some(preset) = preset.filter(|p| p.parts.iter().any(|part| part.routers == routers)) else {
        return find(routers);
    };
    if routers.is_empty() {
        return find(routers);
    }
    let mut all: Routes = (Vec::new(), Vec::new());
    for router in routers {
        match find(std::slice::from_ref(router)) {
            Ok((routes, sections)) => {
                all.0.extend(routes);
                all.1.extend(sections);
            }
            Err(why) => notes.push(format!("{}: without {router}: {why}", preset.name)),
        }
    }
    if all.0.is_empty() { find(&[]) } else { Ok(all) }
}

/// Flags go before what a preset says.
fn override_part(part: &mut Sweep, args: &BenchArgs) {
    if !args.rate.is_empty() {
        part.loads = args.rate.iter().map(|rate| Load::Poisson(*rate)).collect();
    } else if !args.clients.is_empty() {
        part.loads = args.clients.iter().map(|clients| Load::Closed(*clients)).collect();
    } else if part.loads.is_empty() {
        part.loads = vec![Load::Closed(4)];
    }
    if !args.routers.is_empty() {
        part.routers = args.routers.clone();
    }
    if !args.workloads.is_empty() {
        part.kinds = args.workloads.clone();
    } else if part.kinds.is_empty() {
        part.kinds = vec![Kind::LowEffort];
    }
    if !args.policies.is_empty() || !args.handoffs.is_empty() || part.choices.is_empty() {
        let one = |list: &[String]| -> Vec<Option<String>> {
            if list.is_empty() { vec![None] } else { list.iter().cloned().map(Some).collect() }
        };
        let (policies, handoffs) = (one(&args.policies), one(&args.handoffs));
        let choice = |policy: &Option<String>, handoff: &Option<String>| Choice {
            name: String::new(),
            change: Change { policy: policy.clone(), handoff: handoff.clone(), devices: None },
        };
        part.choices = policies
            .iter()
            .flat_map(|policy| handoffs.iter().map(move |handoff| choice(policy, handoff)))
            .collect();
    }
}

fn limits(args: &BenchArgs, preset: Option<&Preset>) -> Limits {
    let given = Limits { tokens: args.tokens, requests: args.requests, seconds: args.seconds };
    match preset {
        _ if given != Limits::default() => given,
        Some(preset) => preset.limits,
        None => Limits { seconds: Some(SECONDS), ..given },
    }
}

/// The server that runs, or the files of those to be started.
fn source(args: &BenchArgs, device: Option<DeviceName>, interrupted: &AtomicBool) -> Result<Source, String> {
    if let Some(url) = &args.url {
        let site = Site { key: args.api_key.clone(), ..Site::parse(url)? };
        if let Some(pid) = args.pid.filter(|pid| crate::eval::seconds_of(&pid.to_string()).is_none()) {
            return Err(format!("--pid {pid}: there is no such process (or no /proc)"));
        }
        // The name as a whole where there is one; a threshold behind it is told apart later.
        let model = args.routers.first().map(|name| name.split('=').next().unwrap_or(name));
        let target = Target::probe(site, args.pid, run::api(args), model, interrupted)?;
        return Ok(Source::Running(target));
    }
    let flags = || Overrides::from(args.set.clone()).on_device(device);
    if args.demo {
        let config = demo::config_with(args.models.as_deref(), &flags())?;
        let problems = demo::problems(&config);
        return Ok(Source::Pairs(vec![Pair { name: "demo".into(), config, sections: Vec::new(), problems }]));
    }
    let pair = |(path, name): (&PathBuf, String)| -> Result<Pair, String> {
        let config = Config::load_with(Some(path), &flags())?;
        Ok(Pair { name, config, sections: Vec::new(), problems: None })
    };
    let named = args.config.iter().zip(names(&args.config));
    Ok(Source::Pairs(named.map(pair).collect::<Result<_, _>>()?))
}

/// Names of pairs in tables: those of the files; files of one name in several folders are told apart by their paths.
fn names(files: &[PathBuf]) -> Vec<String> {
    let stem = |path: &PathBuf| path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let stems: Vec<String> = files.iter().map(stem).collect();
    let one = |(path, stem): (&PathBuf, &String)| match stems.iter().filter(|other| *other == stem).count() {
        1 => stem.clone(),
        _ => path.display().to_string(),
    };
    files.iter().zip(&stems).map(one).collect()
}

/// Router files of the flags, and those that lie beside the demo pair.
fn router_files(args: &BenchArgs, config: &Config) -> Vec<PathBuf> {
    let beside = if args.demo { demo::router_files(config) } else { Vec::new() };
    args.router_files.iter().cloned().chain(beside).collect()
}

/// Every file that will be served is checked before the first one is.
fn check_files(bench: &Bench<'_>) -> Result<(), String> {
    let Source::Pairs(pairs) = &bench.source else { return Ok(()) };
    let mut seen: Vec<(usize, &Choice)> = Vec::new();
    for setting in &bench.settings {
        if seen.contains(&(setting.pair, &setting.choice)) {
            continue;
        }
        seen.push((setting.pair, &setting.choice));
        let Some(pair) = pairs.get(setting.pair) else { continue };
        variant::file(&pair.config, &setting.choice.change, &pair.sections, bench.most_clients)?;
    }
    Ok(())
}

/// Prints the tables, and writes the files.
fn tell_all(bench: &Bench<'_>, preset: Option<&Preset>) -> Result<(), String> {
    let shape = preset.map_or(Shape::Load, |preset| preset.shape);
    let write = |flag: &str, path: &Option<PathBuf>, make: &dyn Fn() -> String| match path {
        Some(path) => write_file(flag, path, &make()),
        None => Ok(()),
    };
    // The table first: what was measured is not lost when a file cannot be written.
    emit(&table::text(bench, shape))?;
    write("--json", &bench.args.json, &|| report::json(bench, preset))?;
    write("--svg", &bench.args.svg, &|| plot::plot(bench, preset, shape))
}

fn write_file(flag: &str, path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|e| format!("{flag} {}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_of_files_with_one_name_are_told_apart() {
        let files = ["a/pair.toml", "b/pair.toml", "b/other.toml"].map(PathBuf::from);
        assert_eq!(names(&files), ["a/pair.toml", "b/pair.toml", "other"]);
    }
}
