//! RMSNorm, alone and after a residual addition.
//!
//! Order: `s` is the dot product of the row with itself (see the [module text](super)); the scale is
//! `1 / sqrt(s / H + eps)`; each element is `(x * scale) * weight`.

use super::dot::sum_of_squares;
use super::shared::SharedMut;
use super::weight::{Elem, with_elem};
use super::{Ctx, Kernel, Lanes, WeightRef, dispatch, part_count, part_range};

/// `out[t] = x[t] / rms(x[t]) * weight` for rows of `H = weight.cols()` elements.
///
/// # Panics
/// When the lengths contradict each other.
pub fn rms_norm(ctx: Ctx<'_>, x: &[f32], weight: WeightRef<'_>, eps: f32, out: &mut [f32]) {
    let h = checked_width(x.len(), weight);
    assert_eq!(out.len(), x.len(), "out of a norm");
    let rows = x.len() / h;
    let parts = part_count(&ctx, rows, x.len() * 4);
    let out = SharedMut::new(out);
    ctx.workers.run(parts, &|part| {
        for t in part_range(rows, parts, part) {
            // SAFETY: row t belongs to this part alone.
            let out = unsafe { out.part(t * h, h) };
            out.copy_from_slice(&x[t * h..(t + 1) * h]);
            dispatch(ctx.isa, NormRow { row: out, weight, eps });
        }
    });
}

/// `residual += delta`, then `out = rms_norm(residual)`.
///
/// # Panics
/// When the lengths contradict each other.
pub fn add_rms_norm(
    ctx: Ctx<'_>,
    residual: &mut [f32],
    delta: &[f32],
    weight: WeightRef<'_>,
    eps: f32,
    out: &mut [f32],
) {
    let h = checked_width(residual.len(), weight);
    assert!(out.len() == residual.len() && delta.len() == residual.len(), "lengths of a residual norm");
    let rows = residual.len() / h;
    let parts = part_count(&ctx, rows, residual.len() * 4);
    let (residual, out) = (SharedMut::new(residual), SharedMut::new(out));
    ctx.workers.run(parts, &|part| {
        for t in part_range(rows, parts, part) {
            // SAFETY: row t of both belongs to this part alone.
            let (residual, out) = unsafe { (residual.part(t * h, h), out.part(t * h, h)) };
            for (r, d) in residual.iter_mut().zip(&delta[t * h..(t + 1) * h]) {
                *r += d;
            }
            out.copy_from_slice(residual);
            dispatch(ctx.isa, NormRow { row: out, weight, eps });
        }
    });
}

fn checked_width(len: usize, weight: WeightRef<'_>) -> usize {
    let h = weight.rows() * weight.cols();
    assert!(h > 0 && weight.rows() == 1 && len.is_multiple_of(h), "a norm of width {h} over {len} elements");
    h
}

/// Normalises one row in place.
pub(super) struct NormRow<'a> {
    pub(super) row: &'a mut [f32],
    pub(super) weight: WeightRef<'a>,
    pub(super) eps: f32,
}

impl Kernel for NormRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        norm_row::<V>(self.row, self.weight, self.eps);
    }
}

/// Normalises one row in place; `weight` has its length.
#[inline(always)]
pub(super) fn norm_row<V: Lanes>(row: &mut [f32], weight: WeightRef<'_>, eps: f32) {
    let h = row.len();
    let sum = sum_of_squares::<V>(row);
    let scale = 1.0 / (sum / h as f32 + eps).sqrt();
    assert_eq!(weight.rows() * weight.cols(), h, "weight of a norm");
    let scaled = Scaled { row, weight, scale };
    with_elem!(weight.dtype(), V, scaled.apply())
}

struct Scaled<'a, 'w> {
    row: &'a mut [f32],
    weight: WeightRef<'w>,
    scale: f32,
}

impl Scaled<'_, '_> {
    #[inline(always)]
    fn apply<V: Lanes, E: Elem>(self) {
        let whole = self.row.len() / 8 * 8;
        let (x, w) = (self.row.as_mut_ptr(), self.weight.data().as_ptr());
        let scale = V::splat(self.scale);
        let mut i = 0;
        while i < whole {
            // SAFETY: i + 8 <= whole <= H elements of both.
            unsafe { V::load(x.add(i)).mul(scale).mul(E::load(w.add(i * E::SIZE))).store(x.add(i)) };
            i += 8;
        }
        while i < self.row.len() {
            // SAFETY: i is below the H elements of the weight.
            self.row[i] = (self.row[i] * self.scale) * unsafe { E::load_one(w.add(i * E::SIZE)) };
            i += 1;
        }
    }
}
