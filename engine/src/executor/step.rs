//! What a CPU does in a step: from the tokens to a result for each row.

use tokenrouter_kernels::cpu::Isa;
use tokenrouter_kernels::logprobs::{LogSoftmax, top_ids};
use tokenrouter_kernels::sampling::{SampleInput, SampleScratch, signals_and_sample};
use tokenrouter_kernels::signals::SignalFlags;
use tokenrouter_scheduler::{MAX_HEADS, RowFault, RowResult, Signals};

use crate::comm::Stopped;
use crate::heads::PromptEnd;
use crate::logprobs::MAX_LOGPROBS;
use crate::model::Model;
use crate::ranks::Room;
use crate::scores::Scores;
use crate::step::{SampleSpec, Step, StepRow};

/// What is kept between the steps of a model.
pub(super) struct Scratch {
    sample: SampleScratch,
    /// The candidate of every sampling row; 0 where there is none.
    candidates: Vec<u32>,
    /// The rows whose prompt ends in this step.
    ends: Vec<PromptEnd>,
    /// A row of raw logits whose candidate is scored, since a draw changes them.
    raw: Vec<f32>,
}

impl Scratch {
    /// For steps of `model`.
    pub(super) fn new(model: &Model) -> Self {
        let rows = model.logit_rows();
        Self {
            sample: SampleScratch::new(model.config().vocab_size),
            candidates: Vec::with_capacity(rows),
            ends: Vec::with_capacity(rows),
            raw: vec![0.0; model.config().vocab_size],
        }
    }
}

/// Forward, router signals from the raw logits, one draw per sampling row, then the router heads, which read the
/// candidates. `number` ascends from step to step. A part that does not sample ends with the forward pass and leaves no
/// results.
///
/// # Errors
/// [`Stopped`] when the step was stopped because another part of the model has failed.
pub(super) fn run_step(
    model: &mut Model,
    scratch: &mut Scratch,
    number: u64,
    step: &Step,
    room: &mut Room,
) -> Result<(), Stopped> {
    let Room { results, scores } = room;
    let vocab = model.config().vocab_size;
    let ln_vocab = (vocab as f32).ln();
    scratch.candidates.clear();
    scratch.ends.clear();
    let isa = Isa::fastest();
    let _at_work = model.at_work();
    let mut scored = ScoredRows { step, row: 0 };
    model.forward_scored(
        number,
        &step.ids,
        &step.tokens(),
        &step.score_tokens,
        &step.logit_tokens,
        |first, logits| {
            for (place, row) in (first..).zip(logits.chunks_exact(vocab)) {
                score(isa, row, step.score_ids[place], scored.at(place).score_top, scores);
            }
        },
    )?;
    if !model.samples() {
        return Ok(());
    }
    model.observe_logits(step.heads);
    let mut row_logits = model.logits_mut().chunks_exact_mut(vocab);
    for (index, row) in step.rows.iter().enumerate() {
        let result = match &row.sample {
            None => RowResult::default(),
            Some(spec) => match row_logits.next() {
                Some(logits) => {
                    if spec.logprobs.is_some() {
                        scratch.raw.copy_from_slice(logits);
                    }
                    let history = step.history(row);
                    let result = sample_row(logits, spec, history, &mut scratch.sample, step.flags, ln_vocab);
                    if spec.key.position as usize == spec.prompt_len {
                        let (sampled, tokens) = (scratch.candidates.len(), spec.prompt_len);
                        scratch.ends.push(PromptEnd { row: index, sampled, tokens });
                    }
                    scratch.candidates.push(result.token);
                    if let Some(top) = spec.logprobs {
                        score(isa, &scratch.raw, result.token, top, scores);
                    }
                    result
                }
                None => {
                    if spec.logprobs.is_some() {
                        scores.push_fault();
                    }
                    let fault = Some(RowFault::Other("the step gave no logits"));
                    RowResult { fault, ..RowResult::default() }
                }
            },
        };
        results.push(result);
    }
    fail_scored(step, scores, results);
    if step.heads != 0 && !model.heads().is_empty() {
        model.score(step.heads, &scratch.candidates);
        model.score_prompts(step.heads, &step.tokens(), &scratch.ends);
        give_scores(model, step, results);
    }
    Ok(())
}

/// Finds the rows of scored tokens, which ascend.
struct ScoredRows<'a> {
    step: &'a Step,
    row: usize,
}

impl ScoredRows<'_> {
    fn at(&mut self, place: usize) -> &StepRow {
        while self.step.rows[self.row].scored.end <= place {
            self.row += 1;
        }
        &self.step.rows[self.row]
    }
}

/// The log-probability of `id` among raw logits, and the `top` likeliest.
fn score(isa: Isa, logits: &[f32], id: u32, top: u8, scores: &mut Scores) {
    let mut room = [(0, 0.0); MAX_LOGPROBS as usize];
    match (LogSoftmax::new(isa, logits), logits.get(id as usize)) {
        (Some(softmax), Some(logit)) => {
            let wanted = usize::from(top).min(room.len());
            let found = top_ids(isa, logits, &mut room[..wanted]);
            scores.push(softmax.of(*logit), room[..found].iter().map(|(id, x)| (*id, softmax.of(*x))));
        }
        _ => scores.push_fault(),
    }
}

/// A row whose prompt was scored by logits that are no numbers fails by name.
fn fail_scored(step: &Step, scores: &Scores, results: &mut [RowResult]) {
    if step.score_tokens.is_empty() {
        return;
    }
    for (row, result) in step.rows.iter().zip(results) {
        if row.scored.clone().any(|place| scores.is_fault(place)) {
            result.fault = result.fault.or(Some(RowFault::NonFinite));
        }
    }
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
    flags: SignalFlags,
    ln_vocab: f32,
) -> RowResult {
    let input = SampleInput {
        params: &spec.sampling.params,
        key: spec.key,
        history,
        prompt_len: spec.prompt_len,
        forbidden: if spec.mask_stops { &spec.sampling.stop_ids } else { &[] },
    };
    let found = signals_and_sample(logits, flags, &input, scratch);
    let signals = to_signals(found.signals, ln_vocab);
    match found.token {
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
