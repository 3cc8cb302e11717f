//! From a configuration to the parts that run: tokenizers checked against each other, routes named, engine started.

mod chat;
mod check;
mod hints;
mod routes;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use tokenrouter_engine::{
    EngineConfig, EngineError, EngineHandle, EngineInfo, EngineModel, FaultOptions, ModelInfo, RouteInfo,
    WeightForm,
};
use tokenrouter_scheduler::router::{Registry, RouterError};
use tokenrouter_scheduler::{ModelId, PeerLoss};

use crate::api::{AnswerContext, ApiLimits, RoutingLimits, ServedModel, ServedRoute};
use crate::config::{Config, DeviceName, FaultsSection, OnPeerLoss, RequestLimitsSection};
use crate::sources;
use crate::text::{TextModel, check_pair};

pub use check::{Checked, check};
pub(crate) use hints::{context_limit, engine_parts};

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
    let config = &sources::resolve(config)?;
    let text = load_text(config)?;
    let engine_config = engine_config(config, &text)?;
    let hints = hints::of(config, &engine_config)?;
    let engine =
        tokenrouter_engine::start_hinted(&engine_config, registry, &hints, wake).map_err(|e| refusal(&e))?;
    let text = Arc::new(text);
    let names = engine.info.routes.iter().map(|r| r.name.clone()).collect();
    let routes: Vec<_> = engine.info.routes.iter().map(|r| served_route(r, &engine.info.models)).collect();
    let limits = ApiLimits {
        max_n: config.server.max_n,
        max_choices: config.server.max_running.saturating_add(config.server.max_waiting),
        chat: chat::settings(&config.chat, &text),
        routing: routing_limits(&config.request_limits, routes.clone()),
        ..ApiLimits::new(&text, engine.info.context_len, names)
    };
    let context = Arc::new(AnswerContext {
        text: text.clone(),
        eos_ids: engine.info.eos_ids.clone(),
        routes,
        models: engine.info.models.iter().map(|m| m.name.clone()).collect(),
        prices: config.models.iter().map(|model| model.price).collect(),
        system_fingerprint: fingerprint(config, &text),
    });
    Ok(Deployment { engine, text, limits, context })
}

/// What requests may set about routing.
fn routing_limits(section: &RequestLimitsSection, routes: Vec<ServedRoute>) -> RoutingLimits {
    RoutingLimits {
        threshold: section.threshold,
        max_llm_fraction: section.max_llm_fraction,
        router: section.router,
        routes,
    }
}

