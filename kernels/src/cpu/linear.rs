//! Linear layers: `out[t][n] = dot(x[t], w[n]) + bias[n]`.
//!
//! Order of one element: the dot product of the [module text](super) over K ([`Reduce::Whole`]), or
//! over each of four segments of K, joined as `(s0 + s1) + (s2 + s3)` ([`Reduce::Segments4`]); the
//! bias is added last. A rank that holds a half of K has the first or the second bracket
//! ([`Reduce::Segments2`]), one that holds a quarter a single segment, and [`fold`] joins them.
//!
//! A few activations meet the weights as they lie in memory ([`direct`]), read as eight long streams; for more, a block of
//! weight rows is first turned into f32 that stays in the first-level cache while all activations pass by ([`packed`]). Some
//! processors are faster at both with two activations to a register ([`crossed`]).
//! While a block is read, what comes next is prefetched.

mod crossed;
mod direct;
mod int8;
mod meet;
mod packed;
mod part;
mod stored;

use self::part::{Part, ROWS};
use super::shared::SharedMut;
use super::workers::Line;
use super::{Ctx, Matrix, WeightRef, part_count, part_range};

/// How K is reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduce {
    /// One dot product over all of K.
    Whole,
    /// Four fixed segments, see [`segment_borders`]: products whose K is split over tensor-parallel
    /// ranks (o_proj, down_proj), so that 1, 2 and 4 ranks agree to the bit.
    Segments4,
    /// Two equal segments joined as `s0 + s1`: the part of [`Reduce::Segments4`] that falls to one of
    /// two ranks, whose K is a half of the whole (and even).
    Segments2,
}

impl Reduce {
    /// How one of `ranks` (1, 2 or 4) that share the K of a product reduces its part.
    ///
    /// # Panics
    /// For any other number of ranks: no placement has one.
    pub fn of_rank(ranks: usize) -> Self {
        match ranks {
            1 => Self::Segments4,
            2 => Self::Segments2,
            4 => Self::Whole,
            _ => panic!("{ranks} ranks share a product, 1, 2 or 4 can"),
        }
    }
}

impl Reduce {
    /// Borders of the segments of K and their number.
    pub(super) fn borders(self, k: usize) -> ([usize; 5], usize) {
        match self {
            Self::Whole => ([0, k, k, k, k], 1),
            Self::Segments4 => (segment_borders(k), 4),
            Self::Segments2 => ([0, k / 2, k, k, k], 2),
        }
    }
}

/// Borders of the four segments of K: `i * K / 4`, rounded down. When 4 divides K, a rank that
/// holds a half or a quarter of K holds whole segments.
pub fn segment_borders(k: usize) -> [usize; 5] {
    [0, k / 4, k / 2, k / 4 * 3 + k % 4 * 3 / 4, k]
}

/// `out[T, N] = x[T, K] * w[N, K]^T (+ bias[N])`. `bias` is a matrix of one row.
///
/// # Panics
/// When the lengths contradict each other.
pub fn linear<'a>(
    ctx: Ctx<'_>,
    x: &[f32],
    w: impl Into<Matrix<'a>>,
    bias: Option<WeightRef<'_>>,
    reduce: Reduce,
    out: &mut [f32],
) {
    let w = w.into();
    let (n, k) = (w.rows(), w.cols());
    assert!(k > 0 && x.len().is_multiple_of(k), "x of {} elements, K {k}", x.len());
    let t = x.len() / k;
    assert_eq!(out.len(), t * n, "out of a linear layer, T {t}, N {n}");
    if let Some(bias) = bias {
        assert_eq!(bias.rows() * bias.cols(), n, "bias of a linear layer");
    }
    if t == 0 || n == 0 {
        return;
    }
    let pairs = if ctx.isa.crosses() { crossed::panel(t, &w, reduce) } else { 0 };
    let mut lines = if pairs > 0 { ctx.workers.lines() } else { None };
    let most = if lines.is_some() { 2 * pairs } else { t };
    for from in (0..t).step_by(most) {
        let to = t.min(from + most);
        let (x, out) = (&x[from * k..to * k], &mut out[from * n..to * n]);
        let packed = lines.as_mut().map(|lines| {
            crossed::pack(&ctx, x, to - from, k, lines);
            &lines[..]
        });
        all_parts(&ctx, x, packed, w, bias, reduce, out);
    }
}

/// A product on all threads, its activations also side by side if the weights are to be crossed.
fn all_parts(
    ctx: &Ctx<'_>,
    x: &[f32],
    packed: Option<&[Line]>,
    w: Matrix<'_>,
    bias: Option<WeightRef<'_>>,
    reduce: Reduce,
    out: &mut [f32],
) {
    let (n, k) = (w.rows(), w.cols());
    let (t, blocks) = (x.len() / k, n.div_ceil(ROWS));
    let parts = part_count(ctx, blocks, t.saturating_mul(n).saturating_mul(k));
    let out = SharedMut::new(out);
    ctx.workers.run(parts, &|part| {
        let range = part_range(blocks, parts, part);
        let first = range.start * ROWS;
        let end = (range.end * ROWS).min(n);
        Part { isa: ctx.isa, packed, x, w, bias, reduce, out: &out, t, first, end }.run();
    });
}

