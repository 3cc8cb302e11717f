//! `tokenrouter calibrate`: from a wanted share of tokens by the large model to a threshold.
//!
//! The small model answers the prompts alone, and what the router would have compared is noted: at every token, or, for one
//! that decides about whole answers, at the first. The quantile
//! of these numbers is the threshold, if the large model's tokens changed nothing afterwards; they do, and R-Stitch's
//! large model also stays, so the threshold is tried, and the quantile moved, until the share is met.

mod probe;

use std::sync::PoisonError;

use serde_json::json;
use tokenrouter_engine::EngineInfo;
use tokenrouter_scheduler::router::{Gauge, Registry, calibrate};
use tokenrouter_scheduler::{RouteId, Threshold};

use crate::cli::tell;
use crate::config::{Config, DeviceName, RouterSection};
use crate::deploy;
use crate::eval::{How, Progress, Setting, SettingArgs, decimal, drive, large_share, prepare, stop};
use crate::paint::emit;

/// Flags of `calibrate`.
#[derive(Clone, Debug, clap::Args)]
pub struct CalibrateArgs {
    /// The deployment and the prompts.
    #[command(flatten)]
    pub setting: SettingArgs,
    /// The wanted share of tokens by the large model, 0 to 1.
    #[arg(long, value_name = "S", allow_negative_numbers = true)]
    pub share: f64,
    /// The router, or its served name; the default is that of [router].
    #[arg(long, value_name = "NAME")]
    pub router: Option<String>,
    /// How far from the share the trial run may be, as a share of the tokens.
    #[arg(long, default_value_t = 0.005, value_name = "S")]
    pub tolerance: f64,
    /// Most trial runs.
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=50))]
    pub tries: u32,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// What was found.
struct Found {
    router: String,
    threshold: Threshold,
    reached: f64,
    positions: usize,
    tries: u32,
}

/// Finds the threshold and prints the line for the configuration.
///
/// # Errors
/// One line that says what is wrong.
pub fn run(args: &CalibrateArgs, device: Option<DeviceName>, registry: &Registry) -> Result<(), String> {
    if !(0.0..=1.0).contains(&args.share) {
        return Err(format!("--share is {}; a number from 0 to 1 is needed", args.share));
    }
    if args.tolerance.is_nan() || args.tolerance < 0.0 {
        return Err(format!("--tolerance is {}; it must be 0 or more", args.tolerance));
    }
    let mut setting = args.setting.load()?;
    setting.config.on_device(device)?;
    let found = find(args, &setting, registry)?;
    let problems = setting.problems.len();
    let off = (found.reached - args.share).abs() > args.tolerance;
    tell(&format!(
        "router {}: threshold {} gives the large model {:.2} % of the tokens (wanted {:.2} %) on {problems} prompts; \
         from {} positions, {} trial runs{}",
        found.router,
        found.threshold,
        100.0 * found.reached,
        100.0 * args.share,
        found.positions,
        found.tries,
        if off { "; it is the nearest that was found" } else { "" },
    ));
    let threshold = decimal(found.threshold);
    if args.json {
        let value = json!({
            "router": found.router, "threshold": threshold, "share": args.share, "reached": found.reached,
            "prompts": problems, "positions": found.positions, "tries": found.tries,
        });
        return emit(&format!("{value}\n"));
    }
    emit(&format!("threshold = {threshold}\n"))
}

fn find(args: &CalibrateArgs, setting: &Setting, registry: &Registry) -> Result<Found, String> {
    let deployment = deploy::start(&setting.config, registry, Box::new(|| ()))?;
    let chosen = choose(args, &deployment.engine.info);
    let (route, router, gauge) = match chosen {
        Ok(chosen) => chosen,
        Err(problem) => {
            stop(&deployment);
            return Err(problem);
        }
    };
    // The probe's engine takes the memory that this one has.
    stop(&deployment);
    drop(deployment);
    let scores = measure(args, setting, gauge)?;
    let deployment = deploy::start(&setting.config, registry, Box::new(|| ()))?;
    let outcome = prepare(&deployment, &args.setting, &setting.problems).and_then(|prompts| {
        let mut progress = Progress::new();
        let mut salt = 0;
        search(args, &scores, gauge, &mut |threshold| {
            salt += 1;
            let concurrency = args.setting.concurrency as usize;
            let how = How { route, threshold: Some(threshold), salt, concurrency };
            let label = format!("{router} {threshold}");
            let batch =
                drive(&deployment, &prompts, how, &mut |done| progress.show(&label, done, prompts.len()));
            progress.clear();
            Ok(large_share(&batch?.answers, deployment.engine.info.models.len()))
        })
    });
    stop(&deployment);
    let (threshold, reached, tries) = outcome?;
    Ok(Found { router, threshold, reached, positions: scores.len(), tries })
}

/// The route that was asked for, its router, and what that compares.
fn choose(args: &CalibrateArgs, info: &EngineInfo) -> Result<(RouteId, String, Gauge), String> {
    let index = match &args.router {
        None => Some(0),
        Some(name) => info.routes.iter().position(|r| r.name == *name || r.router == *name),
    };
    let Some((index, route)) = index.and_then(|i| Some((i, info.routes.get(i)?))) else {
        let known: Vec<&str> =
            info.routes.iter().map(|r| r.router.as_str()).filter(|r| *r != "single").collect();
        let asked = args.router.as_deref().unwrap_or_default();
        return Err(format!("--router is \"{asked}\"; this deployment has {}", known.join(", ")));
    };
    let gauge = route.gauge.ok_or_else(|| {
        format!(
            "router {} compares nothing with a threshold; its share is set in the configuration",
            route.router
        )
    })?;
    Ok((RouteId(index as u16), route.router.clone(), gauge))
}

