//! `tokenrouter plan`: the throughput of delayed batching for every threshold vector, from the exact chain.

mod report;
mod svg;
mod tables;

use std::path::PathBuf;

use tokenrouter_scheduler::planner::{
    Grid, Limits, PlanError, StepQuanta, System, SystemSpec, Table, count_feasible, search_all,
    search_climbing,
};

/// Up to this many feasible vectors all of them are evaluated.
const ALL_UP_TO: u64 = 200;
/// Past this many the list is not even made.
const MOST_VECTORS: usize = 10_000;

/// Flags of `plan`.
#[derive(Clone, Debug, clap::Args)]
pub struct PlanArgs {
    /// Routing matrix as JSON: row i says where a request goes after a step of model i.
    #[arg(long, value_name = "[[P]]")]
    pub routing: String,
    /// Commit matrix as JSON: tokens committed by a request that finishes a step of i and goes to j.
    #[arg(long, value_name = "[[C]]")]
    pub commit: String,
    /// Step time of every model in milliseconds, comma-separated.
    #[arg(long, value_name = "L0,L1,...", allow_hyphen_values = true, required_unless_present = "profile")]
    pub latency_ms: Option<String>,
    /// Step times by the size of the batch, from a file of `tokenrouter profile`: of its models in their order.
    #[arg(long, value_name = "FILE", conflicts_with = "latency_ms")]
    pub profile: Option<PathBuf>,
    /// Concurrent requests.
    #[arg(long, value_name = "N")]
    pub requests: u32,
    /// Model at which requests start.
    #[arg(long, default_value_t = 0)]
    pub entry: usize,
    /// Time grid; step times are rounded to multiples of it. Without it the coarsest exact grid, or one of 20 to 40
    /// quanta per shortest step.
    #[arg(long, value_name = "MS", allow_negative_numbers = true)]
    pub quantum_ms: Option<f64>,
    /// How many times slower every step is while two or more models run; without it, the mean of the profile's models, or
    /// 1.
    #[arg(long, allow_negative_numbers = true)]
    pub slowdown: Option<f64>,
    /// Evaluate all threshold vectors, however many (up to 10,000); above 200 the default is a climb from the closed
    /// form.
    #[arg(long)]
    pub all: bool,
    /// Largest chain that is built.
    #[arg(long, default_value_t = 1_000_000, value_name = "STATES")]
    pub max_states: usize,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Write a plot.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// What was computed, for the ways to show it.
struct Plan {
    table: Table,
    grid: Grid,
    latency_ms: Vec<f64>,
    requests: u32,
    slowdown: f64,
    /// How many vectors are feasible; none beyond 64 bits.
    feasible: Option<u64>,
}

impl Plan {
    /// Whether every feasible vector was evaluated.
    fn complete(&self) -> bool {
        self.feasible == Some(self.table.rows.len() as u64)
    }
}

/// Computes and prints the plan.
///
/// # Errors
/// One line that says what is wrong.
pub fn run(args: &PlanArgs) -> Result<(), String> {
    let plan = compute(args)?;
    if let Some(path) = &args.svg {
        std::fs::write(path, svg::plot(&plan)).map_err(|e| format!("--svg {}: {e}", path.display()))?;
    }
    let text = if args.json { report::json(&plan) } else { report::text(&plan) };
    report::print(&text)
}

fn compute(args: &PlanArgs) -> Result<Plan, String> {
    let routing = matrix("--routing", &args.routing)?;
    let commit = matrix("--commit", &args.commit)?;
    let measured = args.profile.as_deref().map(|path| tables::read(path, &routing, &commit, args.requests));
    let measured = measured.transpose()?;
    let latency_ms = match (&measured, &args.latency_ms) {
        (Some(measured), _) => measured.of_one_row(),
        (None, given) => latencies(given.as_deref().unwrap_or_default())?,
    };
    let slowdown = args.slowdown.or(measured.as_ref().map(|m| m.slowdown)).unwrap_or(1.0);
    let grid = match args.quantum_ms {
        Some(quantum) => Grid::with_quantum(&latency_ms, quantum),
        None => Grid::automatic(&latency_ms),
    }
    .map_err(|e| e.to_string())?;
    let system = System::new(SystemSpec {
        routing,
        commit,
        steps: match &measured {
            Some(measured) => StepQuanta::ByBatch(measured.quanta(grid.quantum_ms)),
            None => StepQuanta::Constant(grid.steps.clone()),
        },
        quantum_ms: grid.quantum_ms,
        requests: args.requests,
        entry: args.entry,
    })
    .map_err(|e| e.to_string())?;
    let feasible = count_feasible(system.models(), system.requests());
    let limits = Limits { states: args.max_states, vectors: MOST_VECTORS };
    let table = if args.all || feasible.is_some_and(|count| count <= ALL_UP_TO) {
        search_all(&system, slowdown, limits)
    } else {
        search_climbing(&system, slowdown, limits)
    }
    .map_err(advise)?;
    Ok(Plan { table, grid, latency_ms, requests: args.requests, slowdown, feasible })
}

/// The refusal, with the flag that helps.
fn advise(error: PlanError) -> String {
    match error {
        PlanError::TooManyStates { .. } => {
            format!("{error}; a coarser --quantum-ms makes it smaller, --max-states allows more")
        }
        other => other.to_string(),
    }
}

fn matrix(flag: &str, text: &str) -> Result<Vec<Vec<f64>>, String> {
    serde_json::from_str(text)
        .map_err(|e| format!("{flag} is {text:?}; a matrix like [[0.65,0.35],[1,0]] is needed ({e})"))
}

fn latencies(text: &str) -> Result<Vec<f64>, String> {
    let parse = |part: &str| part.trim().parse().map_err(|_| part.trim().to_owned());
    let parsed: Result<Vec<f64>, String> = text.split(',').map(parse).collect();
    parsed.map_err(|part| format!("--latency-ms has {part:?}; numbers like 6.0,27.9 are needed"))
}
