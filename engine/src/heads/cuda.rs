//! The heads of one model on a CUDA device: inside the captured step, behind the draw of the candidates.
//!
//! ```text
//! new(..)                         weights and buffers; bytes() for the plan
//! allocate_kept(pages)            only when keeps_states(): hidden states beside keys and values
//! launch(kernels, stream, step)   in every step, captured or not: no host read, no allocation
//! raw()                           [head][rows][3] f32 on the device; the executor copies it to the host
//! finish(raw, step, results)      on the host: probabilities into the results, as the CPU's executor does
//! ```
//!
//! Everything that varies is read from device memory: R, T, the wanted heads (a head that nobody wants costs its launches
//! and no bytes), the prompts that end. Arithmetic is f32 in an order that depends on the row alone; the activations that
//! it starts from are bf16, so a score agrees with the CPU's as far as the hidden states do (from equal states within 2e-6),
//! and among CUDA steps to the bit.

mod net;
#[cfg(test)]
mod tests;

use half::bf16;
use tokenrouter_kernels::cpu::PAGE_TOKENS;
use tokenrouter_kernels::cuda::{
    Buffer, CudaError, CudaStream, Device, HeadEnd, KeepArgs, Kernels, MAX_TOP, Ptr,
};
use tokenrouter_scheduler::{RowFault, RowResult};

use self::net::{Launch, Net};
use super::run::{MOST_OUTPUTS, probability};
use super::{OpenHead, PromptEnd};
use crate::model::OpenModel;
use crate::step::Step;

/// Where a step's data lie on the device. Row counts are upper bounds; what counts is read from the device.
#[derive(Clone, Copy, Debug)]
pub struct HeadStep {
    /// Hidden states of the sampling rows after the final norm, `[R][stride]`, the stride a row of `hidden_size` padded to
    /// a multiple of 32.
    pub hidden: Ptr<bf16>,
    /// The largest raw logits, `[R][top]`.
    pub top_logits: Ptr<f32>,
    /// Columns of `top_logits`: a multiple of 4, at least [`CudaHeads::top`].
    pub top: u32,
    /// The sampled tokens, `[R]`.
    pub candidates: Ptr<u32>,
    /// The packed embedding table, all of it.
    pub embed: Ptr<bf16>,
    /// One word: bit `h` wants head `h`.
    pub wanted: Ptr<u32>,
    /// R.
    pub rows: Ptr<u32>,
    /// R at most.
    pub max_rows: u32,
    /// What heads that read whole prompts need; not read when [`CudaHeads::keeps_states`] is false.
    pub prompts: PromptStep,
}

/// What heads that read whole prompts need of a step.
#[derive(Clone, Copy, Debug)]
pub struct PromptStep {
    /// Hidden states of all fed tokens after the final norm, `[T][stride]`.
    pub states: Ptr<bf16>,
    /// T.
    pub tokens: Ptr<u32>,
    /// T at most.
    pub max_tokens: u32,
    /// `[T]`.
    pub positions: Ptr<u32>,
    /// `[T]`.
    pub token_row: Ptr<u32>,
    /// `[rows][table_stride]` of pages.
    pub tables: Ptr<u32>,
    /// Pages of a row of `tables`.
    pub table_stride: u32,
    /// The rows whose prompt ends here, from [`ends_of`]: `[E]`, at most `max_rows`.
    pub ends: Ptr<HeadEnd>,
    /// E.
    pub end_count: Ptr<u32>,
}

/// All heads of a model with their weights and buffers on one device.
pub struct CudaHeads {
    nets: Vec<Net>,
    raw: Buffer<f32>,
    rows: usize,
    stride: usize,
    keeps: bool,
    kept: Option<Buffer<bf16>>,
    top: u32,
    bytes: u64,
}

impl CudaHeads {
    /// Uploads the heads of `model` for at most `rows` sampling rows; `None` when it has none.
    ///
    /// # Errors
    /// [`CudaError::Shape`] for a head that reads more logits than the signals list holds, or what the driver says.
    pub fn new(
        device: &Device,
        stream: &CudaStream,
        model: &OpenModel,
        rows: usize,
    ) -> Result<Option<Self>, CudaError> {
        let config = model.config();
        Self::of(device, stream, model.open_heads(), (config.hidden_size, config.vocab_size), rows)
    }

    /// As [`Self::new`], for a model of these sizes (hidden state, vocabulary).
    pub(crate) fn of(
        device: &Device,
        stream: &CudaStream,
        heads: &[OpenHead],
        model: (usize, usize),
        rows: usize,
    ) -> Result<Option<Self>, CudaError> {
        if heads.is_empty() {
            return Ok(None);
        }
        if let Some(head) = heads.iter().find(|h| h.logits_size() > MAX_TOP as usize) {
            let (path, size) = (head.info.path.display(), head.logits_size());
            let what =
                format!("{path}: logits_size is {size}, on CUDA at most the {MAX_TOP} largest are listed");
            return Err(CudaError::Shape(what));
        }
        let mut upload = net::Upload { device, stream, rows, bytes: 0 };
        let nets = heads.iter().map(|h| Net::new(&mut upload, h, model)).collect::<Result<_, _>>()?;
        let raw = upload.buffer(heads.len() * rows * MOST_OUTPUTS)?;
        Ok(Some(Self {
            nets,
            raw,
            rows,
            stride: model.0.next_multiple_of(32),
            keeps: heads.iter().any(OpenHead::reads_prompts),
            kept: None,
            top: heads.iter().map(OpenHead::logits_size).max().unwrap_or(0).next_multiple_of(4) as u32,
            bytes: upload.bytes,
        }))
    }