/// A refusal of the engine; a threshold that nobody gives is said with every place that could give it.
fn refusal(error: &EngineError) -> String {
    match error {
        EngineError::Router(RouterError::BadParam { router, param, got, .. })
            if param == "threshold" && got == "missing" =>
        {
            format!(
                "router \"{router}\" has no threshold: neither its section of the configuration (key `threshold`) nor a \
                 router file (`threshold` of router.json) gives one; `tokenrouter calibrate` finds one"
            )
        }
        other => other.to_string(),
    }
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

/// Changes with the version, the models, the device, the routers and their parameters, and the type of the cache: with anything
/// by which equal requests may be answered differently. A model's path stands for its weights, which are not read here.
fn fingerprint(config: &Config, text: &TextModel) -> String {
    let mut hasher = DefaultHasher::new();
    env!("CARGO_PKG_VERSION").hash(&mut hasher);
    text.fingerprint().hash(&mut hasher);
    config.kv_dtype().map(|dtype| format!("{dtype:?}")).hash(&mut hasher);
    let on_gpu = config.device == DeviceName::Cuda;
    on_gpu.hash(&mut hasher);
    for routed in config.routed() {
        (routed.served, routed.router, routed.file).hash(&mut hasher);
        for (key, value) in routed.params {
            (key, value.to_string()).hash(&mut hasher);
        }
    }
    for model in &config.models {
        // On the CPU the parts of a model give the same bits as the whole.
        let parts = if on_gpu { model.devices.len() } else { 1 };
        (&model.name, &model.path, parts).hash(&mut hasher);
        if model.weight_form() != WeightForm::Stored {
            "int8".hash(&mut hasher);
        }
    }
    format!("fp_{:016x}", hasher.finish())
}

/// The entry model's text side, after every other model's tokenizer was found to agree with it.
fn load_text(config: &Config) -> Result<TextModel, String> {
    let (entry, others) = config.models.split_first().ok_or("no model is configured")?;
    let named = |name: &str, e: &dyn std::fmt::Display| format!("model \"{name}\": {e}");
    let text = TextModel::load_with(&entry.path, &chat::text_options(&config.chat))
        .map_err(|e| named(&entry.name, &e))?;
    for model in others {
        let other = TextModel::load(&model.path).map_err(|e| named(&model.name, &e))?;
        check_pair((&entry.name, &text), (&model.name, &other))
            .map_err(|e| format!("these models cannot write one answer together: {e}"))?;
    }
    Ok(text)
}

fn engine_config(config: &Config, text: &TextModel) -> Result<EngineConfig, String> {
    let (heads, routes) = routes::build(config)?;
    let models = config
        .models
        .iter()
        .enumerate()
        .map(|(index, m)| EngineModel {
            name: m.name.clone(),
            dir: m.path.clone(),
            weights: m.weight_form(),
            devices: m.devices.clone(),
            threads: m.threads,
            max_batch_rows: m.max_batch,
            max_step_tokens: m.step_tokens(config.device),
            // Routes enter at the first model, and its tokens are what a router's file scores.
            heads: if index == 0 { heads.clone() } else { Vec::new() },
        })
        .collect();
    Ok(EngineConfig {
        models,
        routes,
        device: config.device_kind()?,
        budget_bytes: config.budget_bytes()?,
        kv_dtype: config.kv_dtype()?,
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
        faults: fault_options(&config.faults),
    })
}

/// What each model is: its class, types, vocabulary and where it runs.
pub fn model_lines(config: &Config, info: &EngineInfo) -> impl Iterator<Item = String> {
    let on_gpu = config.device == DeviceName::Cuda;
    config.models.iter().zip(&info.models).map(move |(model, info)| {
        let place = if on_gpu { format!("GPU {:?}", model.devices) } else { "CPU".to_owned() };
        let ModelInfo { name, architecture, dtypes, vocab, context_len, .. } = info;
        format!(
            "model {name}: {architecture}, {dtypes}, vocabulary {vocab}, context {context_len}, on {place}"
        )
    })
}

fn fault_options(section: &FaultsSection) -> FaultOptions {
    let on_peer_loss = match section.on_peer_loss {
        OnPeerLoss::Fail => PeerLoss::Fail,
        OnPeerLoss::Continue => PeerLoss::Continue,
    };
    FaultOptions { on_peer_loss, step_timeout: section.step_timeout() }
}

/// For each route that has a threshold: which one won, from the configuration, the router file or the algorithm's paper.
/// A request's own goes before it.
pub fn threshold_lines(routes: &[RouteInfo]) -> impl Iterator<Item = String> {
    let with = routes.iter().filter_map(|route| Some((route, route.terms.threshold?)));
    with.map(|(route, (threshold, source))| {
        let source = source.to_string();
        let source = source.strip_prefix("the ").unwrap_or(&source);
        format!("router {}: threshold {threshold} ({source}), served as \"{}\"", route.router, route.name)
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokenrouter_scheduler::router::{HeadKind, Source, Threshold};

    use super::*;

    /// The tiny random model of the router heads' golden files, twice, behind a router.
    fn start_with(router: &str) -> Result<Deployment, String> {
        let text = format!(
            "[[model]]\nname = \"small\"\npath = \"model\"\n[[model]]\nname = \"large\"\npath = \"model\"\n\
             [budget]\nmemory = \"64MiB\"\n[router]\n{router}\n"
        );
        let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/heads");
        let config = Config::parse(&text, &base)?;
        start(&config, &Registry::builtin(), Box::new(|| {}))
    }

    fn refusal(router: &str) -> String {
        start_with(router).err().expect("a refusal")
    }

    /// Answers of 8-bit weights are other answers: the fingerprint says so, and so does what is shown at the start.
    #[test]
    fn the_form_of_weights_is_shown_and_changes_the_fingerprint() {
        let started = |weights: &str| {
            let text = format!(
                "[[model]]\nname = \"small\"\npath = \"model\"\n{weights}\n[budget]\nmemory = \"64MiB\"\n"
            );
            let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/heads");
            let config = Config::parse(&text, &base).unwrap();
            let started = start(&config, &Registry::builtin(), Box::new(|| {})).unwrap();
            (
                started.context.system_fingerprint.clone(),
                model_lines(&config, &started.engine.info).next().unwrap(),
            )
        };
        let (stored, int8) = (started(""), started("weights = \"int8\""));
        assert_ne!(stored.0, int8.0);
        assert!(!stored.1.contains("int8") && int8.1.contains("weights int8, cache f16"), "{int8:?}");
    }

    #[test]
    fn a_router_file_becomes_the_entry_models_head() {
        let started = start_with("name = \"r2r\"\nfile = \"r2r-plain\"").unwrap();
        let models = &started.engine.info.models;
        assert_eq!((models[0].heads.len(), models[1].heads.len()), (1, 0));
        assert_eq!(
            (models[0].heads[0].kind, models[0].heads[0].threshold),
            (HeadKind::R2r, Some(0.405_959_6))
        );
        assert!(start_with("name = \"citer\"\nfile = \"citer\"\nthreshold = 0.98").is_ok());
    }

    /// A file says to `query` that its head chooses, with the file's threshold or the section's own.
    #[test]
    fn query_with_a_router_file_chooses_by_its_head() {
        for (more, expected) in [("", (0.5, Source::File)), ("\nthreshold = 0.75", (0.75, Source::Config))] {
            let started = start_with(&format!("name = \"query\"\nfile = \"query\"{more}")).unwrap();
            let route = &started.engine.info.routes[0];
            assert_eq!(started.engine.info.models[0].heads[0].kind, HeadKind::Query);
            assert_eq!(route.terms.threshold, Some((Threshold::Value(expected.0), expected.1)));
            assert!(route.gauge.is_some_and(|gauge| gauge.once));
        }
        let plain = start_with("name = \"query\"\nthreshold = 0.75").unwrap();
        assert!(plain.engine.info.routes[0].gauge.is_none(), "by the requests' own scores");
        for (router, part) in [
            ("name = \"query\"\nfile = \"query\"\nfraction = 0.5", "`fraction` excludes a router file"),
            ("name = \"query\"\nfile = \"query\"\nhead = 0", "exclude each other"),
            ("name = \"query\"\nfile = \"citer\"", "kind \"citer\", but router \"query\""),
            ("name = \"r2r\"\nfile = \"query\"", "kind \"query\", but router \"r2r\""),
            ("name = \"query\"\nfile = \"query\"\nthreshold = 1.5", "from 0 to 1"),
            ("name = \"query\"", "or a router file is needed"),
        ] {
            let error = refusal(router);
            assert!(error.contains(part), "{router}: {error}");
        }
    }

    #[test]
    fn a_router_without_its_file_or_threshold_is_refused() {
        let error = refusal("name = \"r2r\"");
        assert!(error.contains("router.file is missing") && error.contains("r2r"), "{error}");
        let error = refusal("name = \"citer\"\nfile = \"citer\"");
        assert!(error.contains("citer") && error.contains("threshold"), "{error}");
        let error = refusal("name = \"co-llm\"\nfile = \"citer\"\nthreshold = 0.1");
        assert!(error.contains("co-llm") && error.contains("citer"), "{error}");
        let error = refusal("name = \"r2r\"\nfile = \"nowhere\"");
        assert!(error.contains("router.file: ") && error.contains("nowhere"), "{error}");
    }
}
