//! What makes the engine faster and changes no answer: measured step times, and cores.

use tokenrouter_engine::{EngineConfig, EngineError, Hints, probe};

use super::{engine_config, load_text};
use crate::cli::tell;
use crate::config::Config;
use crate::profile::Profile;
use crate::profile::machine::Machine;
use crate::sources;

/// The cores of every model, and the step times of the profile, if one is configured and of this machine.
///
/// # Errors
/// A profile that cannot be read, or is of other models or threads, by name.
pub(super) fn of(config: &Config, engine: &EngineConfig) -> Result<Hints, String> {
    let mut hints =
        Hints { cores: config.models.iter().map(|m| m.cores.clone()).collect(), ..Hints::default() };
    let Some(path) = &config.scheduling.profile else { return Ok(hints) };
    let profile = Profile::load(path)?;
    let named = |problem: String| format!("scheduling.profile {}: {problem}", path.display());
    let prints = probe::prints(engine, &hints).map_err(|e: EngineError| e.to_string())?;
    profile.check_models(&prints).map_err(named)?;
    if let Some(difference) = profile.foreign_machine(&Machine::here()) {
        tell(&format!("warning: {}; it is left out", named(difference)));
        return Ok(hints);
    }
    let models = prints.iter().map(|m| profile.model(&m.name)).collect::<Result<Vec<_>, _>>()?;
    hints.measured = models.iter().map(|model| profile.measured(model, &models)).collect();
    Ok(hints)
}

/// What the engine of a deployment is started with, for those who start it otherwise.
///
/// # Errors
/// As [`super::start`], for what is read before.
pub(crate) fn engine_parts(config: &Config) -> Result<(EngineConfig, Hints), String> {
    let config = &sources::resolve(config)?;
    let text = load_text(config)?;
    let engine = engine_config(config, &text)?;
    let hints = of(config, &engine)?;
    Ok((engine, hints))
}

/// The longest request that every model takes, in tokens; memory is not asked.
///
/// # Errors
/// A checkpoint that cannot be opened.
pub(crate) fn context_limit(engine: &EngineConfig) -> Result<usize, String> {
    let limit = probe::context_len(engine).map_err(|e| e.to_string())?;
    if limit < 2 { Err(format!("requests of {limit} tokens cannot be measured")) } else { Ok(limit) }
}
