//! What a start would find, without one: everything is opened and checked, nothing is allocated and no device is asked.

use tokenrouter_scheduler::router::Registry;

use super::{engine_config, load_text, refusal, threshold_lines};
use crate::config::Config;
use crate::sources;

/// A deployment that would start.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The memory plan as a table, or what each GPU would hold.
    pub plan: String,
    /// Which thresholds are in force.
    pub thresholds: Vec<String>,
}

impl std::fmt::Display for Checked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{}", self.plan.trim_end())?;
        self.thresholds.iter().try_for_each(|line| writeln!(f, "{line}"))?;
        writeln!(f, "the configuration is good")
    }
}

/// Checks a deployment as [`start`](super::start) does: checkpoints, tokenizers, router files, routers, shapes, memory.
///
/// # Errors
/// As `start`.
pub fn check(config: &Config, registry: &Registry) -> Result<Checked, String> {
    let config = &sources::resolve(config)?;
    let text = load_text(config)?;
    let engine_config = engine_config(config, &text)?;
    super::hints::of(config, &engine_config)?;
    let checked = tokenrouter_engine::check(&engine_config, registry).map_err(|e| refusal(&e))?;
    Ok(Checked { plan: checked.plan, thresholds: threshold_lines(&checked.routes).collect() })
}
