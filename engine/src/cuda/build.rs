//! From checked checkpoints to ranks that are ready to serve.
//!
//! Every stage runs on all devices at once, a thread each, and ends on all of them before the next one begins: an
//! error on one device ends the start with its name, and collectives are never captured while another rank still runs
//! uncaptured ones. The stages: contexts, communicators, weights and buffers, memory of the graphs, then, with the plan
//! made, caches, one uncaptured step, captures, uploads, first replays.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokenrouter_kernels::cpu::PAGE_TOKENS;
use tokenrouter_kernels::cuda::{Communicator, CudaError};

use super::context::RankContext;
use super::model::{CudaModel, ModelSpec};
use super::plan::{self, DeviceDemand, DevicePlan, DeviceTooSmall, ShardDemand};
use super::rank::{CudaRank, Held};
use crate::model::{ModelOptions, OpenModel};
use crate::ranks::GraphKey;
use crate::shard::Shard;

/// How long ranks wait for one another when they join a communicator.
const JOIN_DEADLINE: Duration = Duration::from_secs(60);

/// One model and where it runs.
pub(crate) struct PlacedModel<'a> {
    /// Its name.
    pub(crate) name: &'a str,
    /// The checkpoint.
    pub(crate) open: &'a OpenModel,
    /// How it is run.
    pub(crate) options: &'a ModelOptions,
    /// The devices of its shards, in order.
    pub(crate) devices: &'a [usize],
    /// Its collective group.
    pub(crate) group: Option<usize>,
}

/// How the devices are used.
pub(crate) struct DeviceUse<'a> {
    /// Share of a device's memory that the engine may use, what others have taken included.
    pub(crate) fraction: f64,
    /// Bytes to use on every device instead.
    pub(crate) bytes: Option<u64>,
    /// Token buckets of the graphs, ascending; none runs everything uncaptured.
    pub(crate) buckets: &'a [u32],
    /// The kernels.
    pub(crate) images: &'static [&'static [u8]],
}

/// Ranks that are ready.
pub(crate) struct BuiltRanks {
    /// In ascending order of the device: the first one is the lead.
    pub(crate) ranks: Vec<(usize, CudaRank)>,
    /// One rule per model.
    pub(crate) graph_keys: Vec<GraphKey>,
    /// The memory plan.
    pub(crate) plan: DevicePlan,
}

/// Why the models do not run on these devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CudaStartError {
    /// A device refused something.
    Device {
        /// Its number.
        ordinal: usize,
        /// The model that it was for; empty when it was for none.
        model: String,
        /// What it said.
        error: CudaError,
    },
    /// A device is too small.
    TooSmall(DeviceTooSmall),
}

