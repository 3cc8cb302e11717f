//! Which keys the configuration knows, and the nearest one to a key that it does not.

use toml::{Table, Value};

const TOP: &[&str] = &["device", "model", "router", "route", "scheduling", "budget", "cuda", "server"];
const MODEL: &[&str] = &["name", "path", "devices", "threads", "max_batch", "max_step_tokens"];
pub(crate) const SCHEDULING: &[&str] =
    &["policy", "threshold", "beside", "alpha", "p99_inter_token_ms", "handoff"];
const BUDGET: &[&str] = &["memory", "kv_dtype", "max_model_len", "prefix_cache", "reserve_pages"];
const CUDA: &[&str] = &["memory_fraction", "memory", "graphs", "largest_bucket"];
const SERVER: &[&str] = &[
    "http",
    "tcp",
    "served_model_name",
    "max_running",
    "max_waiting",
    "max_connections",
    "max_body_bytes",
    "tokenizer_threads",
    "max_n",
    "shutdown_timeout_s",
];

/// Refuses keys that no section knows. The keys of `[router]` and `[[route]]` are checked by the
/// router itself.
pub(super) fn check(table: &Table) -> Result<(), String> {
    check_table("the file", table, TOP)?;
    if let Some(Value::Array(models)) = table.get("model") {
        for model in models {
            if let Value::Table(model) = model {
                check_table("[[model]]", model, MODEL)?;
            }
        }
    }
    for (name, known) in [("scheduling", SCHEDULING), ("budget", BUDGET), ("cuda", CUDA), ("server", SERVER)]
    {
        if let Some(Value::Table(section)) = table.get(name) {
            check_table(&format!("[{name}]"), section, known)?;
        }
    }
    Ok(())
}

/// Refuses the first key of a section that is not `known`, with the nearest one that is.
pub(crate) fn check_table(place: &str, table: &Table, known: &[&str]) -> Result<(), String> {
    for key in table.keys() {
        if !known.contains(&key.as_str()) {
            let hint = tokenrouter_scheduler::router::closest(key, known.iter().copied())
                .map(|n| format!("; did you mean \"{n}\"?"))
                .unwrap_or_default();
            return Err(format!("unknown key \"{key}\" in {place}{hint} (known keys: {})", known.join(", ")));
        }
    }
    Ok(())
}
