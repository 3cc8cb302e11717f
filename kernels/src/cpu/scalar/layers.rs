//! Twins of everything but attention.

use super::dot;
use crate::cpu::math::silu;
use crate::cpu::{Matrix, Reduce, RopeTable, WeightRef, segment_borders};

/// Twin of [`crate::cpu::embed`].
pub fn embed(table: WeightRef<'_>, ids: &[u32], out: &mut [f32]) {
    let h = table.cols();
    for (t, id) in ids.iter().enumerate() {
        for i in 0..h {
            out[t * h + i] = table.get(*id as usize * h + i);
        }
    }
}

/// Twin of [`crate::cpu::rms_norm`].
pub fn rms_norm(x: &[f32], weight: WeightRef<'_>, eps: f32, out: &mut [f32]) {
    let h = weight.cols();
    for (x, out) in x.chunks_exact(h).zip(out.chunks_exact_mut(h)) {
        let sum = dot(h, |k| x[k], |k| x[k]);
        let scale = 1.0 / (sum / h as f32 + eps).sqrt();
        for i in 0..h {
            out[i] = (x[i] * scale) * weight.get(i);
        }
    }
}

/// Twin of [`crate::cpu::layer_norm`].
pub fn layer_norm(x: &[f32], weight: WeightRef<'_>, bias: WeightRef<'_>, eps: f32, out: &mut [f32]) {
    let h = weight.cols();
    for (x, out) in x.chunks_exact(h).zip(out.chunks_exact_mut(h)) {
        let mean = dot(h, |k| x[k], |_| 1.0) / h as f32;
        let square = dot(h, |k| x[k] - mean, |k| x[k] - mean);
        let scale = 1.0 / (square / h as f32 + eps).sqrt();
        for i in 0..h {
            out[i] = ((x[i] - mean) * scale).mul_add(weight.get(i), bias.get(i));
        }
    }
}

/// Twin of [`crate::cpu::add_rms_norm`].
pub fn add_rms_norm(residual: &mut [f32], delta: &[f32], weight: WeightRef<'_>, eps: f32, out: &mut [f32]) {
    for (r, d) in residual.iter_mut().zip(delta) {
        *r += d;
    }
    rms_norm(residual, weight, eps, out);
}

/// Twin of [`crate::cpu::linear`].
pub fn linear<'a>(
    x: &[f32],
    w: impl Into<Matrix<'a>>,
    bias: Option<WeightRef<'_>>,
    reduce: Reduce,
    out: &mut [f32],
) {
    let w = w.into();
    let (n, k) = (w.rows(), w.cols());
    for (x, out) in x.chunks_exact(k).zip(out.chunks_exact_mut(n)) {
        for (row, out) in out.iter_mut().enumerate() {
            let over = |from: usize, to: usize| dot(to - from, |i| w.get(row, from + i), |i| x[from + i]);
            let sum = match reduce {
                Reduce::Whole => over(0, k),
                Reduce::Segments4 => {
                    let b = segment_borders(k);
                    (over(b[0], b[1]) + over(b[1], b[2])) + (over(b[2], b[3]) + over(b[3], b[4]))
                }
                Reduce::Segments2 => over(0, k / 2) + over(k / 2, k),
            };
            *out = match bias {
                Some(bias) => sum + bias.get(row),
                None => sum,
            };
        }
    }
}

/// Norm (if given) and rotation of each head of one token at `position`: the first half of
/// [`crate::cpu::qk_norm_rope_kv`], for q and k alike. The second half is
/// [`super::RowCache::push`].
pub fn qk_norm_rope(x: &mut [f32], norm: Option<WeightRef<'_>>, eps: f32, rope: &RopeTable, position: usize) {
    let d = rope.head_dim();
    let (cos, sin) = rope.at(position);
    for head in x.chunks_exact_mut(d) {
        if let Some(weight) = norm {
            let before = head.to_vec();
            rms_norm(&before, weight, eps, head);
        }
        for i in 0..d / 2 {
            let (a, b) = (head[i], head[i + d / 2]);
            head[i] = a.mul_add(cos[i], -(b * sin[i]));
            head[i + d / 2] = b.mul_add(cos[i], a * sin[i]);
        }
    }
}

/// Twin of [`crate::cpu::silu_mul`].
pub fn silu_mul(gate: &mut [f32], up: &[f32]) {
    for (g, u) in gate.iter_mut().zip(up) {
        *g = silu(*g) * u;
    }
}
