//! The CPU device: one thread per model, each with its own worker group.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::JoinHandle;

use tokenrouter_kernels::sampling::{SampleInput, SampleScratch, sample};
use tokenrouter_kernels::signals::signals;
use tokenrouter_scheduler::{MAX_HEADS, ModelId, RowFault, RowResult, Signals};

use super::Executor;
use crate::heads::PromptEnd;
use crate::model::Model;
use crate::step::{SampleSpec, Step, StepLimits};

/// Wakes the rank loop; called by a model thread when a step has finished.
pub type Notify = std::sync::Arc<dyn Fn() + Send + Sync>;

struct Lane {
    steps: Option<flume::Sender<Box<Step>>>,
    spare: Option<Box<Step>>,
    thread: Option<JoinHandle<()>>,
}

/// Runs every model on a thread of its own.
pub struct CpuExecutor {
    lanes: Vec<Lane>,
    finished_in: flume::Sender<Box<Step>>,
    finished: flume::Receiver<Box<Step>>,
}

impl CpuExecutor {
    /// Starts a thread per model; the index of a model is its `ModelId`.
    ///
    /// # Errors
    /// When the operating system refuses a thread.
    pub fn start(models: Vec<(Model, StepLimits)>, notify: Notify) -> std::io::Result<Self> {
        // Room for every model's one step twice over: sending never blocks.
        let (finished_in, finished) = flume::bounded(models.len().max(1) * 2);
        let mut lanes = Vec::with_capacity(models.len());
        for (index, (model, limits)) in models.into_iter().enumerate() {
            let (steps, inbox) = flume::bounded::<Box<Step>>(1);
            let done = finished_in.clone();
            let notify = notify.clone();
            let thread = std::thread::Builder::new()
                .name(format!("model-{index}"))
                .spawn(move || run_lane(model, &inbox, &done, &*notify))?;
            let spare = Some(Box::new(Step::new(limits)));
            lanes.push(Lane { steps: Some(steps), spare, thread: Some(thread) });
        }
        Ok(CpuExecutor { lanes, finished_in, finished })
    }
}

impl Executor for CpuExecutor {
    fn buffers(&mut self, model: ModelId) -> Box<Step> {
        let lane = &mut self.lanes[usize::from(model.0)];
        lane.spare.take().expect("one step per model in flight: its buffers are here")
    }

    fn launch(&mut self, step: Box<Step>) {
        let lane = &self.lanes[usize::from(step.model.0)];
        let Some(steps) = &lane.steps else { return };
        if let Err(error) = steps.send(step) {
            // The thread is gone: only a panic outside `catch_unwind` can do that.
            let mut step = error.into_inner();
            step.failure = Some(format!("model {} has no thread any more", step.model.0));
            let _ = self.finished_in.send(step);
        }
    }

    fn poll(&mut self) -> Option<Box<Step>> {
        self.finished.try_recv().ok()
    }

    fn recycle(&mut self, step: Box<Step>) {
        let lane = usize::from(step.model.0);
        self.lanes[lane].spare = Some(step);
    }
}

impl Drop for CpuExecutor {
    fn drop(&mut self) {
        for lane in &mut self.lanes {
            lane.steps = None;
        }
        for lane in &mut self.lanes {
            if let Some(thread) = lane.thread.take() {
                let _ = thread.join();
            }
        }
    }
}

fn run_lane(
    mut model: Model,
    inbox: &flume::Receiver<Box<Step>>,
    done: &flume::Sender<Box<Step>>,
    notify: &dyn Fn(),
) {
    let mut scratch = Scratch {
        sample: SampleScratch::new(model.config().vocab_size),
        candidates: Vec::with_capacity(model.logit_rows()),
        ends: Vec::with_capacity(model.logit_rows()),
    };
    while let Ok(mut step) = inbox.recv() {
        // A panic is a bug of ours. It must not take the process: the rows of this step fail by name, and
        // the buffers hold nothing that the next step reads.
        let outcome = catch_unwind(AssertUnwindSafe(|| run_step(&mut model, &mut scratch, &mut step)));
        if outcome.is_err() {
            step.failure = Some(format!("the step of model {} panicked", step.model.0));
        }
        if done.send(step).is_err() {
            return;
        }
        notify();
    }
}

