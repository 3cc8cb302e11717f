//! Twin of attention, over a contiguous cache of one row and one layer.

use super::{dot, tree};
use crate::DType;
use crate::cpu::SEGMENT_TOKENS;
use crate::cpu::math::exp;

/// Keys and values of one row in one layer, in order of position, rounded to the storage type.
#[derive(Clone, Debug)]
pub struct RowCache {
    kv_heads: usize,
    head_dim: usize,
    dtype: DType,
    /// `[position, kv_head, head_dim]`.
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl RowCache {
    /// An empty cache.
    pub fn new(kv_heads: usize, head_dim: usize, dtype: DType) -> RowCache {
        RowCache { kv_heads, head_dim, dtype, keys: Vec::new(), values: Vec::new() }
    }

    /// Stores key and value `[kv_heads, head_dim]` of the next position.
    pub fn push(&mut self, key: &[f32], value: &[f32]) {
        assert!(key.len() == self.kv_heads * self.head_dim && value.len() == key.len());
        self.keys.extend(key.iter().map(|x| self.dtype.round(*x)));
        self.values.extend(value.iter().map(|x| self.dtype.round(*x)));
    }

    /// Positions stored.
    pub fn len(&self) -> usize {
        self.keys.len() / (self.kv_heads * self.head_dim)
    }

    /// Whether no position is stored.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Forgets all positions from `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.keys.truncate(len * self.kv_heads * self.head_dim);
        self.values.truncate(len * self.kv_heads * self.head_dim);
    }

    fn at(&self, position: usize, head: usize) -> std::ops::Range<usize> {
        let start = (position * self.kv_heads + head) * self.head_dim;
        start..start + self.head_dim
    }
}

/// Twin of [`crate::cpu::attention`] for one token at `position`: `q` and `out` are
/// `[q_heads, head_dim]`.
pub fn attention(q: &[f32], q_heads: usize, position: usize, scale: f32, cache: &RowCache, out: &mut [f32]) {
    let d = cache.head_dim;
    for head in 0..q_heads {
        let kv_head = head / (q_heads / cache.kv_heads);
        let (q, out) = (&q[head * d..(head + 1) * d], &mut out[head * d..(head + 1) * d]);
        let (mut max, mut sum) = (0.0f32, 0.0f32);
        for from in (0..position + 1).step_by(SEGMENT_TOKENS) {
            let to = (from + SEGMENT_TOKENS).min(position + 1);
            let (m, l, o) = segment(q, kv_head, from..to, scale, cache);
            if from == 0 {
                (max, sum) = (m, l);
                out.copy_from_slice(&o);
                continue;
            }
            let new_max = if max > m { max } else { m };
            let (a, b) = (exp(max - new_max), exp(m - new_max));
            max = new_max;
            sum = sum.mul_add(a, l * b);
            for i in 0..d {
                out[i] = out[i].mul_add(a, o[i] * b);
            }
        }
        let inverse = 1.0 / sum;
        for x in out {
            *x *= inverse;
        }
    }
}

/// Maximum, sum of weights and weighted values of one segment.
fn segment(
    q: &[f32],
    kv_head: usize,
    range: std::ops::Range<usize>,
    scale: f32,
    cache: &RowCache,
) -> (f32, f32, Vec<f32>) {
    let key = |j: usize| &cache.keys[cache.at(j, kv_head)];
    let scores: Vec<f32> = range.clone().map(|j| dot(q.len(), |i| key(j)[i], |i| q[i]) * scale).collect();
    let max = scores.iter().fold(f32::NEG_INFINITY, |m, s| if *s > m { *s } else { m });
    let mut lanes = [0.0f32; 8];
    let mut out = vec![0.0f32; q.len()];
    for (i, (j, score)) in range.zip(&scores).enumerate() {
        let weight = exp(score - max);
        lanes[i % 8] += weight;
        for (o, v) in out.iter_mut().zip(&cache.values[cache.at(j, kv_head)]) {
            *o = weight.mul_add(*v, *o);
        }
    }
    (max, tree(&lanes), out)
}
