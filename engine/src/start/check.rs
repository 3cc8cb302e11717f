//! What a start would refuse, found without one: no cache is allocated and no device is asked.

use std::fmt::Write;

use tokenrouter_scheduler::router::Registry;

use super::{EngineConfig, EngineError, Hints, ranks};
use crate::budget::show_bytes;
use crate::device::DeviceKind;
use crate::handle::RouteInfo;
use crate::model::{ModelOptions, OpenModel};
use crate::ranks::placement::Placement;

/// A deployment that would start, as far as can be told without its devices.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The memory plan as a table; on GPUs what each model needs, since the plan is made of what the devices have.
    pub plan: String,
    /// The routes.
    pub routes: Vec<RouteInfo>,
}

/// Opens every checkpoint and router head, makes the routers, and plans the memory, as [`start`](super::start) does.
///
/// # Errors
/// As `start`, but for what only the devices know.
pub fn check(config: &EngineConfig, registry: &Registry) -> Result<Checked, EngineError> {
    let open = super::open_models(config)?;
    let placement = ranks::place(config, &open)?;
    let options = super::model_options(config, &open, &Hints::default());
    let routes = super::build_routes(config, registry, &open)?;
    super::check_heads(config, &open, &routes)?;
    let (plan, pages) = match config.device {
        DeviceKind::Cpu => {
            let plan = ranks::plan_memory(config, &placement, &open, &options)?;
            (plan.to_string(), plan.pages)
        }
        // Enough for any context: the devices decide.
        DeviceKind::Cuda(_) => (needs(config, &placement, &open, &options), u32::MAX as usize / 2),
    };
    let infos = config
        .routes
        .iter()
        .zip(routes.iter().map(|router| &**router))
        .map(|(named, router)| super::route_info(named, router));
    let infos = infos.collect();
    let info = super::engine_info(config, &open, &options, (pages, String::new()), &routes);
    let limits = super::core_config(config, &info, pages.min(1 << 20));
    tokenrouter_scheduler::Core::new(limits, routes).map_err(EngineError::Config)?;
    Ok(Checked { plan, routes: infos })
}

/// What the devices of a model must hold, an equal part each.
fn needs(
    config: &EngineConfig,
    placement: &Placement,
    open: &[OpenModel],
    options: &[ModelOptions],
) -> String {
    let mut text = String::new();
    for (index, (named, (model, options))) in config.models.iter().zip(open.iter().zip(options)).enumerate() {
        let devices = placement.devices(index);
        let demand = model.demand(&named.name, options, devices.len());
        let per_device = show_bytes(demand.weight_bytes / devices.len() as u64);
        let per_token = demand.kv_bytes_per_page / tokenrouter_scheduler::PAGE_TOKENS as u64;
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "{} on devices {devices:?}: about {per_device} of weights on each, {} of KV cache per token over all",
            named.name,
            show_bytes(per_token)
        );
    }
    text + "the memory plan is made at the start, of what the devices have"
}
