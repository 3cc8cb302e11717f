//! The end of a step: logits of the rows that want them, statistics, signals, and the draw.

use half::bf16;
use tokenrouter_kernels::cuda::{
    Communicator, CudaError, LinearArgs, NamedArgs, NormArgs, Ptr, SampleArgs, SignalArgs, StatsArgs,
    UnshardArgs, copy_to_host_async,
};

use super::arena::Exchange;
use super::block::{Front, Plan, ResultMap, at};
use super::forward::Forward;
use crate::heads::cuda::{CudaHeads, HeadStep, PromptStep};

/// Rows of logits that are computed together: the step's sampling rows, or a piece of its scores.
#[derive(Clone, Copy)]
struct Rows<'a> {
    /// The tokens behind which they stand.
    index: Ptr<u32>,
    /// How many they are.
    count: Ptr<u32>,
    /// At most so many.
    most: u32,
    /// Where their results go.
    results: &'a ResultMap,
}

/// See [`Forward::run`] for what the callers of all of these promise.
impl Forward<'_> {
    /// Everything after the last layer. A step none of whose rows samples skips the draw, unless a graph runs it, whose
    /// kernels then find no row.
    pub(super) unsafe fn finish(&self, plan: &Plan<'_>) -> Result<(), CudaError> {
        // SAFETY: the caller's promise.
        unsafe {
            self.scores(plan)?;
            let rows = Rows {
                index: at(self.block, plan.front.logit_tokens),
                count: self.rows(),
                most: plan.rows,
                results: &plan.results,
            };
            if plan.rows > 0 {
                self.last_norm(&rows)?;
                self.logits(&rows)?;
            }
            if plan.rows > 0 && self.shape.shard.samples() {
                self.signals(&rows)?;
                self.sample(plan)?;
            }
            match self.heads {
                Some(heads) if plan.rows > 0 || heads.keeps_states() => self.score(plan, heads),
                _ => Ok(()),
            }
        }
    }

    /// The tokens of prompts that are scored, as many at a time as there is room for logits; each piece travels to a place
    /// of its own on the host before the next one takes its room here.
    unsafe fn scores(&self, plan: &Plan<'_>) -> Result<(), CudaError> {
        let (room, front, map) = (self.shape.max_rows as u32, &plan.front, self.score_map);
        for (piece, first) in (0..plan.scores).step_by(room as usize).enumerate() {
            let rows = Rows {
                index: at(self.block, front.score_tokens + first as usize),
                count: at(self.block, front.score_counts + piece),
                most: room.min(plan.scores - first),
                results: map,
            };
            let named = NamedArgs {
                logits: self.arena.logits.ptr(),
                ids: at(self.block, front.score_ids + first as usize),
                out: at(self.results, map.logit),
                rows: rows.count,
                vocab: self.shape.vocab,
                stride: self.shape.vocab_stride,
            };
            // SAFETY: the caller's promise; the host has room for every piece of the largest step.
            unsafe {
                self.last_norm(&rows)?;
                self.logits(&rows)?;
                if self.shape.shard.samples() {
                    self.signals(&rows)?;
                    self.context.kernels.named_logits(self.stream, rows.most, &named)?;
                    let to = piece * map.len..(piece + 1) * map.len;
                    copy_to_host_async(self.stream, self.scores_host, to, self.results)?;
                }
            }
        }
        Ok(())
    }

    /// The final norm of the tokens whose logits are wanted.
    unsafe fn last_norm(&self, rows: &Rows<'_>) -> Result<(), CudaError> {
        let args = NormArgs {
            index: rows.index,
            out: self.arena.hidden.ptr(),
            rows: rows.count,
            ..self.norm_args(self.weights.final_norm.ptr())
        };
        // SAFETY: the caller's promise.
        unsafe { self.context.kernels.rms_norm(self.stream, rows.most, &args) }
    }

    unsafe fn logits(&self, rows: &Rows<'_>) -> Result<(), CudaError> {
        let (shape, logits) = (self.shape, self.arena.logits.ptr());
        if let (Some(exchange), Some(comm)) = (&self.arena.exchange, self.comm) {
            // SAFETY: the caller's promise.
            return unsafe { self.logits_of_ranks(rows, exchange, comm) };
        }
        let args = self.head_args(rows, (logits, shape.vocab_stride), shape.vocab, shape.real_vocab);
        // SAFETY: the caller's promise.
        unsafe { self.context.kernels.linear(self.stream, rows.most, &args) }
    }

    /// This rank's columns, then those of all ranks; only the rank that samples puts them together.
    unsafe fn logits_of_ranks(
        &self,
        rows: &Rows<'_>,
        exchange: &Exchange,
        comm: &Communicator,
    ) -> Result<(), CudaError> {
        let (shape, width) = (self.shape, self.shape.vocab_width);
        let own = &shape.vocab_rows;
        let n = own.end - own.start;
        let real = shape.real_vocab.clamp(own.start, own.end) - own.start;
        let (part, count) = (exchange.logits.ptr(), rows.most as usize * width as usize);
        let args = self.head_args(rows, (part, width), n, real);
        let join = UnshardArgs {
            shards: exchange.all_logits.ptr(),
            logits: self.arena.logits.ptr(),
            rows: rows.count,
            rank_step: count as u32,
            width,
            n: shape.vocab,
            n_real: shape.real_vocab,
            stride: shape.vocab_stride,
        };
        // SAFETY: the caller's promise; all ranks queue the same steps in the same order.
        unsafe {
            self.context.kernels.linear(self.stream, rows.most, &args)?;
            comm.all_gather_f32(self.stream, part, exchange.all_logits.ptr(), count)?;
            if self.shape.shard.samples() {
                self.context.kernels.unshard_logits(self.stream, rows.most, &join)?;
            }
        }
        Ok(())
    }

    /// The product with this rank's `n` columns of the output matrix, `n_real` of them unmasked.
    fn head_args(&self, rows: &Rows<'_>, (to, stride): (Ptr<f32>, u32), n: u32, n_real: u32) -> LinearArgs {
        let hidden = self.shape.hidden;
        let from: Ptr<bf16> = self.arena.hidden.ptr();
        LinearArgs {
            w: self.weights.lm_head(),
            x: from,
            bias: Ptr::NULL,
            y: to.cast(),
            rows: rows.count,
            n,
            kb: hidden.blocks(),
            x_stride: hidden.stride,
            y_stride: stride,
            slices: 4,
            f32_out: 1,
            n_real,
        }
    }

    unsafe fn signals(&self, rows: &Rows<'_>) -> Result<(), CudaError> {
        let (shape, arena, map) = (self.shape, self.arena, rows.results);
        let (logits, tiles, count) = (arena.logits.ptr(), arena.stats.ptr(), rows.count);
        let (vocab, stride) = (shape.vocab, shape.vocab_stride);
        let stats = StatsArgs { logits, tiles, rows: count, vocab, stride };
        let signals = SignalArgs {
            logits,
            tiles,
            signals: at(self.results, map.signals),
            top_ids: at(self.results, map.top_ids),
            top_logits: at(self.results, map.top_logits),
            rows: count,
            wanted: at(self.block, Front::TOP),
            vocab,
            stride,
            top: map.top as u32,
        };
        // SAFETY: the caller's promise.
        unsafe {
            self.context.kernels.logit_stats(self.stream, rows.most, &stats)?;
            self.context.kernels.row_signals(self.stream, rows.most, &signals)
        }
    }

    unsafe fn sample(&self, plan: &Plan<'_>) -> Result<(), CudaError> {
        let (shape, arena) = (self.shape, self.arena);
        let lists: Ptr<u32> = at(self.block, self.map.lists);
        let args = SampleArgs {
            logits: arena.logits.ptr(),
            work: arena.work.ptr(),
            counts: arena.counts.ptr(),
            draws: at(self.block, plan.front.draws),
            bias_ids: lists,
            bias_values: at(self.block, self.map.biases),
            forbidden_ids: lists,
            history_ids: lists,
            token: at(self.results, plan.results.token),
            fault: at(self.results, plan.results.fault),
            logit: at(self.results, plan.results.logit),
            rows: self.rows(),
            vocab: shape.vocab,
            stride: shape.vocab_stride,
        };
        // SAFETY: the caller's promise.
        unsafe { self.context.kernels.sample_tokens(self.stream, plan.rows, &args) }
    }

    /// Router heads, behind the draws. One that reads prompts keeps the states of all tokens that are fed.
    unsafe fn score(&self, plan: &Plan<'_>, heads: &CudaHeads) -> Result<(), CudaError> {
        let (kernels, front) = (&self.context.kernels, &plan.front);
        let step = HeadStep {
            hidden: self.arena.hidden.ptr(),
            top_logits: at(self.results, plan.results.top_logits),
            top: plan.results.top as u32,
            candidates: at(self.results, plan.results.token),
            embed: self.weights.embed.ptr(),
            wanted: at(self.block, Front::HEADS),
            rows: self.rows(),
            max_rows: plan.rows,
            prompts: PromptStep {
                states: self.arena.x.ptr(),
                tokens: self.tokens(),
                max_tokens: plan.tokens,
                positions: at(self.block, front.positions),
                token_row: at(self.block, front.token_row),
                tables: at(self.block, self.map.tables),
                table_stride: self.shape.table_stride,
                ends: at(self.block, front.ends),
                end_count: at(self.block, Front::ENDS),
            },
        };
        // SAFETY: the caller's promise.
        unsafe {
            if heads.keeps_states() {
                let args = self.norm_args(self.weights.final_norm.ptr());
                kernels.rms_norm(self.stream, plan.tokens, &args)?;
            }
            heads.launch(kernels, self.stream, &step)
        }
    }
}
