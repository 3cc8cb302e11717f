//! The command line: `demo`, `serve`, `generate`, `plan`, `simulate`, `bench`, `convert-router`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::LazyLock;

use clap::{Parser, Subcommand};
use tokenrouter_scheduler::router::Registry;

use crate::config::{Config, DeviceName, LogFormat, Overrides, SetArgs};
use crate::{
    bench, calibrate, config, convert, demo, deploy, eval, generate, logging, paint, plan, profile, serve,
    simulate,
};

/// Serving system for token-level LLM routing.
#[derive(Debug, Parser)]
#[command(name = "tokenrouter", version, long_version = LONG_VERSION.as_str(), about, propagate_version = true)]
struct Cli {
    /// Where models run; wins over the file's `device`.
    #[arg(long, global = true, value_enum)]
    device: Option<DeviceName>,
    #[command(subcommand)]
    command: CliCommand,
}

/// The version, and what the build script compiled.
static LONG_VERSION: LazyLock<String> =
    LazyLock::new(|| format!("{}\nbuild: {}", env!("CARGO_PKG_VERSION"), tokenrouter_engine::BUILD_REPORT));

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Start the demo pair, answer a built-in prompt, show who wrote each token, and keep serving.
    Demo(DemoArgs),
    /// Serve the models of a TOML file.
    Serve(ServeArgs),
    /// Answer one prompt on the command line.
    Generate(GenerateArgs),
    /// Measure routers on prompts with known answers: accuracy, share of the large model, speed.
    Eval(eval::EvalArgs),
    /// Turn a share of tokens for the large model into a threshold.
    Calibrate(calibrate::CalibrateArgs),
    /// Compute the throughput of delayed batching for every threshold, and the best ones.
    Plan(plan::PlanArgs),
    /// Measure how long the steps of the models take on this machine, for the planner, `plan` and `simulate`.
    Profile(profile::ProfileArgs),
    /// Simulate a service: the scheduler over virtual devices and clients, measured.
    Simulate(simulate::SimulateArgs),
    /// Measure the speed of a server under load: ours or another OpenAI-compatible one.
    Bench(Box<bench::BenchArgs>),
    /// Turn a published router (R2R .pt, CITER .pth, Co-LLM checkpoint or row) into a router folder.
    ConvertRouter(convert::ConvertArgs),
    /// Print docs/configuration.md: every key of the configuration.
    ConfigReference,
}

/// Flags of `demo`.
#[derive(Clone, Debug, clap::Args)]
pub struct DemoArgs {
    /// Exit after the answer.
    #[arg(long, conflicts_with = "serve_only")]
    pub once: bool,
    /// Serve without answering the built-in prompt.
    #[arg(long)]
    pub serve_only: bool,
    /// Folder of the demo pair.
    #[arg(long, value_name = "DIR")]
    pub models: Option<PathBuf>,
    /// Keys of the configuration.
    #[command(flatten)]
    pub overrides: Overrides,
}

/// Flags of `serve`.
#[derive(Clone, Debug, clap::Args)]
pub struct ServeArgs {
    /// The TOML file that describes models, router, budget and server.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print the configuration with the origin of every value, as TOML, and end.
    #[arg(long)]
    pub print_config: bool,
    /// Check the configuration, the checkpoints and the memory plan, and end; needs no GPU.
    #[arg(long)]
    pub check: bool,
    /// Keys of the configuration.
    #[command(flatten)]
    pub overrides: Overrides,
}

/// Flags of `generate`.
#[derive(Clone, Debug, clap::Args)]
pub struct GenerateArgs {
    /// The prompt.
    pub prompt: String,
    /// The TOML file that describes the models; without it, the demo pair.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Put the prompt into the chat template as a user message.
    #[arg(long)]
    pub chat: bool,
    /// Which route or model answers; the default is the routed pair.
    #[arg(long)]
    pub model: Option<String>,
    /// Most tokens of the answer.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_tokens: u32,
    /// 0 is greedy.
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub temperature: f32,
    /// Seed of every draw.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Overrides the router's threshold: a number, `always` or `never`.
    #[arg(long, allow_negative_numbers = true)]
    pub threshold: Option<String>,
    /// Keys of the configuration.
    #[command(flatten)]
    pub set: SetArgs,
}

/// Runs the command line with the routers of `registry`. A binary with its own router registers it and calls this.
pub fn run(registry: &Registry) -> ExitCode {
    let cli = Cli::parse();
    match run_command(cli.command, cli.device, registry) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            tell(&format!("tokenrouter: {problem}"));
            ExitCode::FAILURE
        }
    }
}

fn run_command(command: CliCommand, device: Option<DeviceName>, registry: &Registry) -> Result<(), String> {
    if !matches!(command, CliCommand::Serve(_)) {
        // What has no section of the configuration for it logs as by default.
        logging::start(LogFormat::default(), "info")?;
    }
    match command {
        CliCommand::Demo(args) => demo::run(&args, device, registry),
        CliCommand::Serve(args) => serve_file(&args, device, registry),
        CliCommand::Generate(args) => generate::run(&args, device, registry),
        CliCommand::Eval(args) => eval::run(&args, device, registry),
        CliCommand::Calibrate(args) => calibrate::run(&args, device, registry),
        CliCommand::Profile(args) => profile::run(&args, device, registry),
        // These run no model.
        CliCommand::Plan(args) => plan::run(&args),
        CliCommand::Simulate(args) => simulate::run(&args, registry),
        CliCommand::Bench(args) => bench::run(&args, device),
        CliCommand::ConvertRouter(args) => convert::run(&args),
        CliCommand::ConfigReference => paint::emit(&config::reference()),
    }
}

/// Prints a line to stderr; when nobody reads there, nothing is lost that could be said elsewhere.
pub(crate) fn tell(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn serve_file(args: &ServeArgs, device: Option<DeviceName>, registry: &Registry) -> Result<(), String> {
    let flags = args.overrides.clone().on_device(device);
    let config = Config::load_with(args.config.as_deref(), &flags)?;
    logging::start(config.log.format, &config.log.level)?;
    config.warnings().iter().for_each(|warning| tell(&format!("warning: {warning}")));
    if args.print_config {
        paint::emit(&config.to_toml())?;
    }
    if args.check {
        let checked = deploy::check(&config, registry)?;
        paint::emit(&checked.to_string())?;
    }
    if args.print_config || args.check {
        return Ok(());
    }
    serve::Started::new(&config, registry)?.announce().run()
}
