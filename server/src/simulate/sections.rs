//! The sections of a scenario file, as they are written.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Value;

use crate::config::{SchedulingSection, keys};

/// The whole file.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct ScenarioFile {
    #[serde(rename = "model")]
    pub(super) models: Vec<ModelSection>,
    /// One table, or a list of them with shares.
    pub(super) router: Value,
    #[serde(default)]
    pub(super) scheduling: SchedulingSection,
    #[serde(default)]
    pub(super) budget: BudgetSection,
    pub(super) workload: WorkloadSection,
    #[serde(default)]
    pub(super) faults: FaultsSection,
    #[serde(default, rename = "change")]
    pub(super) changes: Vec<ChangeSection>,
    #[serde(default)]
    pub(super) run: RunSection,
}

/// A virtual device.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct ModelSection {
    pub(super) name: String,
    /// Step time: a number, or a table with `base`, `per_row`, `per_token` and `table`; absent: as the profile says.
    pub(super) latency_ms: Option<Value>,
    #[serde(default = "default_batch")]
    pub(super) max_batch: usize,
    #[serde(default = "default_step_tokens")]
    pub(super) max_step_tokens: usize,
    /// How many times slower its steps are while another model runs; absent: as the profile says, or 1.
    pub(super) slowdown: Option<f64>,
    /// Relative standard deviation of the step time.
    #[serde(default)]
    pub(super) jitter: f64,
    /// Chance that a step fails.
    #[serde(default)]
    pub(super) step_failure: f64,
    /// Chance that a row fails.
    #[serde(default)]
    pub(super) row_fault: f64,
    /// Windows in which no step ends.
    #[serde(default)]
    pub(super) stalls_s: Vec<(f64, f64)>,
    /// When every step fails.
    pub(super) dies_at_s: Option<f64>,
}

/// A router; every other key is a parameter of it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct RouterSection {
    pub(super) name: String,
    pub(super) share: Option<f64>,
    #[serde(flatten)]
    pub(super) params: BTreeMap<String, Value>,
}

impl RouterSection {
    /// The sections of `[router]`, or of every `[[router]]`.
    pub(super) fn all(value: &Value) -> Result<Vec<Self>, String> {
        let read = |value: &Value| {
            value.clone().try_into().map_err(|e: toml::de::Error| format!("[router]: {}", e.message()))
        };
        match value {
            Value::Array(sections) => sections.iter().map(read).collect(),
            section => Ok(vec![read(section)?]),
        }
    }
}

/// Memory and limits.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub(super) struct BudgetSection {
    /// Pages of 16 tokens; or
    pub(super) pages: Option<usize>,
    /// tokens.
    pub(super) tokens: Option<usize>,
    pub(super) prefix_cache: bool,
    pub(super) reserve_pages: usize,
    pub(super) max_model_len: usize,
    pub(super) max_running: usize,
    pub(super) max_waiting: usize,
}

impl Default for BudgetSection {
    fn default() -> Self {
        Self {
            pages: None,
            tokens: None,
            prefix_cache: true,
            reserve_pages: 8,
            max_model_len: 32_768,
            max_running: 64,
            max_waiting: 256,
        }
    }
}

/// Who asks what when. Lengths are a number, a range `[low, high]` or `{ mean = 100 }` (geometric).
#[derive(Clone, Debug, Deserialize)]
pub(super) struct WorkloadSection {
    /// `closed`, `poisson`, `bursts` or `trace`.
    pub(super) arrivals: String,
    pub(super) clients: Option<usize>,
    pub(super) rate_per_s: Option<f64>,
    pub(super) burst: Option<usize>,
    pub(super) every_s: Option<f64>,
    pub(super) trace: Option<String>,
    pub(super) prompt: Option<Value>,
    pub(super) answer: Option<Value>,
    pub(super) turns: Option<Value>,
    pub(super) follow_up: Option<Value>,
    #[serde(default)]
    pub(super) think_s: f64,
    #[serde(default)]
    pub(super) shared_prefix: u32,
    pub(super) max_tokens: Option<u32>,
    /// First answers of a closed loop have different lengths, as in `tokenrouter bench`.
    #[serde(default)]
    pub(super) staggered: bool,
}

/// What clients do.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct FaultsSection {
    pub(super) vanish: f64,
    pub(super) stop: f64,
    pub(super) patience_s: Option<f64>,
}

/// Something that changes: one of `clients`, `latency_factor` (of `model`) and `routing`.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct ChangeSection {
    pub(super) at_s: f64,
    pub(super) clients: Option<usize>,
    pub(super) model: Option<String>,
    pub(super) latency_factor: Option<f64>,
    pub(super) routing: Option<Vec<Vec<f64>>>,
}

/// How much is run.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub(super) struct RunSection {
    pub(super) seed: u64,
    pub(super) warm_up: u64,
    pub(super) tokens: Option<u64>,
    pub(super) seconds: Option<f64>,
    pub(super) audit: bool,
}

impl Default for RunSection {
    fn default() -> Self {
        Self { seed: 1, warm_up: 1_000, tokens: None, seconds: None, audit: false }
    }
}

fn default_batch() -> usize {
    64
}

fn default_step_tokens() -> usize {
    512
}

const TOP: &[&str] = &["model", "router", "scheduling", "budget", "workload", "faults", "change", "run"];
const MODEL: &[&str] = &[
    "name",
    "latency_ms",
    "max_batch",
    "max_step_tokens",
    "slowdown",
    "jitter",
    "step_failure",
    "row_fault",
    "stalls_s",
    "dies_at_s",
];
const BUDGET: &[&str] =
    &["pages", "tokens", "prefix_cache", "reserve_pages", "max_model_len", "max_running", "max_waiting"];
const WORKLOAD: &[&str] = &[
    "arrivals",
    "clients",
    "rate_per_s",
    "burst",
    "every_s",
    "trace",
    "prompt",
    "answer",
    "turns",
    "follow_up",
    "think_s",
    "shared_prefix",
    "max_tokens",
    "staggered",
];
const FAULTS: &[&str] = &["vanish", "stop", "patience_s"];
const CHANGE: &[&str] = &["at_s", "clients", "model", "latency_factor", "routing"];
const RUN: &[&str] = &["seed", "warm_up", "tokens", "seconds", "audit"];

/// Refuses keys that no section knows. Those of a router are checked where it is built.
pub(super) fn check_keys(table: &toml::Table) -> Result<(), String> {
    keys::check_table("the file", table, TOP)?;
    for (name, known) in [("model", MODEL), ("change", CHANGE)] {
        for section in table.get(name).and_then(Value::as_array).into_iter().flatten() {
            if let Value::Table(section) = section {
                keys::check_table(&format!("[[{name}]]"), section, known)?;
            }
        }
    }
    let scheduling = keys::names("scheduling");
    let sections = [
        ("scheduling", scheduling.as_slice()),
        ("budget", BUDGET),
        ("workload", WORKLOAD),
        ("faults", FAULTS),
        ("run", RUN),
    ];
    for (name, known) in sections {
        if let Some(Value::Table(section)) = table.get(name) {
            keys::check_table(&format!("[{name}]"), section, known)?;
        }
    }
    Ok(())
}
