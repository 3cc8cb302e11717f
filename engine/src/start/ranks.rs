//! The ranks of a deployment, ready to serve: memory planned, models built where the placement says.
//!
//! On the CPU the plan comes first, a sum over all parts under one budget, and the caches are allocated by it. On GPUs
//! weights and graphs come first, and the plan is made of what they leave on every device.

use std::sync::Arc;

use tokenrouter_kernels::cpu::Cores;

use super::threads::Sharing;
use super::{EngineConfig, EngineError, EngineModel, Hints};
use crate::affinity;
use crate::budget;
#[cfg(feature = "cuda-host")]
use crate::cuda::{self, CudaRank, DeviceUse, PlacedModel};
#[cfg(feature = "cuda-host")]
use crate::device::CudaOptions;
use crate::device::DeviceKind;
use crate::error::LoadError;
use crate::executor::NoGraph;
use crate::executor::{CpuModel, CpuRank};
use crate::model::{Model, ModelOptions, OpenModel};
use crate::ranks::placement::Placement;
use crate::ranks::{GraphKey, Rank};
use crate::shard;
use crate::step::StepLimits;
use crate::weights::WeightForm;

/// Ranks that are ready.
pub(super) struct Built {
    /// In ascending order of the device: the first one leads.
    pub(super) ranks: Vec<Rank>,
    /// Which graph runs a step, for every model.
    pub(super) graph_keys: Vec<GraphKey>,
    /// Pages in every model's cache.
    pub(super) pages: usize,
    /// The memory plan as a printable table.
    pub(super) plan_table: String,
}

/// Which devices hold which model.
///
/// # Errors
/// [`EngineError::Placement`] and [`EngineError::Load`], with the model, the value and what would be right.
pub(super) fn place(config: &EngineConfig, open: &[OpenModel]) -> Result<Placement, EngineError> {
    let devices = config.models.iter().map(|m| m.devices.clone()).collect();
    let named = |model: usize| config.models[model].name.clone();
    let placement = Placement::new(devices)
        .map_err(|(model, problem)| EngineError::Placement { model: named(model), problem })?;
    for (index, model) in open.iter().enumerate() {
        if config.device != DeviceKind::Cpu && model.form() == WeightForm::Int8 {
            let problem =
                "weights is \"int8\", which only the CPU has; leave the key out, or run with --device cpu";
            return Err(EngineError::Placement { model: named(index), problem: problem.to_owned() });
        }
        let parts = placement.devices(index).len();
        let checked = match config.device {
            DeviceKind::Cpu => model.check_shards(parts),
            DeviceKind::Cuda(_) => shard::check_cuda(model.config(), parts),
        };
        checked
            .map_err(|error| EngineError::Load { model: named(index), error: model.refuse_parts(&error) })?;
    }
    Ok(placement)
}

/// Builds every part of every model on its device.
///
/// # Errors
/// What the device lacks, with numbers.
pub(super) fn build_ranks(
    config: &EngineConfig,
    placement: &Placement,
    open: &[OpenModel],
    options: &[ModelOptions],
    hints: &Hints,
) -> Result<Built, EngineError> {
    match &config.device {
        DeviceKind::Cpu => build_cpu(config, placement, open, options, hints),
        #[cfg(feature = "cuda-host")]
        DeviceKind::Cuda(cuda) => build_cuda(config, cuda, placement, open, options),
        // Without the feature this says why.
        #[cfg(not(feature = "cuda-host"))]
        DeviceKind::Cuda(_) => Err(EngineError::Device(config.device.check().err().unwrap_or_default())),
    }
}

fn build_cpu(
    config: &EngineConfig,
    placement: &Placement,
    open: &[OpenModel],
    options: &[ModelOptions],
    hints: &Hints,
) -> Result<Built, EngineError> {
    let plan = plan_memory(config, placement, open, options)?;
    let sharing = Sharing::new(config, hints);
    let build = |(index, (named, model)): (usize, (&EngineModel, &OpenModel))| {
        let at = Place {
            devices: placement.devices(index),
            cores: hints.cores_of(index),
            shared: sharing.of(index),
        };
        build_cpu_model(&named.name, model, &options[index], plan.pages, at)
    };
    let models: Vec<CpuModel> =
        config.models.iter().zip(open).enumerate().map(build).collect::<Result<_, _>>()?;
    let graph_keys = models.iter().map(|_| Box::new(|_: &_| Err(NoGraph::Off)) as GraphKey).collect();
    let ranks = CpuRank::all(models).map_err(EngineError::Thread)?;
    Ok(Built { ranks, graph_keys, pages: plan.pages, plan_table: plan.to_string() })
}

