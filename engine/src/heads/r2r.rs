//! R2R's network (`HiddenStatesTokenLMHeadLogitsClassifier`), for hidden states `h`, candidate embeddings `e` and the
//! largest raw logits `l`:
//!
//! ```text
//! q = Wl l + bl                             (L -> H)
//! x = Wc [h ; e ; q] + bc                   (3H -> D0)
//! x = Wi x + bi                             (D0 -> D0)
//! block i: x = skip(x) + W2 gelu(W1 LN(x) + b1) + b2     (Di -> Di * expansion -> D(i+1), the last to its own width)
//! f = Wo LN(x) + bo                         (D -> 1 or 3)
//! ```
//!
//! With `normalize_input`: LayerNorm on `h` and on `e`, softmax over `l`. `skip` is a matrix where the width changes.
//! Tensor names are those of the official checkpoint. Its copy of the embedding is frozen, so the model's own table is
//! read instead: the same numbers, and some hundred MiB less.

use tokenrouter_kernels::cpu::Reduce;

use super::file::R2rShape;
use super::tensors::Tensors;
use crate::error::LoadError;
use crate::ops::Ops;
use crate::weights::{Linear, Norm, Tensor};

/// The weights of one network.
#[derive(Clone, Debug)]
pub(crate) struct R2rWeights {
    shape: R2rShape,
    hidden: usize,
    pub(super) logits: Linear,
    pub(super) combined: Linear,
    pub(super) input: Linear,
    pub(super) blocks: Vec<Block>,
    pub(super) out_norm: Norm,
    pub(super) out: Linear,
    pub(super) input_norms: Option<(Norm, Norm)>,
}

#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) norm: Norm,
    pub(super) up: Linear,
    pub(super) down: Linear,
    pub(super) skip: Option<Linear>,
}

impl R2rWeights {
    pub(super) fn load(tensors: &mut Tensors, shape: &R2rShape, hidden: usize) -> Result<Self, LoadError> {
        let dims = &shape.hidden_dims;
        let (first, last) = (dims[0], dims[dims.len() - 1]);
        let blocks = (0..dims.len())
            .map(|i| {
                let (from, to) = (dims[i], dims.get(i + 1).copied().unwrap_or(last));
                let name = |part: &str| format!("backbone.blocks.{i}.{part}");
                let inner = from * shape.expansion_factor;
                Ok(Block {
                    norm: tensors.norm(&name("layer_norm"), from)?,
                    up: tensors.linear(&name("mlp.0"), inner, from)?,
                    down: tensors.linear(&name("mlp.3"), to, inner)?,
                    skip: if from == to {
                        None
                    } else {
                        Some(tensors.linear(&name("dim_change"), to, from)?)
                    },
                })
            })
            .collect::<Result<_, _>>()?;
        let input_norms = if shape.normalize_input {
            let states = tensors.norm("layer_norm_hidden_states", hidden)?;
            Some((states, tensors.norm("layer_norm_token", hidden)?))
        } else {
            None
        };
        Ok(Self {
            hidden,
            logits: tensors.linear("logits_projection", hidden, shape.logits_size)?,
            combined: tensors.linear("combined_projection", first, 3 * hidden)?,
            input: tensors.linear("backbone.input_projection", first, first)?,
            blocks,
            out_norm: tensors.norm("backbone.output_layer.0", last)?,
            out: tensors.linear("backbone.output_layer.1", shape.outputs, last)?,
            input_norms,
            shape: shape.clone(),
        })
    }

    pub(super) fn shape(&self) -> &R2rShape {
        &self.shape
    }

    pub(super) fn bytes(&self) -> u64 {
        let blocks = self.blocks.iter().map(|b| {
            b.norm.bytes() + b.up.bytes() + b.down.bytes() + b.skip.as_ref().map_or(0, Linear::bytes)
        });
        let norms = self.input_norms.iter().map(|(a, b)| a.bytes() + b.bytes());
        let linears = [&self.logits, &self.combined, &self.input, &self.out].map(Linear::bytes);
        blocks.chain(norms).chain(linears).sum::<u64>() + self.out_norm.bytes()
    }

    pub(super) fn widest(&self) -> usize {
        self.shape.hidden_dims.iter().copied().max().unwrap_or(0)
    }

    pub(super) fn inner(&self) -> usize {
        self.widest() * self.shape.expansion_factor
    }

    /// f32 values of all buffers for one row; must name what [`R2r::new`] allocates.
    pub(super) fn row_values(&self) -> u64 {
        (self.shape.logits_size + 5 * self.hidden + 3 * self.widest() + self.inner()) as u64
    }
}

/// A network with its buffers.
pub(super) struct R2r<O: Ops> {
    w: R2rWeights,
    top: O::Buffer,
    embedded: O::Buffer,
    part: O::Buffer,
    joined: O::Buffer,
    x: O::Buffer,
    normed: O::Buffer,
    delta: O::Buffer,
    inner: O::Buffer,
}

impl<O: Ops> R2r<O> {
    pub(super) fn new(ops: &O, w: R2rWeights, rows: usize) -> Self {
        let buffer = |width: usize| ops.buffer(rows * width);
        Self {
            top: buffer(w.shape.logits_size),
            embedded: buffer(w.hidden),
            part: buffer(w.hidden),
            joined: buffer(3 * w.hidden),
            x: buffer(w.widest()),
            normed: buffer(w.widest()),
            delta: buffer(w.widest()),
            inner: buffer(w.inner()),
            w,
        }
    }