/// Joins the partial products of all ranks, `[T, N]` each and perhaps more behind, as the segments of
/// one rank are joined: `out = p0 + p1`, or `(p0 + p1) + (p2 + p3)`; the bias of N elements is added last.
///
/// # Panics
/// When the lengths contradict each other, or there are not 2 or 4 partial products.
pub fn fold(ctx: Ctx<'_>, partial: &[&[f32]], bias: Option<WeightRef<'_>>, n: usize, out: &mut [f32]) {
    let len = out.len();
    assert!(matches!(partial.len(), 2 | 4), "{} partial products", partial.len());
    assert!(partial.iter().all(|p| p.len() >= len), "partial products that are too short");
    assert!(n > 0 && len.is_multiple_of(n), "{len} elements, N {n}");
    if let Some(bias) = bias {
        assert_eq!(bias.rows() * bias.cols(), n, "bias of a linear layer");
    }
    let parts = part_count(&ctx, len / n, len * partial.len());
    let out = SharedMut::new(out);
    ctx.workers.run(parts, &|part| {
        let rows = part_range(len / n, parts, part);
        let range = rows.start * n..rows.end * n;
        // SAFETY: the rows of this part belong to it alone.
        let out = unsafe { out.part(range.start, range.len()) };
        match *partial {
            [a, b] => {
                for ((out, a), b) in out.iter_mut().zip(&a[range.clone()]).zip(&b[range]) {
                    *out = a + b;
                }
            }
            [a, b, c, d] => {
                let upper = c[range.clone()].iter().zip(&d[range.clone()]);
                let lower = a[range.clone()].iter().zip(&b[range]);
                for ((out, (a, b)), (c, d)) in out.iter_mut().zip(lower).zip(upper) {
                    *out = (a + b) + (c + d);
                }
            }
            // Asserted above.
            _ => {}
        }
        if let Some(bias) = bias {
            for row in out.chunks_exact_mut(n) {
                for (i, x) in row.iter_mut().enumerate() {
                    *x += bias.get(i);
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;
    use crate::cpu::{Int8Ref, Isa, WorkerGroup, quantise};

    #[test]
    fn borders_are_rounded_down_quarters() {
        for k in (0..200).chain([1023, 4096, 25600]) {
            let expected = [0, k / 4, 2 * k / 4, 3 * k / 4, k];
            assert_eq!(segment_borders(k), expected, "K {k}");
        }
    }

    /// Both ways on every machine, whatever its processor prefers: all numbers of activations up to a few tiles, with rows that
    /// are no whole block and columns that are no whole step.
    #[test]
    fn crossed_weights_change_no_bit() {
        let workers = WorkerGroup::new("crossed", 1).expect("one thread");
        let ctx = Ctx { isa: Isa::fastest(), workers: &workers };
        for (n, k, reduce) in
            [(45, 330, Reduce::Whole), (40, 352, Reduce::Segments4), (300, 192, Reduce::Segments2)]
        {
            let values: Vec<f32> = (0..n * k).map(value).collect();
            let as_f32: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
            let as_f16: Vec<u8> = values.iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes()).collect();
            let as_bf16: Vec<u8> =
                values.iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect();
            let stored = |dtype, bytes| WeightRef::new(dtype, n, k, bytes).expect("lengths");
            let mut as_int8 = vec![0; Int8Ref::bytes(n, k).expect("a size")];
            quantise(ctx, stored(DType::F32, &as_f32), &mut as_int8).expect("numbers");
            let all = [
                Matrix::from(stored(DType::F32, &as_f32)),
                Matrix::from(stored(DType::F16, &as_f16)),
                Matrix::from(stored(DType::Bf16, &as_bf16)),
                Matrix::Int8(Int8Ref::new(n, k, &as_int8).expect("lengths")),
            ];
            for (form, w) in all.into_iter().enumerate() {
                for t in (1..=24).chain([67]) {
                    let [with, without] = [true, false].map(|crosses| product(ctx, w, reduce, t, crosses));
                    assert!(
                        with == without && !with.iter().any(|x| x.is_nan()),
                        "form {form}, T {t}, {reduce:?}"
                    );
                }
            }
        }
    }

    /// More activations than are laid side by side at once, where they are at all: each as alone.
    #[test]
    fn panels_of_activations_change_no_bit() {
        let workers = WorkerGroup::new("panels", 2).expect("a thread");
        let ctx = Ctx { isa: Isa::fastest(), workers: &workers };
        let (n, k, t) = (24, 1040, 151);
        let as_f32: Vec<u8> = (0..n * k).map(value).flat_map(f32::to_le_bytes).collect();
        let w = WeightRef::new(DType::F32, n, k, &as_f32).expect("lengths");
        let x: Vec<f32> = (0..t * k).map(|i| value(i + 7)).collect();
        assert!(crossed::panel(t, &w.into(), Reduce::Segments2) < t.div_ceil(2), "a single panel");
        let mut all = vec![f32::NAN; t * n];
        linear(ctx, &x, w, None, Reduce::Segments2, &mut all);
        for (i, (x, found)) in x.chunks(k).zip(all.chunks(n)).enumerate() {
            let mut alone = vec![f32::NAN; n];
            linear(ctx, x, w, None, Reduce::Segments2, &mut alone);
            assert!(found == alone, "activation {i}");
        }
    }

    fn value(i: usize) -> f32 {
        (i.wrapping_mul(0x9e37_79b9) >> 7 & 0xff) as f32 / 64.0 - 2.0
    }

    fn product(ctx: Ctx<'_>, w: Matrix<'_>, reduce: Reduce, t: usize, crosses: bool) -> Vec<f32> {
        let x: Vec<f32> = (0..t * w.cols()).map(|i| value(i + 7)).collect();
        let mut out = vec![f32::NAN; t * w.rows()];
        let mut lines = vec![Line([f32::NAN; 16]); t.div_ceil(2) * w.cols().div_ceil(8)];
        crossed::pack(&ctx, &x, t, w.cols(), &mut lines);
        all_parts(&ctx, &x, crosses.then_some(&lines[..]), w, None, reduce, &mut out);
        out
    }
}
