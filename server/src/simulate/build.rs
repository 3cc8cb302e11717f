//! From the sections of a scenario to what the simulator runs, with every value checked.

use std::path::Path;

use tokenrouter_scheduler::router::{Registry, Router};
use tokenrouter_scheduler::sim::serving::{
    Change, ChangeKind, ClientFaults, Phase, RunLength, ServingDevice, ServingSpec, TraceRequest,
};
use tokenrouter_scheduler::{CoreConfig, MAX_MODELS, Measured, ModelLimits, Nanos, PAGE_TOKENS, Sharing};
use toml::Value;

use super::routers::{self, Surroundings};
use super::sections::{
    BudgetSection, ChangeSection, ModelSection, RouterSection, RunSection, ScenarioFile, check_keys,
};
use super::workload;
use crate::profile::Profile;
use crate::profile::file::ModelProfile;

/// As the engine's: for faults only.
const GUARD: Nanos = 100_000_000;
/// Virtual time of a round of planning.
const PLANNING_TIME: Nanos = 20_000_000;
/// Of any time in a scenario.
const MOST_SECONDS: f64 = 1e8;
/// Pages of the caches at most.
const MOST_PAGES: usize = 1 << 20;

/// A scenario that can be run.
pub(super) struct Scenario {
    pub(super) spec: ServingSpec,
    /// Names of the models.
    pub(super) models: Vec<String>,
    /// The file's policy.
    pub(super) policy_name: String,
    routers: Vec<RouterSection>,
    phases: Vec<Vec<Vec<f64>>>,
    trace: Vec<TraceRequest>,
}

impl Scenario {
    /// Reads the text of a file whose relative paths start at `base`. Models that have no `latency_ms` take as long as the
    /// profile says: this one, or the file's.
    ///
    /// # Errors
    /// The key at fault and what would be right.
    pub(super) fn parse(
        text: &str,
        base: &Path,
        profile: Option<&Path>,
        registry: &Registry,
    ) -> Result<Self, String> {
        let table: toml::Table = toml::from_str(text).map_err(|e| e.to_string())?;
        check_keys(&table)?;
        let file: ScenarioFile = toml::from_str(text).map_err(|e| e.to_string())?;
        let models = names(&file.models)?;
        // A flag's path starts where the program runs, the file's where the file is.
        let inside = file.scheduling.profile.as_ref().map(|path| base.join(path));
        let profile = profile.map(Path::to_owned).or(inside).map(|path| Profile::load(&path)).transpose()?;
        let devices = Devices::new(&file.models, profile.as_ref())?;
        let trace = workload::trace(&file.workload, base, models.len())?;
        let routers = RouterSection::all(&file.router)?;
        let shares = shares(&routers)?;
        let phase = Phase::default();
        let (changes, phases) = changes(&file.changes, &models)?;
        let spec = ServingSpec {
            config: CoreConfig {
                models: file.models.iter().map(limits).collect::<Result<_, _>>()?,
                policy: file.scheduling.policy(models.len())?,
                planner: file.scheduling.planner()?,
                handoff: file.scheduling.handoff()?,
                guard: GUARD,
                eos_ids: Vec::new(),
                ..budget(&file.budget)?
            },
            devices: file.models.iter().map(|m| devices.device(m)).collect::<Result<_, _>>()?,
            measured: devices.measured(),
            workload: workload::build(&file.workload, &trace, shares)?,
            clients: ClientFaults {
                vanish: share("faults.vanish", file.faults.vanish)?,
                stop: share("faults.stop", file.faults.stop)?,
                patience: file.faults.patience_s.map(|s| nanos("faults.patience_s", s)).transpose()?,
            },
            planning_time: PLANNING_TIME,
            changes,
            phase,
            length: length(&file.run, !trace.is_empty())?,
            seed: file.run.seed,
            audit: file.run.audit,
        };
        if spec.clients.vanish + spec.clients.stop > 1.0 {
            return Err("faults.vanish and faults.stop are more than all requests together".into());
        }
        let policy_name = file.scheduling.policy;
        let scenario = Self { spec, models, policy_name, routers, phases, trace };
        scenario.routes(registry)?;
        Ok(scenario)
    }

