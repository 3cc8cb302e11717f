//! `tokenrouter simulate`: a scenario file on the scheduler's performance simulator.

mod build;
mod grid;
mod policy;
mod report;
mod routers;
mod sections;
mod trace;
mod workload;

use std::path::PathBuf;

use tokenrouter_scheduler::router::Registry;
use tokenrouter_scheduler::sim::serving::Report;

pub(crate) use policy::parse as parse_policy;
pub(crate) use report::summary;

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
    /// `threshold=best` and `threshold+hold=best` try every threshold and take the best.
    #[arg(long = "policy", value_name = "NAME[=N]")]
    pub policies: Vec<String>,
    /// Overrides scheduling.handoff: `resume` or `readmit`; with several, a row each.
    #[arg(long = "handoff", value_name = "NAME", value_delimiter = ',')]
    pub handoffs: Vec<String>,
    /// Overrides workload.clients of a closed loop; with several numbers, a row each.
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    pub clients: Vec<usize>,
    /// Step times measured by `tokenrouter profile`, for the models that have no latency_ms; overrides
    /// scheduling.profile.
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
}

/// One row's outcome.
struct Outcome {
    /// The policy as the user wrote it.
    policy: String,
    /// What tells the row from others of this policy; empty when nothing does.
    label: String,
    /// Clients of a closed loop.
    clients: Option<usize>,
    handoff: &'static str,
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
    let mut scenario = Scenario::parse(&text, base, args.profile.as_deref(), registry).map_err(named)?;
    scenario.spec.seed = args.seed.unwrap_or(scenario.spec.seed);
    let outcomes = grid::run(args, &mut scenario, registry).map_err(named)?;
    let shown =
        if args.json { report::json(args, &scenario, &outcomes) } else { report::text(&scenario, &outcomes) };
    emit(&shown)
}
