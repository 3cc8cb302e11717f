//! `tokenrouter simulate`: a scenario file on the scheduler's performance simulator.

mod build;
mod policy;
mod report;
mod routers;
mod sections;
mod trace;
mod workload;

use std::path::PathBuf;

use tokenrouter_scheduler::router::Registry;
use tokenrouter_scheduler::sim::serving::{Report, serve};
use tokenrouter_scheduler::{PlannerConfig, Policy};

pub(crate) use policy::parse as parse_policy;
pub(crate) use report::summary;

use crate::config::AUTO;
use crate::paint::emit;
use build::Scenario;

/// Flags of `simulate`.
#[derive(Clone, Debug, clap::Args)]
pub struct SimulateArgs {
    /// The TOML file that describes devices, router, workload and faults.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Overrides run.seed.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Overrides [scheduling]; may be given several times, for a row each on the same draws. A name, or with its
    /// number: `auto`, `eager`, `threshold=5`, `threshold+hold=5`, `threshold+hold=5,3` (B, H), `exclusive=6`,
    /// `lookahead=1.1`.
    #[arg(long = "policy", value_name = "NAME[=N]")]
    pub policies: Vec<String>,
}

/// One policy's outcome.
struct Outcome {
    /// As the user wrote it.
    policy: String,
    report: Report,
}

/// Runs the scenario under every policy and prints what was measured.
///
/// # Errors
/// One text that names the file and the key at fault, or says what went wrong in the run.
pub fn run(args: &SimulateArgs, registry: &Registry) -> Result<(), String> {
    let named = |problem: String| format!("{}: {problem}", args.file.display());
    let text = std::fs::read_to_string(&args.file).map_err(|e| named(e.to_string()))?;
    let base = args.file.parent().unwrap_or(std::path::Path::new(""));
    let mut scenario = Scenario::parse(&text, base, registry).map_err(named)?;
    scenario.spec.seed = args.seed.unwrap_or(scenario.spec.seed);
    let mut outcomes = Vec::new();
    for (name, policy, planner) in policies(args, &scenario)? {
        (scenario.spec.config.policy, scenario.spec.config.planner) = (policy, planner);
        let routes = scenario.routes(registry).map_err(named)?;
        let report = serve(&scenario.spec, routes).map_err(|e| named(format!("policy {name}: {e}")))?;
        outcomes.push(Outcome { policy: name, report });
    }
    let shown =
        if args.json { report::json(args, &scenario, &outcomes) } else { report::text(&scenario, &outcomes) };
    emit(&shown)
}

/// A policy with its name, and the planner that goes with it.
type Named = (String, Policy, Option<PlannerConfig>);

/// The policies to run: those asked for, or the file's.
fn policies(args: &SimulateArgs, scenario: &Scenario) -> Result<Vec<Named>, String> {
    let config = &scenario.spec.config;
    if args.policies.is_empty() {
        return Ok(vec![(scenario.policy_name.clone(), config.policy.clone(), config.planner)]);
    }
    let parse = |text: &String| {
        if text == AUTO {
            let planner = config.planner.unwrap_or_default();
            return Ok((text.clone(), Policy::default(), Some(planner)));
        }
        let policy = policy::parse(text).map_err(|e| format!("--policy {text}: {e}"))?;
        Ok((text.clone(), policy, None))
    };
    args.policies.iter().map(parse).collect()
}