    /// Builds the routers, for one run.
    ///
    /// # Errors
    /// The key at fault.
    pub(super) fn routes(&self, registry: &Registry) -> Result<Vec<Box<dyn Router>>, String> {
        let around = Surroundings {
            models: &self.models,
            trace: &self.trace,
            phases: &self.phases,
            phase: &self.spec.phase,
            registry,
        };
        if !self.phases.is_empty() && !self.routers.iter().all(|r| r.name == "matrix") {
            return Err("change.routing needs the router \"matrix\"".into());
        }
        self.routers.iter().map(|router| routers::build(router, &around)).collect()
    }
}

fn names(models: &[ModelSection]) -> Result<Vec<String>, String> {
    if models.is_empty() || models.len() > MAX_MODELS {
        return Err(format!("{} [[model]] sections; 1 to {MAX_MODELS} are possible", models.len()));
    }
    let names: Vec<String> = models.iter().map(|m| m.name.clone()).collect();
    for (i, name) in names.iter().enumerate() {
        if name.is_empty() || names[..i].contains(name) {
            return Err(format!("model.name {name:?} is empty or given twice; names must differ"));
        }
    }
    Ok(names)
}

fn limits(model: &ModelSection) -> Result<ModelLimits, String> {
    let named = |key: &str, value: usize| {
        let good = (1..=65_536).contains(&value);
        let problem = || format!("model \"{}\": {key} is {value}; it must be 1..=65536", model.name);
        if good { Ok(value) } else { Err(problem()) }
    };
    Ok(ModelLimits {
        max_batch_rows: named("max_batch", model.max_batch)?,
        max_step_tokens: named("max_step_tokens", model.max_step_tokens)?,
    })
}

/// Where step times come from.
struct Devices<'a> {
    profile: Option<&'a Profile>,
    /// The models that the profile is asked about.
    profiled: Vec<&'a ModelProfile>,
}

impl<'a> Devices<'a> {
    fn new(models: &[ModelSection], profile: Option<&'a Profile>) -> Result<Self, String> {
        let asked = models.iter().filter(|m| m.latency_ms.is_none());
        let find = |model: &ModelSection| match profile {
            Some(profile) => profile.model(&model.name),
            None => Err(format!(
                "model \"{}\" has no latency_ms, and there is no profile (--profile)",
                model.name
            )),
        };
        Ok(Self { profile, profiled: asked.map(find).collect::<Result<_, _>>()? })
    }

    fn device(&self, model: &ModelSection) -> Result<ServingDevice, String> {
        let named = |e: String| format!("model \"{}\": {e}", model.name);
        let timed = match (&model.latency_ms, self.profile) {
            (None, Some(profile)) => {
                profile.device(profile.model(&model.name)?, &self.profiled, model.max_step_tokens)
            }
            (latency_ms, _) => latency(latency_ms.as_ref().unwrap_or(&Value::Integer(0))).map_err(named)?,
        };
        device(model, timed)
    }

    /// As serving begins with a profile; nothing unless all models are of it.
    fn measured(&self) -> Vec<Measured> {
        let of =
            |profile: &Profile| self.profiled.iter().map(|m| profile.measured(m, &self.profiled)).collect();
        self.profile.map(of).unwrap_or_default()
    }
}

