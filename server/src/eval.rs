//! `tokenrouter eval`: quality, share of the large model and speed of every router over a sweep of thresholds.

mod cpu;
mod drive;
mod plot;
mod problems;
mod quality;
mod report;
mod row;
mod runs;
mod setting;

use std::io::Write;
use std::path::PathBuf;

use serde_json::json;
use tokenrouter_scheduler::router::Registry;

pub(crate) use crate::progress::Progress;
pub(crate) use cpu::{TICKS_PER_SECOND, seconds_of};
pub(crate) use drive::{Batch, How, drive, prepare, stop};
pub use problems::Check;
pub use quality::Quality;
pub(crate) use report::decimal;
pub(crate) use row::large_share;
pub use setting::SettingArgs;
pub(crate) use setting::{Setting, blank};

use crate::config::DeviceName;
use crate::deploy::{self, Deployment};
use crate::paint::emit;
pub(crate) use problems::{Problem, read as read_problems};
use quality::Marks;
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
    /// What an answer is compared with; `answer` where the prompts have answers, `agreement` where none has.
    #[arg(long, value_enum)]
    pub quality: Option<Quality>,
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
pub fn run(args: &EvalArgs, device: Option<DeviceName>, registry: &Registry) -> Result<(), String> {
    let mut sweep = Sweep::parse(&args.routers, &args.thresholds, &args.shares)?;
    let mut setting = args.setting.load()?;
    setting.config.on_device(device)?;
    let quality = Quality::choose(args.quality, &setting.problems)?;
    if quality == Quality::Agreement {
        if args.check.is_some() {
            return Err("--check says when an answer is right, and agreement compares with none".into());
        }
        sweep.need_large();
    }
    sweep.extend(&mut setting)?;
    let deployment = deploy::start(&setting.config, registry, Box::new(|| ()))?;
    let outcome = measure(args, quality, &sweep, &deployment, &setting.problems);
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
    quality: Quality,
    sweep: &Sweep,
    deployment: &Deployment,
    problems: &[Problem],
) -> Result<Vec<Row>, String> {
    let runs = in_order(quality, sweep.runs(&deployment.engine.info, problems)?)?;
    let prompts = prepare(deployment, &args.setting, problems)?;
    let check = args.check.unwrap_or(if args.setting.demo { Check::Sentence } else { Check::LastNumber });
    let mut log = args.answers.as_ref().map(|path| Log::create(path.clone())).transpose()?;
    let mut rows = Vec::new();
    // The large model's own answers, from the first run, where the others are compared with them.
    let mut large: Vec<Vec<u32>> = Vec::new();
    let mut progress = Progress::new();
    for (index, run) in runs.iter().enumerate() {
        let how = How {
            route: run.route,
            threshold: run.threshold,
            salt: index as u64,
            concurrency: args.setting.concurrency as usize,
        };
        let label = format!("[{}/{}] {}", index + 1, runs.len(), label(run));
        let before = cpu::seconds();
        let ran = drive(deployment, &prompts, how, &mut |done| progress.show(&label, done, prompts.len()));
        let cpu = before.and_then(|before| Some(cpu::seconds()? - before));
        progress.clear();
        let batch = ran.map_err(|e| format!("{}: {e}", self::label(run)))?;
        let texts: Vec<String> =
            batch.answers.iter().map(|a| deployment.text.decode(&a.tokens, true)).collect();
        let marks = match quality {
            Quality::Answer => Marks::right(&right(check, &texts, problems)),
            Quality::Agreement => {
                if large.is_empty() {
                    large = batch.answers.iter().map(|a| a.tokens.clone()).collect();
                }
                Marks::agreement(
                    batch.answers.iter().map(|a| &a.tokens[..]).zip(large.iter().map(Vec::as_slice)),
                )
            }
        };
        if let Some(log) = &mut log {
            log.write(run, &batch, &texts, &marks)?;
        }
        rows.push(Row::new(run, &deployment.engine.info, &batch, marks, cpu));
    }
    row::fill_gap(&mut rows);
    Ok(rows)
}

/// The runs in the order in which they are measured: agreement needs the large model's answers first.
fn in_order(quality: Quality, mut runs: Vec<Run>) -> Result<Vec<Run>, String> {
    if quality == Quality::Agreement {
        let large =
            runs.iter().position(|r| r.router == runs::LARGE).ok_or("the large model has no route")?;
        runs[..=large].rotate_right(1);
    }
    Ok(runs)
}

/// Whether each text has the right answer.
fn right(check: Check, texts: &[String], problems: &[Problem]) -> Vec<bool> {
    let passes =
        |text: &String, p: &Problem| p.answer.as_ref().is_some_and(|right| check.passes(text, right));
    texts.iter().zip(problems).map(|(text, problem)| passes(text, problem)).collect()
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

    fn write(&mut self, run: &Run, batch: &Batch, texts: &[String], marks: &Marks) -> Result<(), String> {
        let failed = |e: std::io::Error| format!("--answers {}: {e}", self.path.display());
        for (index, answer) in batch.answers.iter().enumerate() {
            let mark = marks.each()[index];
            let (right, agreement) = match marks.quality() {
                Quality::Answer => (Some(mark == 1.0), None),
                Quality::Agreement => (None, Some(mark)),
            };
            let line = json!({
                "router": run.router, "threshold": run.shown.map(decimal), "prompt": index,
                "right": right, "agreement": agreement, "text": texts[index],
                "token_ids": answer.tokens, "model_index": answer.writers,
            });
            writeln!(self.file, "{line}").map_err(failed)?;
        }
        self.file.flush().map_err(failed)
    }
}
