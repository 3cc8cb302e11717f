//! `tokenrouter profile`: how long the steps of a deployment's models take on this machine, with the executor that serves.

pub(crate) mod file;
pub(crate) mod machine;
mod measure;
mod tables;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use tokenrouter_engine::probe::{Probe, ReadBuffer, Room};
use tokenrouter_engine::{EngineConfig, EngineError, Hints};
use tokenrouter_scheduler::PAGE_TOKENS;
use tokenrouter_scheduler::router::Registry;

use crate::cli::tell;
use crate::config::{Config, DeviceName, SetArgs};
use crate::paint::emit;
use crate::{demo, deploy};
use file::Bandwidth;
pub(crate) use file::Profile;
use machine::Machine;
use measure::Plan;

/// Reads of the whole buffer; the best counts, since others only ever make one slower.
const READS: usize = 5;

/// Flags of `profile`.
#[derive(Clone, Debug, clap::Args)]
pub struct ProfileArgs {
    /// The TOML file that describes the models; without it, the demo pair.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where the profile is written.
    #[arg(long, value_name = "FILE", default_value = "profile.toml")]
    pub out: PathBuf,
    /// Rounds; in each, every kind of step is sampled once.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub rounds: u32,
    /// How long a sample repeats its step, in milliseconds; a longer step runs once.
    #[arg(long, default_value_t = 300, value_name = "MS", value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub sample_ms: u32,
    /// Tokens in the cache of every row.
    #[arg(long, default_value_t = 256, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub context: u32,
    /// Longer contexts, measured with one row, as far as the models and the budget allow.
    #[arg(long, value_name = "TOKENS,...", value_delimiter = ',', default_value = "1024,4096")]
    pub contexts: Vec<u32>,
    /// Most tokens that a row feeds in a step, up to max_step_tokens.
    #[arg(long, default_value_t = 128, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub extend: u32,
    /// Most rows of a step, up to max_batch.
    #[arg(long, default_value_t = 16, value_name = "ROWS", value_parser = clap::value_parser!(u32).range(1..))]
    pub rows: u32,
    /// Share of all cores that others may take before a sample is discarded.
    #[arg(long, default_value_t = 0.1, value_name = "SHARE", allow_negative_numbers = true)]
    pub max_foreign: f64,
    /// Size of the buffer that is read to find the bandwidth, in MiB.
    #[arg(long, default_value_t = 1024, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub bandwidth_mib: u32,
    /// Keys of the configuration.
    #[command(flatten)]
    pub set: SetArgs,
}

/// Measures and writes the file.
///
/// # Errors
/// One line that says what is wrong.
pub fn run(args: &ProfileArgs, device: Option<DeviceName>, registry: &Registry) -> Result<(), String> {
    if !(0.0..=1.0).contains(&args.max_foreign) {
        return Err(format!("--max-foreign is {}; a number from 0 to 1 is needed", args.max_foreign));
    }
    let mut config = match &args.config {
        Some(path) => Config::load_with(Some(path), &args.set.clone().into())?,
        None => demo::config_with(None, &args.set.clone().into())?,
    };
    config.on_device(device)?;
    // The profile in force says nothing about the one that is made.
    config.scheduling.profile = None;
    let (engine, hints) = deploy::engine_parts(&config)?;
    let machine = Machine::here();
    let bandwidth = bandwidth(args, machine.cores)?;
    let (mut probe, plan) = open(args, &engine, registry, &hints, machine.cores)?;
    let found = measure::measure(&mut probe, &plan)?;
    drop(probe);
    let profile = Profile::new(machine::date(), plan.context, machine, bandwidth, found);
    let written = std::fs::write(&args.out, profile.to_toml());
    written.map_err(|e| format!("--out {}: {e}", args.out.display()))?;
    emit(&report(&profile))?;
    tell(&format!("written to {}", args.out.display()));
    Ok(())
}