/// The rest of a device, whose step times are `timed`.
fn device(model: &ModelSection, timed: ServingDevice) -> Result<ServingDevice, String> {
    let named = |e: String| format!("model \"{}\": {e}", model.name);
    let mut device = timed;
    let slowdown = model.slowdown.unwrap_or(device.slowdown.max(1.0));
    if device.step_time(1, 1) == 0 {
        return Err(named("latency_ms makes a step of one token take no time".into()));
    }
    if !(1.0..=1e3).contains(&slowdown) {
        return Err(named(format!("slowdown is {slowdown}; it must be 1 to 1000")));
    }
    if !(0.0..=0.5).contains(&model.jitter) {
        return Err(named(format!("jitter is {}; it must be 0 to 0.5", model.jitter)));
    }
    device.slowdown = slowdown;
    if model.slowdown.is_some() {
        // The measured parts are of the measured slowdown.
        device.sharing = Sharing::default();
    }
    device.jitter = model.jitter;
    device.step_failure = share("step_failure", model.step_failure).map_err(named)?;
    device.row_fault = share("row_fault", model.row_fault).map_err(named)?;
    device.dies_at = model.dies_at_s.map(|s| nanos("dies_at_s", s)).transpose().map_err(named)?;
    for &(from, to) in &model.stalls_s {
        let window = (nanos("stalls_s", from).map_err(named)?, nanos("stalls_s", to).map_err(named)?);
        if window.0 >= window.1 {
            return Err(named(format!("stalls_s has [{from}, {to}]; the end must come after the start")));
        }
        device.stalls.push(window);
    }
    Ok(device)
}

/// A number, or a table of `base`, `per_row`, `per_token` and `table`; all in milliseconds.
fn latency(value: &Value) -> Result<ServingDevice, String> {
    let mut device = ServingDevice::default();
    let Value::Table(parts) = value else {
        device.base = millis("latency_ms", value)?;
        return Ok(device);
    };
    crate::config::keys::check_table("latency_ms", parts, &["base", "per_row", "per_token", "table"])?;
    let part = |key: &str| parts.get(key).map_or(Ok(0), |v| millis(&format!("latency_ms.{key}"), v));
    (device.base, device.per_row, device.per_token) = (part("base")?, part("per_row")?, part("per_token")?);
    let points = parts.get("table").map_or(Some(&[][..]), |v| v.as_array().map(Vec::as_slice));
    let wanted = "latency_ms.table must be a list of [fed tokens, milliseconds], in order of fed tokens";
    for point in points.ok_or(wanted)? {
        let Some([fed, time]) = point.as_array().map(Vec::as_slice) else { return Err(wanted.into()) };
        let fed = fed.as_integer().and_then(|n| u32::try_from(n).ok()).ok_or(wanted)?;
        if device.table.last().is_some_and(|&(last, _)| last >= fed) {
            return Err(wanted.into());
        }
        device.table.push((fed, millis("latency_ms.table", time)?));
    }
    Ok(device)
}

fn millis(key: &str, value: &Value) -> Result<Nanos, String> {
    let number = value.as_float().or(value.as_integer().map(|n| n as f64));
    match number.filter(|ms| (0.0..=1e5).contains(ms)) {
        Some(ms) => Ok((ms * 1e6).round() as Nanos),
        None => Err(format!("{key} is {value}; a number of milliseconds from 0 to 100000 is needed")),
    }
}

fn budget(budget: &BudgetSection) -> Result<CoreConfig, String> {
    let pages = match (budget.pages, budget.tokens) {
        (Some(_), Some(_)) => return Err("budget.pages and budget.tokens say the same; give one".into()),
        (Some(pages), None) => pages,
        (None, Some(tokens)) => tokens / PAGE_TOKENS,
        (None, None) => 65_536,
    };
    if pages == 0 || pages > MOST_PAGES {
        return Err(format!("budget: {pages} pages; it must be 1..={MOST_PAGES} (of {PAGE_TOKENS} tokens)"));
    }
    let limits = [
        ("max_model_len", budget.max_model_len, 2, 1 << 24),
        ("max_running", budget.max_running, 1, 65_536),
        ("max_waiting", budget.max_waiting, 1, 65_536),
    ];
    if let Some((key, value, least, most)) =
        limits.into_iter().find(|&(_, v, least, most)| v < least || v > most)
    {
        return Err(format!("budget.{key} is {value}; it must be {least}..={most}"));
    }
    Ok(CoreConfig {
        models: Vec::new(),
        pages,
        context_len: budget.max_model_len,
        max_waiting: budget.max_waiting,
        max_running: budget.max_running,
        eos_ids: Vec::new(),
        guard: GUARD,
        policy: tokenrouter_scheduler::Policy::default(),
        prefix_cache: budget.prefix_cache,
        reserve_pages: budget.reserve_pages,
        planner: None,
        handoff: tokenrouter_scheduler::Handoff::default(),
    })
}