    /// Bytes of weights and buffers, without the kept states.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many of the largest logits a row's list must hold: a multiple of 4, 0 when no head reads them.
    pub fn top(&self) -> u32 {
        self.top
    }

    /// Whether a head reads whole prompts: the step must then norm all fed tokens, and pages hold their states.
    pub fn keeps_states(&self) -> bool {
        self.keeps
    }

    /// Bytes that each page of the cache holds beside keys and values.
    pub fn kept_bytes_per_page(&self) -> u64 {
        if self.keeps { (PAGE_TOKENS * self.stride * size_of::<bf16>()) as u64 } else { 0 }
    }

    /// Allocates the states of `pages` pages, all that a step's tables may name. Graphs captured before hold no address.
    ///
    /// # Errors
    /// What the driver says.
    pub fn allocate_kept(
        &mut self,
        device: &Device,
        stream: &CudaStream,
        pages: usize,
    ) -> Result<(), CudaError> {
        if self.keeps {
            self.kept = Some(Buffer::zeroed(device, stream, pages * PAGE_TOKENS * self.stride)?);
        }
        Ok(())
    }

    /// What the heads said, `[head][rows][3]` f32: of a row, or, of a head that reads whole prompts, of an end.
    pub fn raw(&self) -> Ptr<f32> {
        self.raw.ptr()
    }

    /// Values of [`Self::raw`].
    pub fn raw_len(&self) -> usize {
        self.raw.len()
    }

    /// Queues the heads of one step, behind its draws and its list of largest logits. Allocates nothing and may be captured.
    ///
    /// # Safety
    /// The memory that `step` names must have the shapes said there and stay until the stream has run the step (or for the
    /// life of the graph); its tables must name pages below those of [`Self::allocate_kept`].
    ///
    /// # Errors
    /// [`CudaError::Shape`] when `step` contradicts the sizes of [`Self::new`], or what the driver says.
    pub unsafe fn launch(
        &self,
        kernels: &Kernels,
        stream: &CudaStream,
        step: &HeadStep,
    ) -> Result<(), CudaError> {
        if step.max_rows as usize > self.rows || step.top < self.top || !step.top.is_multiple_of(4) {
            let what = format!(
                "heads for {} rows and {} logits in a step of {} and {}",
                self.rows, self.top, step.max_rows, step.top
            );
            return Err(CudaError::Shape(what));
        }
        if self.keeps {
            // SAFETY: the caller's promise.
            unsafe { self.keep(kernels, stream, &step.prompts) }?;
        }
        let kept = self.kept.as_ref().map_or(Ptr::NULL, Buffer::ptr);
        for (index, net) in self.nets.iter().enumerate() {
            let out = self.raw.ptr().add(index * self.rows * MOST_OUTPUTS);
            let launch = Launch { kernels, stream, step, head: index as u32, stride: self.stride, kept };
            // SAFETY: the caller's promise, and our buffers have the sizes of `new`.
            unsafe { net.launch(&launch, out) }?;
        }
        Ok(())
    }

    /// # Safety
    /// As [`Self::launch`].
    unsafe fn keep(
        &self,
        kernels: &Kernels,
        stream: &CudaStream,
        step: &PromptStep,
    ) -> Result<(), CudaError> {
        let args = KeepArgs {
            states: step.states,
            kept: self.kept.as_ref().map_or(Ptr::NULL, Buffer::ptr),
            positions: step.positions,
            token_row: step.token_row,
            tables: step.tables,
            tokens: step.tokens,
            stride: self.stride as u32,
            table_stride: step.table_stride,
        };
        // SAFETY: the caller's promise.
        unsafe { kernels.keep_states(stream, step.max_tokens, &args) }
    }

    /// Puts the scores of the heads that `step` wants into the results of its sampling rows: the probability, 0 for a row
    /// whose prompt a head has not just read. A score that is no number fails its row by name. `raw` is a copy of
    /// [`Self::raw`]. Allocates nothing.
    pub fn finish(&self, raw: &[f32], step: &Step, results: &mut [RowResult]) {
        for (head, net) in self.nets.iter().enumerate().filter(|(h, _)| step.heads >> h & 1 == 1) {
            let mut said = raw[head * self.rows * MOST_OUTPUTS..].chunks_exact(MOST_OUTPUTS);
            let outputs = net.outputs();
            for (row, result) in step.rows.iter().zip(results.iter_mut()) {
                let Some(spec) = &row.sample else { continue };
                let speaks = !net.reads_prompts() || spec.key.position as usize == spec.prompt_len;
                let score = match speaks.then(|| said.next()).flatten() {
                    Some(raw) => {
                        let mut raw = [raw[0], raw[1], raw[2]];
                        probability(&mut raw[..outputs])
                    }
                    None => 0.0,
                };
                result.signals.scores[head] = score;
                if score.is_nan() && result.fault.is_none() {
                    result.fault = Some(RowFault::Other("the score of a router head is not a number"));
                }
            }
        }
    }
}

/// The prompts that end in `step`, in the order of its sampling rows, as [`PromptStep::ends`] wants them.
pub fn ends_of(step: &Step) -> impl Iterator<Item = HeadEnd> + '_ {
    PromptEnd::of(step).map(|end| HeadEnd { row: end.row as u32, tokens: end.tokens as u32 })
}