/// Streaming reads by one thread and by one per core.
fn bandwidth(args: &ProfileArgs, cores: usize) -> Result<Bandwidth, String> {
    let buffer = ReadBuffer::new((args.bandwidth_mib as usize) << 20)?;
    let mut best = [0.0f64; 2];
    for _ in 0..READS {
        for (threads, best) in [1, cores].into_iter().zip(&mut best) {
            let time = buffer.read(threads).ok_or("a thread cannot be had to read memory")?;
            *best = best.max(buffer.bytes() as f64 / time.as_secs_f64().max(1e-9) / 1e9);
        }
    }
    Ok(Bandwidth { one_core_gb_s: best[0], all_cores_gb_s: best[1] })
}

/// Opens the models with as much room as the budget has: first the long contexts go, then rows, then the rest.
fn open(
    args: &ProfileArgs,
    engine: &EngineConfig,
    registry: &Registry,
    hints: &Hints,
    cores: usize,
) -> Result<(Probe, Plan), String> {
    let limit = deploy::context_limit(engine)?;
    let context = (args.context as usize).min(limit.saturating_sub(1).max(1));
    // A few tokens are fed behind the longest of them.
    let longest = (args.extend as usize).min(limit - context);
    let longer = |tokens: &usize| *tokens > context && *tokens + longest.min(measure::FAR_FED) <= limit;
    let mut contexts: Vec<usize> = args.contexts.iter().map(|c| *c as usize).filter(longer).collect();
    contexts.sort_unstable();
    contexts.dedup();
    let mut plan = Plan {
        rounds: args.rounds as usize,
        sample: Duration::from_millis(args.sample_ms.into()),
        context,
        contexts,
        longest,
        rows: args.rows as usize,
        most_foreign: args.max_foreign,
        cores,
    };
    loop {
        let longest = plan.contexts.last().map_or(0, |tokens| tokens + plan.longest.min(measure::FAR_FED));
        let first_row = longest.max(plan.context + plan.longest);
        let room = Room { rows: plan.rows, tokens: plan.context + 1, first_row };
        match Probe::open(engine, registry, hints, room) {
            Ok(probe) => return Ok((probe, plan)),
            Err(EngineError::Room { .. }) if plan.contexts.pop().is_some() => {}
            Err(EngineError::Room { .. }) if plan.rows > 1 => plan.rows /= 2,
            Err(EngineError::Room { .. }) if plan.context > PAGE_TOKENS => plan.context /= 2,
            Err(EngineError::Room { .. }) if plan.longest > PAGE_TOKENS => plan.longest /= 2,
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// For people.
fn report(profile: &Profile) -> String {
    let mut out = String::new();
    let (b, n) = (&profile.bandwidth, &profile.noise);
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "{}: reads {:.1} GB/s with one core, {:.1} with all\n{} samples, {} of them discarded (others took {:.0} % of the cores); times are {}",
        profile.machine,
        b.one_core_gb_s,
        b.all_cores_gb_s,
        n.samples,
        n.discarded,
        100.0 * n.foreign,
        match profile.trusted {
            file::Trusted::Wall => "wall times",
            file::Trusted::Cpu => "processor times of the busiest thread, since the cores were never free",
        }
    );
    let models: Vec<_> = profile.models.iter().collect();
    for model in &profile.models {
        let one = profile.decode_ms(model, 1);
        let _ = writeln!(
            out,
            "{}: {} threads, {:.0} MB of weights, {:.1} GB/s at one row; each further token of context {:.2} us; {:.2} times slower beside others",
            model.name,
            model.threads,
            model.weight_bytes as f64 / 1e6,
            model.weight_bytes as f64 / 1e6 / one,
            1e3 * profile.cached_ms(model),
            profile.slowdown(model, &models),
        );
        let cells = |points: &[file::Point], ms: &dyn Fn(usize) -> f64| {
            points.iter().map(|p| format!("{}: {:.2}", p.at, ms(p.at))).collect::<Vec<_>>().join("  ")
        };
        let rows = cells(&model.decode, &|rows| profile.decode_ms(model, rows));
        let fed = cells(&model.extend, &|fed| profile.extend_ms(model, fed));
        let _ = writeln!(out, "  ms by rows    {rows}\n  ms by fed     {fed}");
    }
    out
}
