//! What changes logits before the temperature.

use super::SampleInput;

/// Marks an id of the history in the counts.
const SEEN: u32 = 1 << 31;

/// Applies bias, mask and penalties; whether there were any.
pub(super) fn apply(logits: &mut [f32], input: &SampleInput<'_>, counts: &mut [u32]) -> bool {
    let params = input.params;
    for (id, bias) in &params.logit_bias {
        if let Some(x) = logits.get_mut(*id as usize) {
            *x += bias;
        }
    }
    for id in input.forbidden {
        if let Some(x) = logits.get_mut(*id as usize) {
            *x = f32::NEG_INFINITY;
        }
    }
    let penalised = params.needs_history();
    if penalised {
        penalise(logits, input, counts);
    }
    penalised || !params.logit_bias.is_empty() || !input.forbidden.is_empty()
}

/// Repetition penalty over the history, then frequency and presence over its output part.
fn penalise(logits: &mut [f32], input: &SampleInput<'_>, counts: &mut [u32]) {
    let params = input.params;
    for (at, id) in input.history.iter().enumerate() {
        if let Some(count) = counts.get_mut(*id as usize) {
            *count |= SEEN;
            *count += u32::from(at >= input.prompt_len);
        }
    }
    for id in input.history {
        let Some(count) = counts.get_mut(*id as usize) else { continue };
        if *count == 0 {
            continue;
        }
        let output = *count & !SEEN;
        *count = 0;
        let x = &mut logits[*id as usize];
        if params.repetition_penalty != 1.0 {
            *x = if *x > 0.0 { *x / params.repetition_penalty } else { *x * params.repetition_penalty };
        }
        if output > 0 {
            *x -= params.frequency_penalty * output as f32;
            *x -= params.presence_penalty;
        }
    }
}
