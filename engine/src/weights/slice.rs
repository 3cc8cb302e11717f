//! The weights of one part of a model.
//!
//! Rows of a matrix lie together, so their part is a place in the same map. Columns do not: a part of `o_proj` or
//! `down_proj` is copied once, at load; what was mapped of the whole is not read again.

use std::ops::Range;

use super::{LayerWeights, Linear, ModelWeights};
use crate::config::ModelConfig;
use crate::shard::Shard;

impl ModelWeights {
    /// The weights that `shard` computes with; `config` is of the whole model. Biases of `o_proj` and `down_proj` stay
    /// whole: they are added to the joined sums.
    pub(crate) fn shard(&self, config: &ModelConfig, shard: Shard) -> Self {
        if !shard.is_cut() {
            return self.clone();
        }
        let layer = |layer: &LayerWeights| LayerWeights {
            q_proj: layer.q_proj.part_rows(shard.q_features(config)),
            k_proj: layer.k_proj.part_rows(shard.kv_features(config)),
            v_proj: layer.v_proj.part_rows(shard.kv_features(config)),
            o_proj: layer.o_proj.part_cols(shard.q_features(config)),
            gate_proj: layer.gate_proj.part_rows(shard.intermediate(config)),
            up_proj: layer.up_proj.part_rows(shard.intermediate(config)),
            down_proj: layer.down_proj.part_cols(shard.intermediate(config)),
            ..layer.clone()
        };
        Self {
            embed: self.embed.clone(),
            layers: self.layers.iter().map(layer).collect(),
            final_norm: self.final_norm.clone(),
            lm_head: self.lm_head.part_rows(shard.vocab_rows(config)),
            tied: self.tied,
        }
    }
}

impl Linear {
    /// The outputs `range` of this layer.
    pub(super) fn part_rows(&self, range: Range<usize>) -> Self {
        let bias = self.bias.as_ref().map(|bias| bias.col_range(range.clone()));
        Self::new(self.weight.row_range(range), bias)
    }

    /// The products over the inputs `range`, to be joined with the others before the bias is added.
    fn part_cols(&self, range: Range<usize>) -> Self {
        Self::new(self.weight.col_range(range), self.bias.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::map::Tensor;

    #[test]
    fn rows_are_places_and_columns_are_copies() {
        let values: Vec<f32> = (0..24).map(|i| i as f32).collect();
        let linear = Linear::new(Tensor::computed(&values, 6), Some(Tensor::computed(&values[..4], 4)));
        let read = |t: &Tensor| -> Vec<f32> {
            let view = t.view();
            (0..t.rows() * t.cols()).map(|i| view.dtype().read(view.data(), i)).collect()
        };
        let rows = linear.part_rows(1..3);
        assert_eq!((rows.weight.rows(), rows.weight.cols()), (2, 6));
        assert_eq!(read(&rows.weight), values[6..18]);
        assert_eq!(read(rows.bias.as_ref().unwrap()), [1.0, 2.0]);
        assert_eq!(rows.weight.view().data().as_ptr(), linear.weight.view().data()[24..].as_ptr());
        let cols = linear.part_cols(4..6);
        assert_eq!((cols.weight.rows(), cols.weight.cols()), (4, 2));
        assert_eq!(read(&cols.weight), [4.0, 5.0, 10.0, 11.0, 16.0, 17.0, 22.0, 23.0]);
        assert_eq!(read(cols.bias.as_ref().unwrap()), values[..4]);
        // A place within a place.
        assert_eq!(read(&rows.weight.row_range(1..2)), values[12..18]);
        assert_eq!(read(&rows.weight.col_range(1..2)), [7.0, 13.0]);
    }
}