/// What a lane keeps between its steps.
struct Scratch {
    sample: SampleScratch,
    /// The candidate of every sampling row; 0 where there is none.
    candidates: Vec<u32>,
    /// The rows whose prompt ends in this step.
    ends: Vec<PromptEnd>,
}

/// Forward, router signals from the raw logits, one draw per sampling row, then the router heads, which read the
/// candidates.
fn run_step(model: &mut Model, scratch: &mut Scratch, step: &mut Step) {
    let vocab = model.config().vocab_size;
    let ln_vocab = (vocab as f32).ln();
    let mut results = std::mem::take(&mut step.results);
    scratch.candidates.clear();
    scratch.ends.clear();
    model.forward(&step.ids, &step.tokens(), &step.logit_tokens);
    model.observe_logits(step.heads);
    let mut row_logits = model.logits_mut().chunks_exact_mut(vocab);
    for (index, row) in step.rows.iter().enumerate() {
        let result = match &row.sample {
            None => RowResult::default(),
            Some(spec) => match row_logits.next() {
                Some(logits) => {
                    let raw = signals(logits, step.flags);
                    let history = step.history(row);
                    let result =
                        sample_row(logits, spec, history, &mut scratch.sample, to_signals(raw, ln_vocab));
                    if spec.key.position as usize == spec.prompt_len {
                        let (sampled, tokens) = (scratch.candidates.len(), spec.prompt_len);
                        scratch.ends.push(PromptEnd { row: index, sampled, tokens });
                    }
                    scratch.candidates.push(result.token);
                    result
                }
                None => RowResult {
                    fault: Some(RowFault::Other("the step gave no logits")),
                    ..RowResult::default()
                },
            },
        };
        results.push(result);
    }
    if step.heads != 0 && !model.heads().is_empty() {
        model.score(step.heads, &scratch.candidates);
        model.score_prompts(step.heads, &step.tokens(), &scratch.ends);
        give_scores(model, step, &mut results);
    }
    step.results = results;
}

/// Puts the heads' scores into the results of the sampling rows. A score that is no number would compare with
/// nothing and never ask the peer: its row fails by name.
fn give_scores(model: &Model, step: &Step, results: &mut [RowResult]) {
    for head in (0..model.heads().len()).filter(|h| step.heads >> h & 1 == 1) {
        let sampled = step.rows.iter().zip(results.iter_mut()).filter(|(row, _)| row.sample.is_some());
        for ((_, result), score) in sampled.zip(model.scores(head)) {
            result.signals.scores[head] = *score;
            if score.is_nan() && result.fault.is_none() {
                result.fault = Some(RowFault::Other("the score of a router head is not a number"));
            }
        }
    }
}

fn sample_row(
    logits: &mut [f32],
    spec: &SampleSpec,
    history: &[u32],
    scratch: &mut SampleScratch,
    signals: Signals,
) -> RowResult {
    let input = SampleInput {
        params: &spec.sampling.params,
        key: spec.key,
        history,
        prompt_len: spec.prompt_len,
        forbidden: if spec.mask_stops { &spec.sampling.stop_ids } else { &[] },
    };
    match sample(logits, &input, scratch) {
        Ok(token) => RowResult { token, signals, fault: None },
        Err(_) => RowResult { token: 0, signals, fault: Some(RowFault::NonFinite) },
    }
}

/// The kernels' signals as routers see them; `ln_vocab` is of the configured vocabulary, padding included, so
/// that thresholds mean the same for every checkpoint of a family.
fn to_signals(raw: tokenrouter_kernels::signals::RawSignals, ln_vocab: f32) -> Signals {
    Signals {
        lse: raw.lse,
        entropy: raw.entropy,
        entropy_norm: raw.entropy / ln_vocab,
        margin: raw.margin,
        scores: [0.0; MAX_HEADS],
        top_ids: raw.top_ids,
        top_logits: raw.top_logits,
        top_len: raw.top_len,
    }
}