fn shares(routers: &[RouterSection]) -> Result<Vec<f64>, String> {
    if routers.is_empty() {
        return Err("there is no router".into());
    }
    let shares: Vec<f64> = routers.iter().map(|r| r.share.unwrap_or(1.0)).collect();
    match shares.iter().find(|s| !(s.is_finite() && **s > 0.0)) {
        Some(bad) => Err(format!("router.share is {bad}; a number above 0 is needed")),
        None => Ok(shares),
    }
}

/// The changes, and the matrices that they switch to.
type Changes = (Vec<Change>, Vec<Vec<Vec<f64>>>);

fn changes(sections: &[ChangeSection], models: &[String]) -> Result<Changes, String> {
    let (mut changes, mut phases) = (Vec::new(), Vec::new());
    for section in sections {
        let at = nanos("change.at_s", section.at_s)?;
        let what = match (section.clients, section.latency_factor, &section.routing) {
            (Some(clients), None, None) if clients <= workload::MOST_CLIENTS => ChangeKind::Clients(clients),
            (Some(clients), None, None) => {
                return Err(format!(
                    "change.clients is {clients}; at most {} are possible",
                    workload::MOST_CLIENTS
                ));
            }
            (None, Some(factor), None) => {
                let name = section.model.as_deref().ok_or("change.latency_factor needs change.model")?;
                let model = models.iter().position(|m| m == name);
                let model =
                    model.ok_or_else(|| format!("change.model is {name:?}; no model has this name"))?;
                if !(factor > 0.0 && factor <= 1e3) {
                    return Err(format!(
                        "change.latency_factor is {factor}; it must be above 0 and at most 1000"
                    ));
                }
                ChangeKind::Latency(model, factor)
            }
            (None, None, Some(routing)) => {
                phases.push(routing.clone());
                ChangeKind::Phase(phases.len())
            }
            _ => return Err("[[change]] needs one of clients, latency_factor and routing".into()),
        };
        changes.push(Change { at, what });
    }
    Ok((changes, phases))
}

fn length(run: &RunSection, traced: bool) -> Result<RunLength, String> {
    if run.tokens.is_none() && run.seconds.is_none() && !traced {
        return Err("[run] needs tokens or seconds".into());
    }
    if run.tokens == Some(0) {
        return Err("run.tokens is 0; at least 1 is needed".into());
    }
    // The virtual clock never comes near the end of its 64 bits.
    let time = nanos("run.seconds", run.seconds.unwrap_or(MOST_SECONDS))?;
    Ok(RunLength { warm_up: run.warm_up, tokens: run.tokens, time: Some(time) })
}

/// Seconds as nanoseconds.
pub(super) fn nanos(key: &str, seconds: f64) -> Result<Nanos, String> {
    if (0.0..=MOST_SECONDS).contains(&seconds) {
        Ok((seconds * 1e9).round() as Nanos)
    } else {
        Err(format!("{key} is {seconds}; a number of seconds from 0 to {MOST_SECONDS:e} is needed"))
    }
}

fn share(key: &str, value: f64) -> Result<f64, String> {
    if (0.0..=1.0).contains(&value) { Ok(value) } else { Err(format!("{key} is {value}; it must be 0 to 1")) }
}
