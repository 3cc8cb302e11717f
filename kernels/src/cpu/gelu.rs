//! The exact GELU, `x * Phi(x)` with the normal distribution's `Phi`, for the learned router heads.
//!
//! `Phi(-|x|) = exp(-z^2) R(t) / 2` with `z = |x| / sqrt(2)` and `t = 1 / (1 + 0.4 z)`, where `R` is our own polynomial
//! fit of `exp(z^2) erfc(z)` in `t` over `0 <= z <= 11` (relative error 2.6e-9, least squares with weights raised where the
//! error is largest); beyond, the exponential is 0. Taking the small tail keeps the relative precision for
//! negative `x`, where `1 + erf` would cancel.

use super::math::{exp, exp_lanes};
use super::shared::SharedMut;
use super::{Ctx, Kernel, Lanes, dispatch, part_count, part_range};

/// Elements per unit of work.
const CHUNK: usize = 1024;
/// `R`, highest power first.
const R: [f32; 11] = [
    -0.037_139_896,
    0.241_359_59,
    -0.607_848_94,
    0.705_302_36,
    -0.429_778_7,
    0.360_945_02,
    0.093_231_7,
    0.224_807_92,
    0.223_254_84,
    0.225_873_22,
    -7.066_372_3e-6,
];
/// The slope of `1 / t`.
const SLOPE: f32 = 0.4;

/// `x = x * Phi(x)`, element by element; NaN stays NaN.
pub fn gelu(ctx: Ctx<'_>, x: &mut [f32]) {
    let len = x.len();
    let chunks = len.div_ceil(CHUNK);
    let parts = part_count(&ctx, chunks, len * 32);
    let x = SharedMut::new(x);
    ctx.workers.run(parts, &|part| {
        let range = part_range(chunks, parts, part);
        let (from, to) = (range.start * CHUNK, (range.end * CHUNK).min(len));
        // SAFETY: chunks of this part belong to it alone.
        let x = unsafe { x.part(from, to - from) };
        dispatch(ctx.isa, Slice { x });
    });
}

/// [`gelu`] of one value: the same operations in the same order.
///
/// Order: `z = |x| * (1 / sqrt 2)`, `t = 1 / fma(z, 0.4, 1)`, Horner by fused multiply-adds, `q = (exp(-(z * z)) * 0.5) * R`,
/// `x * q` below zero, else `x - x * q`.
#[inline(always)]
pub fn gelu_one(x: f32) -> f32 {
    let z = if x < 0.0 { 0.0 - x } else { x } * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / z.mul_add(SLOPE, 1.0);
    let mut r = R[0];
    for c in &R[1..] {
        r = r.mul_add(t, *c);
    }
    let tail = x * (exp(0.0 - z * z) * 0.5 * r);
    if x < 0.0 { tail } else { x - tail }
}

struct Slice<'a> {
    x: &'a mut [f32],
}

impl Kernel for Slice<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let mut chunks = self.x.chunks_exact_mut(8);
        for chunk in chunks.by_ref() {
            // SAFETY: the chunk holds eight values.
            unsafe { gelu_lanes(V::load(chunk.as_ptr())).store(chunk.as_mut_ptr()) };
        }
        for x in chunks.into_remainder() {
            *x = gelu_one(*x);
        }
    }
}

/// [`gelu_one`] of eight lanes.
#[inline(always)]
fn gelu_lanes<V: Lanes>(x: V) -> V {
    let zero = V::splat(0.0);
    let one = V::splat(1.0);
    let z = x.select_less(zero, zero.sub(x), x).mul(V::splat(std::f32::consts::FRAC_1_SQRT_2));
    let t = one.div(z.mul_add(V::splat(SLOPE), one));
    let mut r = V::splat(R[0]);
    for c in &R[1..] {
        r = r.mul_add(t, V::splat(*c));
    }
    let tail = x.mul(exp_lanes(zero.sub(z.mul(z))).mul(V::splat(0.5)).mul(r));
    x.select_less(zero, tail, x.sub(tail))
}
