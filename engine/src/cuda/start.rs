//! The step of one token that warms kernels, collectives and graphs up.

use std::sync::Arc;

use tokenrouter_kernels::rng::{DrawKey, Purpose};
use tokenrouter_kernels::sampling::SamplingParams;
use tokenrouter_kernels::signals::SignalFlags;
use tokenrouter_scheduler::{ModelId, PageId};

use crate::step::{RowSampling, SampleSpec, Step, StepLimits};

/// Token 0 at position 0 of the page behind the cache's last one, which no request ever gets.
pub(super) fn padding_step(pages: usize) -> Step {
    let params = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let sampling = Arc::new(RowSampling { params, stop_ids: Vec::new(), needs_history: false });
    let key = DrawKey { seed: 0, choice: 0, position: 1, purpose: Purpose::Sample, model: 0 };
    let sample = SampleSpec { sampling, key, prompt_len: 1, mask_stops: false, logprobs: None };
    let mut step = Step::new(StepLimits { rows: 1, tokens: 1, context_len: 1 });
    step.begin(0, ModelId(0), SignalFlags::ALL, u8::MAX);
    step.push_row(&[0], 0..1, &[PageId(pages as u32)], Some(sample));
    step
}
