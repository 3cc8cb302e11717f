//! LayerNorm, for the learned router heads.
//!
//! Order: the sum of the row in 8 lanes (as the dot product with ones, see the [module text](super)), `mean = sum / H`;
//! `d = x - mean`; `v` is the dot product of `d` with itself; the scale is `1 / sqrt(v / H + eps)`; each element is
//! `fma(d * scale, weight, bias)`.

use super::dot::sum_of_squares;
use super::shared::SharedMut;
use super::weight::{Elem, with_elem};
use super::{Ctx, Kernel, Lanes, WeightRef, dispatch, part_count, part_range};

/// `out[t] = (x[t] - mean) / sqrt(variance + eps) * weight + bias` for rows of `H = weight.cols()` elements; the
/// variance is the mean square deviation. `weight` and `bias` are stored in one type.
///
/// # Panics
/// When the lengths or the types of `weight` and `bias` contradict each other.
pub fn layer_norm(
    ctx: Ctx<'_>,
    x: &[f32],
    weight: WeightRef<'_>,
    bias: WeightRef<'_>,
    eps: f32,
    out: &mut [f32],
) {
    let h = weight.cols();
    assert!(
        h > 0 && weight.rows() == 1 && x.len().is_multiple_of(h),
        "a norm of width {h}, {} values",
        x.len()
    );
    assert!(bias.rows() == 1 && bias.cols() == h && bias.dtype() == weight.dtype(), "bias of a norm");
    assert_eq!(out.len(), x.len(), "out of a norm");
    let rows = x.len() / h;
    let parts = part_count(&ctx, rows, x.len() * 6);
    let out = SharedMut::new(out);
    ctx.workers.run(parts, &|part| {
        for t in part_range(rows, parts, part) {
            // SAFETY: row t belongs to this part alone.
            let out = unsafe { out.part(t * h, h) };
            out.copy_from_slice(&x[t * h..(t + 1) * h]);
            dispatch(ctx.isa, Row { row: out, weight, bias, eps });
        }
    });
}

/// Normalises one row in place.
struct Row<'a> {
    row: &'a mut [f32],
    weight: WeightRef<'a>,
    bias: WeightRef<'a>,
    eps: f32,
}

impl Kernel for Row<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        with_elem!(self.weight.dtype(), V, self.normalise())
    }
}

impl Row<'_> {
    #[inline(always)]
    fn normalise<V: Lanes, E: Elem>(self) {
        let h = self.row.len();
        let mean = lane_sum::<V>(self.row) / h as f32;
        for x in self.row.iter_mut() {
            *x -= mean;
        }
        let square = sum_of_squares::<V>(self.row);
        let p = self.row.as_mut_ptr();
        let scale = 1.0 / (square / h as f32 + self.eps).sqrt();
        let (w, b) = (self.weight.data().as_ptr(), self.bias.data().as_ptr());
        let scales = V::splat(scale);
        let whole = h / 8 * 8;
        let mut i = 0;
        while i < whole {
            // SAFETY: i + 8 <= whole <= H elements of the row, the weight and the bias.
            unsafe {
                let weight: V = E::load(w.add(i * E::SIZE));
                let bias: V = E::load(b.add(i * E::SIZE));
                V::load(p.add(i)).mul(scales).mul_add(weight, bias).store(p.add(i));
            }
            i += 8;
        }
        while i < h {
            // SAFETY: i is below the H elements of the weight and the bias.
            let (weight, bias) =
                unsafe { (E::load_one(w.add(i * E::SIZE)), E::load_one(b.add(i * E::SIZE))) };
            self.row[i] = (self.row[i] * scale).mul_add(weight, bias);
            i += 1;
        }
    }
}

/// The sum of a row in 8 lanes, the last partial group padded with zeros.
#[inline(always)]
fn lane_sum<V: Lanes>(row: &[f32]) -> f32 {
    let mut sum = V::splat(0.0);
    let chunks = row.chunks_exact(8);
    let mut last = [0.0; 8];
    last[..chunks.remainder().len()].copy_from_slice(chunks.remainder());
    for chunk in chunks {
        // SAFETY: the chunk holds eight values.
        sum = sum.add(unsafe { V::load(chunk.as_ptr()) });
    }
    // SAFETY: `last` holds eight values.
    sum.add(unsafe { V::load(last.as_ptr()) }).sum()
}
