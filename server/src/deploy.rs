//! From a configuration to the parts that run: tokenizers checked against each other, routes named, engine started.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use tokenrouter_engine::{DType, EngineConfig, EngineHandle, EngineModel, ModelInfo, RouteConfig, RouteInfo};
use tokenrouter_scheduler::ModelId;
use tokenrouter_scheduler::router::{ParamValue, Registry};

use crate::api::{AnswerContext, ApiLimits, ServedModel, ServedRoute};
use crate::config::Config;
use crate::text::{TextModel, check_pair};

/// A started deployment without sockets.
pub struct Deployment {
    /// The engine.
    pub engine: EngineHandle,
    /// The tokenizer and chat template of the entry model, which speak for all models.
    pub text: Arc<TextModel>,
    /// What a request may ask for.
    pub limits: ApiLimits,
    /// What all answers share.
    pub context: Arc<AnswerContext>,
}

/// Loads tokenizers and models and starts the engine. `wake` is called when the engine has something to say.
///
/// # Errors
/// One line that names the file, field or value at fault.
pub fn start(
    config: &Config,
    registry: &Registry,
    wake: Box<dyn Fn() + Send + Sync>,
) -> Result<Deployment, String> {
    let text = load_text(config)?;
    let engine_config = engine_config(config, &text)?;
    let engine = tokenrouter_engine::start(&engine_config, registry, wake).map_err(|e| e.to_string())?;
    let text = Arc::new(text);
    let names = engine.info.routes.iter().map(|r| r.name.clone()).collect();
    let limits = ApiLimits {
        max_n: config.server.max_n,
        max_choices: config.server.max_running.saturating_add(config.server.max_waiting),
        ..ApiLimits::new(&text, engine.info.context_len, names)
    };
    let context = Arc::new(AnswerContext {
        text: text.clone(),
        eos_ids: engine.info.eos_ids.clone(),
        routes: engine.info.routes.iter().map(|r| served_route(r, &engine.info.models)).collect(),
        models: engine.info.models.iter().map(|m| m.name.clone()).collect(),
        system_fingerprint: fingerprint(config, &text),
    });
    Ok(Deployment { engine, text, limits, context })
}

fn served_route(route: &RouteInfo, models: &[ModelInfo]) -> ServedRoute {
    let served = |m: ModelId| ServedModel {
        index: m.0,
        name: models.get(m.index()).map_or_else(String::new, |info| info.name.clone()),
        role: if m == route.entry { "entry" } else { "peer" },
    };
    ServedRoute {
        name: route.name.clone(),
        algorithm: route.router.clone(),
        entry: route.entry.0,
        models: route.reach.iter().map(served).collect(),
    }
}

/// Changes with the version, the models, the router and its parameters, and the type of the cache: with anything
/// by which equal requests may be answered differently. A model's path stands for its weights, which are not read here.
fn fingerprint(config: &Config, text: &TextModel) -> String {
    let mut hasher = DefaultHasher::new();
    env!("CARGO_PKG_VERSION").hash(&mut hasher);
    text.fingerprint().hash(&mut hasher);
    config.budget.kv_dtype.hash(&mut hasher);
    config.router.name.hash(&mut hasher);
    for (key, value) in &config.router.params {
        (key, value.to_string()).hash(&mut hasher);
    }
    for model in &config.models {
        (&model.name, &model.path).hash(&mut hasher);
    }
    format!("fp_{:016x}", hasher.finish())
}

/// The entry model's text side, after every other model's tokenizer was found to agree with it.
fn load_text(config: &Config) -> Result<TextModel, String> {
    let (entry, others) = config.models.split_first().ok_or("no model is configured")?;
    let named = |name: &str, e: &dyn std::fmt::Display| format!("model \"{name}\": {e}");
    let text = TextModel::load(&entry.path).map_err(|e| named(&entry.name, &e))?;
    for model in others {
        let other = TextModel::load(&model.path).map_err(|e| named(&model.name, &e))?;
        check_pair((&entry.name, &text), (&model.name, &other))
            .map_err(|e| format!("these models cannot write one answer together: {e}"))?;
    }
    Ok(text)
}

fn engine_config(config: &Config, text: &TextModel) -> Result<EngineConfig, String> {
    let models = config
        .models
        .iter()
        .map(|m| EngineModel {
            name: m.name.clone(),
            dir: m.path.clone(),
            threads: m.threads,
            max_batch_rows: m.max_batch,
            max_step_tokens: m.max_step_tokens,
        })
        .collect();
    Ok(EngineConfig {
        models,
        routes: routes(config)?,
        budget_bytes: config.budget_bytes()?,
        kv_dtype: match config.budget.kv_dtype.as_str() {
            "f32" => DType::F32,
            "bf16" => DType::Bf16,
            _ => DType::F16,
        },
        context_len: config.budget.max_model_len,
        prefix_cache: config.budget.prefix_cache,
        reserve_pages: config.budget.reserve_pages,
        max_running: config.server.max_running,
        max_waiting: config.server.max_waiting,
        real_vocab: text.real_vocab(),
        eos_ids: text.eos_ids().to_vec(),
        policy: config.scheduling.policy(config.models.len())?,
        handoff: config.scheduling.handoff()?,
        planner: config.scheduling.planner()?,
    })
}

/// The routed pair under its served name, then every model alone under its own.
fn routes(config: &Config) -> Result<Vec<RouteConfig>, String> {
    let mut params = BTreeMap::new();
    for (key, value) in &config.router.params {
        params.insert(key.clone(), param(config, key, value)?);
    }
    let mut routes = vec![RouteConfig {
        name: config.server.served_model_name.clone(),
        router: config.router.name.clone(),
        params,
    }];
    for (index, model) in config.models.iter().enumerate() {
        routes.push(RouteConfig {
            name: model.name.clone(),
            router: "single".into(),
            params: BTreeMap::from([("model".into(), ParamValue::Int(index as i64))]),
        });
    }
    Ok(routes)
}

/// A router's parameter; a model may be given by its name.
fn param(config: &Config, key: &str, value: &toml::Value) -> Result<ParamValue, String> {
    Ok(match value {
        toml::Value::Boolean(v) => ParamValue::Bool(*v),
        toml::Value::Integer(v) => ParamValue::Int(*v),
        toml::Value::Float(v) => ParamValue::Float(*v),
        toml::Value::String(v) => match config.models.iter().position(|m| m.name == *v) {
            Some(index) if key == "model" || key == "peer" => ParamValue::Int(index as i64),
            _ => ParamValue::Text(v.clone()),
        },
        toml::Value::Array(values) => {
            ParamValue::List(values.iter().map(|v| param(config, key, v)).collect::<Result<_, _>>()?)
        }
        other => {
            return Err(format!("router.{key} is {other}; a number, a text, a boolean or a list is needed"));
        }
    })
}
