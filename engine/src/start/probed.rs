//! The models of a deployment without scheduler and rank loop, for measurements.

use tokenrouter_scheduler::router::{Registry, SignalSet};
use tokenrouter_scheduler::{ModelId, PAGE_TOKENS};

use super::ranks::{Place, build_cpu_model, place, plan_memory};
use super::threads::Sharing;
use super::{EngineConfig, EngineError, EngineModel, Hints};
use crate::executor::CpuModel;
use crate::model::{ModelOptions, OpenModel};
use crate::probe::{ModelPrint, ProbeModel, print_of, thread_ids};

/// What a measurement of this deployment would say its models are. Opens every checkpoint and builds nothing.
///
/// # Errors
/// As [`start`](super::start), for what cannot be opened.
pub fn prints(config: &EngineConfig, hints: &Hints) -> Result<Vec<ModelPrint>, EngineError> {
    let open = super::open_models(config)?;
    let options = super::model_options(config, &open, hints);
    let print = |((named, model), options): ((&EngineModel, &OpenModel), &ModelOptions)| ModelPrint {
        name: named.name.clone(),
        print: print_of(model, options.kv_dtype.name()),
        threads: options.threads,
    };
    Ok(config.models.iter().zip(&open).zip(&options).map(print).collect())
}

/// Tokens of the longest request that every model of a deployment takes; memory is not asked.
///
/// # Errors
/// As [`prints`].
pub fn context_len(config: &EngineConfig) -> Result<usize, EngineError> {
    let open = super::open_models(config)?;
    let options = super::model_options(config, &open, &Hints::default());
    Ok(options.iter().map(|o| o.context_len).min().unwrap_or(0))
}

/// Models that are ready for an executor.
pub(crate) struct Probed {
    /// Their caches are filled.
    pub(crate) models: Vec<CpuModel>,
    /// What each is.
    pub(crate) infos: Vec<ProbeModel>,
    /// The threads of each one's worker groups.
    pub(crate) helpers: Vec<Vec<i32>>,
    /// What the routers read of each one's steps.
    pub(crate) signals: Vec<SignalSet>,
    /// Every model knows the ids below this.
    pub(crate) vocab: usize,
}

/// Opens and builds every model with a cache of `pages` pages, all of them written.
///
/// # Errors
/// As [`start`](super::start), and [`EngineError::Room`].
pub(crate) fn build_probed(
    config: &EngineConfig,
    registry: &Registry,
    hints: &Hints,
    pages: usize,
) -> Result<Probed, EngineError> {
    let open = super::open_models(config)?;
    let placement = place(config, &open)?;
    let options = super::model_options(config, &open, hints);
    let routes = super::build_routes(config, registry, &open)?;
    super::check_heads(config, &open, &routes)?;
    let plan = plan_memory(config, &placement, &open, &options)?;
    if plan.pages < pages {
        return Err(EngineError::Room { needed: pages * PAGE_TOKENS, has: plan.pages * PAGE_TOKENS });
    }
    let sharing = Sharing::new(config, hints);
    let mut built = Probed {
        models: Vec::new(),
        infos: Vec::new(),
        helpers: Vec::new(),
        signals: Vec::new(),
        vocab: options.iter().map(|o| o.real_vocab).min().unwrap_or(1),
    };
    for (index, (named, model)) in config.models.iter().zip(&open).enumerate() {
        let options = &options[index];
        let before = thread_ids();
        let at = Place {
            devices: placement.devices(index),
            cores: hints.cores_of(index),
            shared: sharing.of(index),
        };
        let mut ready = build_cpu_model(&named.name, model, options, pages, at)?;
        ready.parts.iter_mut().for_each(|(_, part)| part.fill_cache());
        built.helpers.push(thread_ids().into_iter().filter(|id| !before.contains(id)).collect());
        built.models.push(ready);
        let id = ModelId(index as u8);
        let read = routes.iter().filter(|route| route.reach().contains(id));
        built.signals.push(read.fold(SignalSet::NONE, |set, route| set.union(route.signals_at(id))));
        let parts = placement.devices(index).len();
        built.infos.push(ProbeModel {
            name: named.name.clone(),
            print: print_of(model, options.kv_dtype.name()),
            weight_bytes: model.step_bytes(),
            cache_bytes_per_token: model.kv_bytes_per_page(options.kv_dtype, parts) / PAGE_TOKENS as u64,
            threads: options.threads,
            max_rows: options.max_batch_rows,
            max_tokens: options.max_step_tokens,
            context_len: options.context_len,
        });
    }
    Ok(built)
}