impl fmt::Display for CudaStartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device { model, error, .. } if model.is_empty() => error.fmt(f),
            Self::Device { ordinal, model, error } => {
                write!(f, "model \"{model}\" on CUDA device {ordinal}: {error}")
            }
            Self::TooSmall(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for CudaStartError {}

/// A device while it is prepared.
struct Site {
    ordinal: usize,
    context: Arc<RankContext>,
    /// What the engine may use.
    budget_bytes: u64,
    /// One per model.
    models: Vec<Option<CudaModel>>,
    communicators: Vec<Option<Communicator>>,
    graph_bytes: Vec<u64>,
}

/// Opens the devices and brings all shards on them to where they serve.
///
/// # Errors
/// [`CudaStartError`], naming device and model.
pub(crate) fn build(models: &[PlacedModel<'_>], on: &DeviceUse<'_>) -> Result<BuiltRanks, CudaStartError> {
    let mut ordinals: Vec<usize> = models.iter().flat_map(|m| m.devices.iter().copied()).collect();
    ordinals.sort_unstable();
    ordinals.dedup();
    let mut sites = open(&ordinals, models.len(), on)?;
    let shortest =
        models.iter().map(|m| m.open.config().context_len(m.options.context_len)).min().unwrap_or(1);
    let plan_for = |sites: &[Site], shard: fn(&PlacedModel<'_>, &Site, usize) -> Option<ShardDemand>| {
        let demands = sites.iter().map(|site| demand(models, site, shard)).collect();
        plan::plan(demands, shortest).map_err(CudaStartError::TooSmall)
    };
    // Known to be too much before minutes are spent on uploads, and refused with the same numbers.
    plan_for(&sites, least)?;
    join(models, &mut sites)?;
    load(models, &mut sites, on)?;
    every_shard(models, &mut sites, |shard| {
        shard.model.measure_graphs().map(|bytes| *shard.graph_bytes = bytes)
    })?;
    let plan = plan_for(&sites, measured)?;
    every_shard(models, &mut sites, |shard| shard.model.allocate_cache(plan.pages))?;
    every_shard(models, &mut sites, |shard| shard.model.warm_up())?;
    every_shard(models, &mut sites, |shard| shard.model.capture())?;
    every_shard(models, &mut sites, |shard| shard.model.upload())?;
    every_shard(models, &mut sites, |shard| shard.model.replay())?;
    let graph_keys = models.iter().enumerate().filter_map(|(i, m)| {
        let first = sites.iter().find(|s| Some(&s.ordinal) == m.devices.first())?;
        Some(first.models[i].as_ref()?.graph_key())
    });
    let graph_keys = graph_keys.collect();
    let ranks = sites.into_iter().map(|site| (site.ordinal, rank(models, site))).collect();
    Ok(BuiltRanks { ranks, graph_keys, plan })
}

/// Runs `work` on every item on a thread of its own and waits for all; the first error by order counts.
fn everywhere<T: Send, R: Send>(
    items: impl Iterator<Item = T>,
    work: impl Fn(T) -> Result<R, CudaStartError> + Sync,
) -> Result<Vec<R>, CudaStartError> {
    let outcomes: Vec<Result<R, CudaStartError>> = std::thread::scope(|scope| {
        let threads: Vec<_> = items.map(|item| scope.spawn(|| work(item))).collect();
        let joined =
            threads.into_iter().map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        joined.collect()
    });
    outcomes.into_iter().collect()
}

fn open(ordinals: &[usize], models: usize, on: &DeviceUse<'_>) -> Result<Vec<Site>, CudaStartError> {
    everywhere(ordinals.iter().copied(), |ordinal| {
        let site = || {
            let context = RankContext::open(ordinal, on.images)?;
            let (free, total) = context.device.memory()?;
            Ok(Site {
                ordinal,
                context: Arc::new(context),
                budget_bytes: budget(on, free, total),
                models: (0..models).map(|_| None).collect(),
                communicators: (0..models).map(|_| None).collect(),
                graph_bytes: vec![0; models],
            })
        };
        site().map_err(|error| CudaStartError::Device { ordinal, model: String::new(), error })
    })
}

/// What the engine may use of a device: a share of the whole, less what others have taken, or the bytes asked for; never
/// more than is free.
fn budget(on: &DeviceUse<'_>, free: u64, total: u64) -> u64 {
    let share = (total as f64 * on.fraction) as u64;
    on.bytes.unwrap_or_else(|| share.saturating_sub(total - free.min(total))).min(free)
}

/// Joins one communicator for each model of several ranks, all ranks at once and in the order of the models.
fn join(models: &[PlacedModel<'_>], sites: &mut [Site]) -> Result<(), CudaStartError> {
    let mut ids = BTreeMap::new();
    for (i, model) in models.iter().enumerate().filter(|(_, m)| m.devices.len() > 1) {
        let failed =
            |error| CudaStartError::Device { ordinal: model.devices[0], model: model.name.to_owned(), error };
        ids.insert(i, Communicator::unique_id().map_err(failed)?);
    }
    everywhere(sites.iter_mut(), |site| {
        for (&i, id) in &ids {
            let model = &models[i];
            let Some(shard) = model.shard_on(site.ordinal) else { continue };
            let joined =
                Communicator::join(&site.context.device, *id, shard.index, shard.count, JOIN_DEADLINE);
            site.communicators[i] = Some(joined.map_err(|error| at(site.ordinal, model, error))?);
        }
        Ok(())
    })?;
    Ok(())
}

fn at(ordinal: usize, model: &PlacedModel<'_>, error: CudaError) -> CudaStartError {
    CudaStartError::Device { ordinal, model: model.name.to_owned(), error }
}

fn load(models: &[PlacedModel<'_>], sites: &mut [Site], on: &DeviceUse<'_>) -> Result<(), CudaStartError> {
    everywhere(sites.iter_mut(), |site| {
        for (i, model) in models.iter().enumerate() {
            let Some(shard) = model.shard_on(site.ordinal) else { continue };
            let spec = ModelSpec {
                open: model.open,
                options: model.options,
                shard,
                buckets: on.buckets,
                // The entry model's steps are short and many: they go first where blocks wait for a place.
                high_priority: i == 0,
            };
            let loaded = CudaModel::load(site.context.clone(), &spec, site.communicators[i].take());
            site.models[i] = Some(loaded.map_err(|error| at(site.ordinal, model, error))?);
        }
        Ok(())
    })?;
    Ok(())
}

/// A shard in a stage.
struct Stage<'a> {
    model: &'a mut CudaModel,
    graph_bytes: &'a mut u64,
}

/// One stage: on every device the shards one after the other in the order of their models, all devices at once.
fn every_shard(
    models: &[PlacedModel<'_>],
    sites: &mut [Site],
    stage: impl Fn(Stage<'_>) -> Result<(), CudaError> + Sync,
) -> Result<(), CudaStartError> {
    everywhere(sites.iter_mut(), |site| {
        let shards = site.models.iter_mut().zip(&mut site.graph_bytes).zip(models);
        for ((model, graph_bytes), placed) in shards {
            if let Some(model) = model {
                stage(Stage { model, graph_bytes }).map_err(|error| at(site.ordinal, placed, error))?;
            }
        }
        Ok(())
    })?;
    Ok(())
}

/// All that is placed on a device.
fn demand(
    models: &[PlacedModel<'_>],
    site: &Site,
    shard: fn(&PlacedModel<'_>, &Site, usize) -> Option<ShardDemand>,
) -> DeviceDemand {
    let shards = models.iter().enumerate().filter_map(|(i, placed)| shard(placed, site, i)).collect();
    let name = site.context.device.name().to_owned();
    DeviceDemand { ordinal: site.ordinal, name, budget_bytes: site.budget_bytes, shards }
}

impl PlacedModel<'_> {
    /// Its part on a device.
    fn shard_on(&self, ordinal: usize) -> Option<Shard> {
        let index = self.devices.iter().position(|d| *d == ordinal)?;
        Some(Shard { index, count: self.devices.len() })
    }

    fn shard_name(&self, shard: Shard) -> String {
        if shard.is_cut() {
            format!("{} {}/{}", self.name, shard.index + 1, shard.count)
        } else {
            self.name.to_owned()
        }
    }
}

/// What a shard takes at least: its matrices in bf16 and the pages of its cache.
fn least(placed: &PlacedModel<'_>, site: &Site, _: usize) -> Option<ShardDemand> {
    let shard = placed.shard_on(site.ordinal)?;
    let (whole, c) = (placed.open.config(), shard.local_config(placed.open.config()));
    let layer = c.hidden_size * (2 * c.q_width() + 2 * c.kv_width() + 3 * c.intermediate_size);
    let head = if placed.open.weights().tied { 0 } else { shard.cuda_vocab_rows(whole).len() };
    let values = c.layers * layer + (whole.vocab_size + head) * c.hidden_size;
    Some(ShardDemand {
        name: placed.shard_name(shard),
        weight_bytes: 2 * values as u64,
        activation_bytes: 0,
        graph_bytes: 0,
        page_bytes: (c.layers * 2 * c.kv_width() * PAGE_TOKENS * 2) as u64,
    })
}

/// What it takes as it stands on the device.
fn measured(placed: &PlacedModel<'_>, site: &Site, index: usize) -> Option<ShardDemand> {
    let model = site.models[index].as_ref()?;
    let bytes = model.bytes();
    Some(ShardDemand {
        name: placed.shard_name(placed.shard_on(site.ordinal)?),
        weight_bytes: bytes.weights + bytes.heads,
        activation_bytes: bytes.activations,
        graph_bytes: site.graph_bytes[index],
        page_bytes: model.page_bytes(),
    })
}

fn rank(models: &[PlacedModel<'_>], site: Site) -> CudaRank {
    let held = site
        .models
        .into_iter()
        .zip(models)
        .map(|(model, placed)| Some(Held { model: model?, group: placed.group }));
    CudaRank::new(site.ordinal, site.context, held.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(fraction: f64, bytes: Option<u64>) -> DeviceUse<'static> {
        DeviceUse { fraction, bytes, buckets: &[], images: &[] }
    }

    #[test]
    fn what_others_have_taken_counts() {
        assert_eq!(budget(&on(0.9, None), 1000, 1000), 900);
        assert_eq!(budget(&on(0.9, None), 700, 1000), 600);
        assert_eq!(budget(&on(0.2, None), 700, 1000), 0);
    }

    #[test]
    fn bytes_asked_for_are_cut_to_what_is_free() {
        assert_eq!(budget(&on(0.9, Some(500)), 700, 1000), 500);
        assert_eq!(budget(&on(0.9, Some(900)), 700, 1000), 700);
    }
}
