//! `tokenrouter eval`: accuracy, share of the large model and speed of every router over a sweep of thresholds.

mod drive;
mod plot;
mod problems;
mod progress;
mod report;
mod row;
mod runs;
mod setting;

use std::io::Write;
use std::path::PathBuf;

use serde_json::json;
use tokenrouter_scheduler::router::Registry;

pub(crate) use drive::{Batch, How, drive, prepare, stop};
pub use problems::Check;
pub(crate) use progress::Progress;
pub(crate) use report::decimal;
pub(crate) use row::large_share;
pub(crate) use setting::Setting;
pub use setting::SettingArgs;

use crate::deploy::{self, Deployment};
use crate::paint::emit;
use problems::Problem;
use row::Row;
use runs::{Run, Sweep};

/// Flags of `eval`.
#[derive(Clone, Debug, clap::Args)]
pub struct EvalArgs {
    /// The deployment and the prompts.
    #[command(flatten)]
    pub setting: SettingArgs,
    /// What to measure: `small`, `large`, a router, or a served name; may be given several times. All, without it.
    #[arg(long = "router", value_name = "NAME")]
    pub routers: Vec<String>,
    /// Thresholds of the routers that compare with one: numbers from 0 to 1, `always`, `never`.
    #[arg(long, value_name = "T,T,...", value_delimiter = ',', allow_hyphen_values = true)]
    pub thresholds: Vec<String>,
    /// Shares of the large model for `query` (of the requests), `me` and `fixed` (of the tokens).
    #[arg(long, value_name = "S,S,...", value_delimiter = ',', allow_hyphen_values = true)]
    pub shares: Vec<f32>,
    /// When an answer is right; the demo pair's says it in a sentence.
    #[arg(long, value_enum)]
    pub check: Option<Check>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Write a plot.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Write every answer: JSON lines with its router, threshold, prompt, token ids, and the writer of each.
    #[arg(long, value_name = "FILE")]
    pub answers: Option<PathBuf>,
}

/// Measures and prints.
///
/// # Errors
/// One line that names the flag, file or key at fault.
pub fn run(args: &EvalArgs, registry: &Registry) -> Result<(), String> {
    let sweep = Sweep::parse(&args.routers, &args.thresholds, &args.shares)?;
    let mut setting = args.setting.load()?;
    if let Some(index) = setting.problems.iter().position(|p| p.answer.is_none()) {
        return Err(format!("prompt {index} has no \"answer\", so nothing can be checked"));
    }
    sweep.extend(&mut setting)?;
    let deployment = deploy::start(&setting.config, registry, Box::new(|| ()))?;
    let outcome = measure(args, &sweep, &deployment, &setting.problems);
    stop(&deployment);
    let rows = outcome?;
    if let Some(path) = &args.svg {
        std::fs::write(path, plot::plot(&rows)).map_err(|e| format!("--svg {}: {e}", path.display()))?;
    }
    let what = report::What { problems: setting.problems.len(), concurrency: args.setting.concurrency };
    emit(&if args.json { report::json(&rows, &what) } else { report::text(&rows, &what) })
}

fn measure(
    args: &EvalArgs,
    sweep: &Sweep,
    deployment: &Deployment,
    problems: &[Problem],
) -> Result<Vec<Row>, String> {
    let runs = sweep.runs(&deployment.engine.info, problems)?;
    let prompts = prepare(deployment, &args.setting, problems)?;
    let check = args.check.unwrap_or(if args.setting.demo { Check::Sentence } else { Check::LastNumber });
    let mut log = args.answers.as_ref().map(|path| Log::create(path.clone())).transpose()?;
    let mut rows = Vec::new();
    let mut progress = Progress::new();
    for (index, run) in runs.iter().enumerate() {
        let how = How {
            route: run.route,
            threshold: run.threshold,
            salt: index as u64,
            concurrency: args.setting.concurrency as usize,
        };
        let label = format!("[{}/{}] {}", index + 1, runs.len(), label(run));
        let ran = drive(deployment, &prompts, how, &mut |done| progress.show(&label, done, prompts.len()));
        progress.clear();
        let batch = ran.map_err(|e| format!("{}: {e}", self::label(run)))?;
        let texts: Vec<String> =
            batch.answers.iter().map(|a| deployment.text.decode(&a.tokens, true)).collect();
        let right: Vec<bool> = texts
            .iter()
            .zip(problems)
            .map(|(text, p)| p.answer.as_ref().is_some_and(|answer| check.passes(text, answer)))
            .collect();
        if let Some(log) = &mut log {
            log.write(run, &batch, &texts, &right)?;
        }
        rows.push(Row::new(run, &deployment.engine.info, &batch, &right));
    }
    row::fill_gap(&mut rows);
    Ok(rows)
}

fn label(run: &Run) -> String {
    run.shown.map_or_else(|| run.router.clone(), |shown| format!("{} {shown}", run.router))
}

/// The file of `--answers`.
struct Log {
    path: PathBuf,
    file: std::io::BufWriter<std::fs::File>,
}

impl Log {
    fn create(path: PathBuf) -> Result<Self, String> {
        let file = std::fs::File::create(&path).map_err(|e| format!("--answers {}: {e}", path.display()))?;
        Ok(Log { path, file: std::io::BufWriter::new(file) })
    }

    fn write(&mut self, run: &Run, batch: &Batch, texts: &[String], right: &[bool]) -> Result<(), String> {
        let failed = |e: std::io::Error| format!("--answers {}: {e}", self.path.display());
        for (index, answer) in batch.answers.iter().enumerate() {
            let line = json!({
                "router": run.router, "threshold": run.shown.map(decimal), "prompt": index,
                "right": right[index], "text": texts[index],
                "token_ids": answer.tokens, "model_index": answer.writers,
            });
            writeln!(self.file, "{line}").map_err(failed)?;
        }
        self.file.flush().map_err(failed)
    }
}