/// Where a model runs on the CPU.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) devices: &'a [usize],
    pub(super) cores: &'a [usize],
    /// The cores that its threads share with those of other models.
    pub(super) shared: Option<&'a Arc<Cores>>,
}

/// One model, its threads started where they belong.
pub(super) fn build_cpu_model(
    name: &str,
    model: &OpenModel,
    options: &ModelOptions,
    pages: usize,
    place: Place<'_>,
) -> Result<CpuModel, EngineError> {
    let cores = place.cores;
    let refuse = |error| EngineError::Cores { model: name.to_owned(), cores: cores.to_vec(), error };
    let mut parts = affinity::within(cores, || build_parts(model, options, pages, place.devices))
        .map_err(refuse)?
        .map_err(|error| EngineError::Load { model: name.to_owned(), error })?;
    parts.iter_mut().for_each(|(_, part)| part.set_cores(cores, place.shared));
    Ok(CpuModel { parts, limits: step_limits(options) })
}

#[cfg(feature = "cuda-host")]
fn build_cuda(
    config: &EngineConfig,
    cuda: &CudaOptions,
    placement: &Placement,
    open: &[OpenModel],
    options: &[ModelOptions],
) -> Result<Built, EngineError> {
    let placed = config.models.iter().zip(open).zip(options).enumerate();
    let placed: Vec<_> = placed
        .map(|(index, ((named, open), options))| PlacedModel {
            name: &named.name,
            open,
            options,
            devices: placement.devices(index),
            group: placement.group(index),
        })
        .collect();
    let buckets = if cuda.graphs { buckets(cuda.largest_bucket) } else { Vec::new() };
    let on = DeviceUse {
        fraction: cuda.memory_fraction,
        bytes: cuda.memory_bytes,
        buckets: &buckets,
        images: cuda.images,
    };
    let built = cuda::build(&placed, &on).map_err(EngineError::Cuda)?;
    let rank = |(id, rank): (usize, CudaRank)| Rank { id, device: Box::new(rank) };
    Ok(Built {
        ranks: built.ranks.into_iter().map(rank).collect(),
        graph_keys: built.graph_keys,
        pages: built.plan.pages,
        plan_table: built.plan.to_string(),
    })
}

/// Token counts of the graphs: 8 and its doubles up to the largest.
#[cfg(feature = "cuda-host")]
fn buckets(largest: u32) -> Vec<u32> {
    std::iter::successors(Some(8u32), |b| b.checked_mul(2)).take_while(|b| *b <= largest).collect()
}

/// A model's parts on their devices; its threads are divided over them.
fn build_parts(
    model: &OpenModel,
    options: &ModelOptions,
    pages: usize,
    devices: &[usize],
) -> Result<Vec<(usize, Model)>, LoadError> {
    let options = ModelOptions { threads: (options.threads / devices.len()).max(1), ..options.clone() };
    let seats = model.seats(&options, devices.len())?;
    let part = |(device, seat): (&usize, _)| Ok((*device, model.build_part(options.clone(), pages, seat)?));
    devices.iter().zip(seats).map(part).collect()
}

/// The largest step of a model.
pub(super) fn step_limits(options: &ModelOptions) -> StepLimits {
    StepLimits {
        rows: options.max_batch_rows,
        tokens: options.max_step_tokens,
        context_len: options.context_len,
    }
}

/// One budget for all parts of all models on the CPU.
///
/// # Errors
/// [`EngineError::Budget`], with every term.
pub(super) fn plan_memory(
    config: &EngineConfig,
    placement: &Placement,
    open: &[OpenModel],
    options: &[ModelOptions],
) -> Result<budget::JointPlan, EngineError> {
    let demand =
        |(index, ((named, model), options)): (usize, ((&EngineModel, &OpenModel), &ModelOptions))| {
            let devices = placement.devices(index);
            let name = match devices {
                [_] => named.name.clone(),
                cut => format!("{} on {cut:?}", named.name),
            };
            model.demand(&name, options, devices.len())
        };
    let demands: Vec<_> = config.models.iter().zip(open).zip(options).enumerate().map(demand).collect();
    budget::plan(&demands, config.budget_bytes).map_err(EngineError::Budget)
}