    /// Keeps the largest of the raw logits `[rows, vocab]`, before sampling changes them.
    pub(super) fn observe(&mut self, ops: &mut O, rows: usize, vocab: usize, logits: &O::Buffer) {
        ops.top_values(rows, vocab, logits, self.w.shape.logits_size, &mut self.top);
        if self.w.shape.normalize_input {
            ops.softmax(rows, self.w.shape.logits_size, &mut self.top);
        }
    }

    /// `f` of every row into `out` (`[rows, outputs]`).
    pub(super) fn score(
        &mut self,
        ops: &mut O,
        hidden: &O::Buffer,
        embed: &Tensor,
        candidates: &[u32],
        out: &mut O::Buffer,
    ) {
        let rows = candidates.len();
        self.join(ops, rows, hidden, embed, candidates);
        let w = &self.w;
        ops.linear(rows, &self.joined, &w.combined, Reduce::Whole, &mut self.delta);
        ops.linear(rows, &self.delta, &w.input, Reduce::Whole, &mut self.x);
        for block in &w.blocks {
            ops.layer_norm(rows, &self.x, &block.norm, w.shape.layer_norm_eps, &mut self.normed);
            ops.linear(rows, &self.normed, &block.up, Reduce::Whole, &mut self.inner);
            ops.gelu(rows * block.up.weight.rows(), &mut self.inner);
            ops.linear(rows, &self.inner, &block.down, Reduce::Whole, &mut self.delta);
            if let Some(skip) = &block.skip {
                ops.linear(rows, &self.x, skip, Reduce::Whole, &mut self.normed);
                std::mem::swap(&mut self.x, &mut self.normed);
            }
            ops.add(rows * block.down.weight.rows(), &mut self.x, &self.delta);
        }
        ops.layer_norm(rows, &self.x, &w.out_norm, w.shape.layer_norm_eps, &mut self.normed);
        ops.linear(rows, &self.normed, &w.out, Reduce::Whole, out);
    }

    /// `joined = [h ; e ; q]`.
    fn join(&mut self, ops: &mut O, rows: usize, hidden: &O::Buffer, embed: &Tensor, candidates: &[u32]) {
        let (w, width, eps) = (&self.w, self.w.hidden, self.w.shape.layer_norm_eps);
        ops.embed(embed, candidates, &mut self.embedded);
        if let Some((states, token)) = &w.input_norms {
            ops.layer_norm(rows, hidden, states, eps, &mut self.part);
            ops.place(rows, width, &self.part, 3 * width, 0, &mut self.joined);
            ops.layer_norm(rows, &self.embedded, token, eps, &mut self.part);
            ops.place(rows, width, &self.part, 3 * width, width, &mut self.joined);
        } else {
            ops.place(rows, width, hidden, 3 * width, 0, &mut self.joined);
            ops.place(rows, width, &self.embedded, 3 * width, width, &mut self.joined);
        }
        ops.linear(rows, &self.top, &w.logits, Reduce::Whole, &mut self.part);
        ops.place(rows, width, &self.part, 3 * width, 2 * width, &mut self.joined);
    }
}

#[cfg(test)]
mod tests {
    use tokenrouter_kernels::cpu::Isa;

    use super::super::golden;
    use super::super::open::HeadWeights;
    use super::*;
    use crate::ops::cpu::CpuOps;

    fn weights(name: &str) -> R2rWeights {
        match golden::head(name).weights {
            HeadWeights::R2r(w) => *w,
            other => panic!("{other:?}"),
        }
    }

    fn close(ours: &[f32], torch: &[f32], what: &str) {
        let worst = ours.iter().zip(torch).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-5, "{what}: {worst}");
    }

    #[test]
    fn every_stage_is_that_of_torch() {
        for name in ["r2r-plain", "r2r-widths", "r2r-three"] {
            let (hidden, logits, candidates) =
                (golden::array("hidden"), golden::array("logits"), golden::candidates());
            let rows = candidates.len();
            let (mut ops, embed) = golden::device(Isa::fastest(), 1);
            for blocks in (0..weights(name).blocks.len()).rev() {
                let mut w = weights(name);
                w.blocks.truncate(blocks);
                let width = w.shape.hidden_dims[blocks];
                let mut head: R2r<CpuOps> = R2r::new(&ops, w, rows);
                head.observe(&mut ops, rows, embed.rows(), &logits);
                if name == "r2r-plain" {
                    assert_eq!(head.top, golden::array("top.r2r-plain"), "the largest logits");
                }
                let mut out = vec![0.0; rows * 3];
                head.score(&mut ops, &hidden, &embed, &candidates, &mut out);
                let truth = golden::array(&format!("x{blocks}.{name}"));
                close(&head.x[..rows * width], &truth, &format!("{name}, after {blocks} blocks"));
            }
            let w = weights(name);
            let outputs = w.shape.outputs;
            let mut head = R2r::new(&ops, w, rows);
            head.observe(&mut ops, rows, embed.rows(), &logits);
            let mut out = vec![0.0; rows * outputs];
            head.score(&mut ops, &hidden, &embed, &candidates, &mut out);
            close(&out, &golden::array(&format!("raw.{name}")), name);
        }
    }
}