/// What the router compares, over the first model's own answers.
fn measure(args: &CalibrateArgs, setting: &Setting, gauge: Gauge) -> Result<Vec<f32>, String> {
    let (registry, scores) = probe::registry(gauge)?;
    let deployment = deploy::start(&probing(&setting.config), &registry, Box::new(|| ()))?;
    let outcome = prepare(&deployment, &args.setting, &setting.problems).and_then(|prompts| {
        let mut progress = Progress::new();
        let concurrency = args.setting.concurrency as usize;
        let how = How { route: RouteId(0), threshold: None, salt: 0, concurrency };
        let batch =
            drive(&deployment, &prompts, how, &mut |done| progress.show("small alone", done, prompts.len()));
        progress.clear();
        batch.map(|_| ())
    });
    stop(&deployment);
    drop(deployment);
    outcome?;
    let scores = scores.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(scores)
}

/// The same deployment with the probe in place of `[router]`. Head indices stay: files keep their order.
fn probing(config: &Config) -> Config {
    let mut config = config.clone();
    config.router = RouterSection {
        name: probe::NAME.into(),
        file: config.router.file.take(),
        params: Default::default(),
    };
    // The other routes stay for their heads; the probe's registry has no routers from outside.
    let known = Registry::builtin();
    for route in &mut config.routes {
        if !known.names().any(|name| name == route.router) {
            route.router = probe::NAME.into();
            route.params.clear();
        }
    }
    config
}

/// Moves the quantile until `run` reaches the share, or tries run out: the nearest threshold, what it reached, and the
/// number of tries.
fn search(
    args: &CalibrateArgs,
    scores: &[f32],
    gauge: Gauge,
    run: &mut dyn FnMut(Threshold) -> Result<f64, String>,
) -> Result<(Threshold, f64, u32), String> {
    let mut best: Option<(Threshold, f64)> = None;
    // The reached share grows with the quantile; below `low` it was too small, above `high` too large.
    let (mut low, mut high, mut quantile) = (0.0, 1.0, args.share);
    let mut tries = 0;
    while tries < args.tries {
        let threshold = calibrate(scores, quantile, gauge.direction).map_err(|e| e.to_string())?;
        let reached = run(threshold)?;
        tries += 1;
        let off = |reached: f64| (reached - args.share).abs();
        if best.is_none_or(|(_, other)| off(reached) < off(other)) {
            best = Some((threshold, reached));
        }
        if off(reached) <= args.tolerance {
            break;
        }
        if reached < args.share {
            low = quantile
        } else {
            high = quantile
        }
        // In proportion, since few scores ask for few tokens; halfway where that leads nowhere new.
        let next = if reached > 0.0 { quantile * args.share / reached } else { f64::midpoint(low, high) };
        let next = if next > low && next < high { next } else { f64::midpoint(low, high) };
        if (next - quantile).abs() * (scores.len() as f64) < 0.5 {
            break;
        }
        quantile = next;
    }
    let (threshold, reached) = best.ok_or("no trial run")?;
    Ok((threshold, reached, tries))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use tokenrouter_scheduler::router::{Direction, Measure};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: CalibrateArgs,
    }

    fn args(share: &str) -> CalibrateArgs {
        Line::try_parse_from(["calibrate", "--demo", "--share", share, "--tries", "12"])
            .map(|l| l.args)
            .expect("flags")
    }

    /// A peer that stays three tokens for each one asked for: the quantile must end well below the share.
    #[test]
    fn the_quantile_moves_until_the_share_is_met() {
        let scores: Vec<f32> = (0..5000).map(|i| i as f32 / 5000.0).collect();
        for direction in [Direction::AtLeast, Direction::Below, Direction::Above] {
            let gauge = Gauge { measure: Measure::EntropyNorm, direction, peer_stays: true, once: false };
            let mut served = |threshold: Threshold| {
                let asks = scores.iter().filter(|s| direction.asks(**s, threshold)).count() as f64 / 5000.0;
                Ok(3.0 * asks / (1.0 + 2.0 * asks))
            };
            for share in ["0.05", "0.1", "0.5", "0.9"] {
                let (_, reached, tries) = search(&args(share), &scores, gauge, &mut served).expect("found");
                let wanted: f64 = share.parse().expect("a number");
                assert!((reached - wanted).abs() <= 0.005, "{direction} {share}: {reached} after {tries}");
            }
            let (threshold, reached, tries) = search(&args("0"), &scores, gauge, &mut served).expect("found");
            assert_eq!((threshold, reached, tries), (Threshold::Never, 0.0, 1));
            let (threshold, ..) = search(&args("1"), &scores, gauge, &mut served).expect("found");
            assert_eq!(threshold, Threshold::Always);
        }
    }

    /// Scores that are all the same can give nothing or all: the search ends and says what it got.
    #[test]
    fn a_share_out_of_reach_ends_with_the_nearest() {
        let gauge = Gauge {
            measure: Measure::Score(0),
            direction: Direction::AtLeast,
            peer_stays: false,
            once: false,
        };
        let mut run = |t: Threshold| Ok(if Direction::AtLeast.asks(0.5, t) { 1.0 } else { 0.0 });
        let (_, reached, tries) = search(&args("0.4"), &[0.5; 100], gauge, &mut run).expect("an end");
        assert!(reached == 0.0 && tries <= 12);
    }
}
