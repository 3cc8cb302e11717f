//! Settings that would change the mathematics and that the engine does not compute.

use serde_json::Value;

use super::fields::Fields;
use crate::error::LoadError;

/// Refuses quantized weights, experts, other activations and multimodal positions.
pub(super) fn unsupported(config: &Fields<'_>) -> Result<(), LoadError> {
    for name in ["quantization_config", "compression_config"] {
        if config.get(name).is_some() {
            return Err(config.wrong(name, "quantized weights are not supported: bf16, f16 or f32 is needed"));
        }
    }
    for name in ["num_experts", "num_local_experts", "n_routed_experts", "moe_intermediate_size"] {
        if config.get(name).is_some_and(|v| v.as_u64() != Some(0)) {
            return Err(config.wrong(name, "experts are not supported: a dense model is needed"));
        }
    }
    if let Some(name) = config.text("hidden_act")?.filter(|name| *name != "silu") {
        return Err(config.error("hidden_act", format!("is {name:?}, \"silu\" is needed")));
    }
    if config.get("use_mrope").is_some_and(|v| *v != Value::Bool(false)) {
        return Err(config.wrong("use_mrope", "multimodal positions are not supported: false is needed"));
    }
    Ok(())
}

/// Refuses a sliding window that some layer would use within the context (bug-log L09). The window is
/// off unless `use_sliding_window` is true; then layers from `max_window_layers` on have it, unless
/// `layer_types` says which. A window at least as long as the context changes nothing.
pub(super) fn sliding_window(config: &Fields<'_>, layers: usize, context: usize) -> Result<(), LoadError> {
    let limit = u64::from(u32::MAX);
    let listed = layer_types(config, layers)?;
    if config.flag("use_sliding_window")? != Some(true) || listed {
        return Ok(());
    }
    // An absent window is 4096 in the Qwen classes, a null one is none.
    let window = match config.integer("sliding_window", 1, limit)? {
        Some(window) => window,
        None if config.has("sliding_window") => return Ok(()),
        None => 4096,
    };
    let first = config.integer("max_window_layers", 0, limit)?.unwrap_or(28);
    if window >= context || first >= layers {
        return Ok(());
    }
    let problem = format!(
        "is true with a window of {window} tokens from layer {first} of {layers} on, shorter than the context \
         ({context}): sliding windows are not supported, false is needed"
    );
    Err(config.error("use_sliding_window", problem))
}

/// Checks `layer_types`; true when it is there (and then every layer is `full_attention`).
fn layer_types(config: &Fields<'_>, layers: usize) -> Result<bool, LoadError> {
    const NAME: &str = "layer_types";
    let Some(value) = config.get(NAME) else { return Ok(false) };
    let list = value.as_array().ok_or_else(|| config.wrong(NAME, "a list of strings is needed"))?;
    if let Some((i, other)) = list.iter().enumerate().find(|(_, t)| t.as_str() != Some("full_attention")) {
        let problem = format!("entry {i} is {other}, only \"full_attention\" is supported");
        return Err(config.error(NAME, problem));
    }
    if list.len() != layers {
        let problem = format!("has {} entries, num_hidden_layers is {layers}: they must agree", list.len());
        return Err(config.error(NAME, problem));
    }
    Ok(true)
}
