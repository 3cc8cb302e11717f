//! Linear layers: `out[t][n] = dot(x[t], w[n]) + bias[n]`.
//!
//! Order of one element: the dot product of the [module text](super) over K ([`Reduce::Whole`]), or
//! over each of four segments of K, joined as `(s0 + s1) + (s2 + s3)` ([`Reduce::Segments4`]); the
//! bias is added last. A rank that holds a half of K has the first or the second bracket
//! ([`Reduce::Segments2`]), one that holds a quarter a single segment, and [`fold`] joins them. Tiles of 4 weight rows by up to 3 activations live in registers; while a
//! block of 4 weight rows is read, the next block is prefetched.

use super::dot::dot_tile;
use super::shared::SharedMut;
use super::weight::{Elem, with_elem};
use super::{Ctx, Kernel, Lanes, WeightRef, dispatch, part_count, part_range};

/// Weight rows in a tile.
const ROWS: usize = 4;
/// Activations in a tile: 4 x 3 accumulators, 3 activations and a weight fill 16 registers.
const COLS: usize = 3;
/// Activations that are kept in the second-level cache while weights pass by.
const PANEL_BYTES: usize = 256 * 1024;

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

/// Borders of the four segments of K: `i * K / 4`, rounded down. When 4 divides K, a rank that
/// holds a half or a quarter of K holds whole segments.
pub fn segment_borders(k: usize) -> [usize; 5] {
    [0, k / 4, k / 2, k / 4 * 3 + k % 4 * 3 / 4, k]
}

/// `out[T, N] = x[T, K] * w[N, K]^T (+ bias[N])`. `bias` is a matrix of one row.
///
/// # Panics
/// When the lengths contradict each other.
pub fn linear(
    ctx: Ctx<'_>,
    x: &[f32],
    w: WeightRef<'_>,
    bias: Option<WeightRef<'_>>,
    reduce: Reduce,
    out: &mut [f32],
) {
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
    let blocks = n.div_ceil(ROWS);
    let parts = part_count(&ctx, blocks, t.saturating_mul(n).saturating_mul(k));
    let out = SharedMut::new(out);
    ctx.workers.run(parts, &|part| {
        let range = part_range(blocks, parts, part);
        let first = range.start * ROWS;
        let end = (range.end * ROWS).min(n);
        dispatch(ctx.isa, Part { x, w, bias, reduce, out: &out, t, first, end });
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

/// Outputs `first..end` for all activations.
struct Part<'a> {
    x: &'a [f32],
    w: WeightRef<'a>,
    bias: Option<WeightRef<'a>>,
    reduce: Reduce,
    out: &'a SharedMut<'a, f32>,
    t: usize,
    first: usize,
    end: usize,
}

impl Kernel for Part<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        with_elem!(self.w.dtype(), V, self.panels())
    }
}

impl Part<'_> {
    #[inline(always)]
    fn panels<V: Lanes, E: Elem>(&self) {
        let panel = (PANEL_BYTES / (4 * self.w.cols())).max(4 * COLS) / COLS * COLS;
        let mut from = 0;
        while from < self.t {
            // A short rest joins this panel: it would read all weights once more for little.
            let to = if self.t - from < panel + panel / 2 { self.t } else { from + panel };
            let mut row = self.first;
            while row + ROWS <= self.end {
                self.block::<V, E, ROWS>(row, from, to);
                row += ROWS;
            }
            while row < self.end {
                self.block::<V, E, 1>(row, from, to);
                row += 1;
            }
            from = to;
        }
    }

    /// `R` weight rows against activations `from..to`.
    #[inline(always)]
    fn block<V: Lanes, E: Elem, const R: usize>(&self, row: usize, from: usize, to: usize) {
        let mut ahead = ROWS * self.w.cols() * E::SIZE;
        let mut t = from;
        if V::WIDE_TILES && R > 1 {
            while t + COLS <= to {
                self.tile::<V, E, R, COLS>(row, t, ahead);
                ahead = 0;
                t += COLS;
            }
            if t + 2 <= to {
                self.tile::<V, E, R, 2>(row, t, ahead);
                t += 2;
            }
        }
        while t < to {
            self.tile::<V, E, R, 1>(row, t, ahead);
            ahead = 0;
            t += 1;
        }
    }

    #[inline(always)]
    fn tile<V: Lanes, E: Elem, const R: usize, const C: usize>(&self, row: usize, t: usize, ahead: usize) {
        let k = self.w.cols();
        let (borders, segments) = match self.reduce {
            Reduce::Whole => ([0, k, k, k, k], 1),
            Reduce::Segments4 => (segment_borders(k), 4),
            Reduce::Segments2 => ([0, k / 2, k, k, k], 2),
        };
        let mut s = [[[0.0; C]; R]; 4];
        for i in 0..segments {
            s[i] = self.products::<V, E, R, C>(row, t, borders[i], borders[i + 1], ahead);
        }
        for r in 0..R {
            for c in 0..C {
                let mut value = match self.reduce {
                    Reduce::Whole => s[0][r][c],
                    Reduce::Segments4 => (s[0][r][c] + s[1][r][c]) + (s[2][r][c] + s[3][r][c]),
                    Reduce::Segments2 => s[0][r][c] + s[1][r][c],
                };
                if let Some(bias) = self.bias {
                    value += bias.get(row + r);
                }
                // SAFETY: output column `row + r` belongs to this part alone.
                unsafe { self.out.set((t + c) * self.w.rows() + row + r, value) };
            }
        }
    }

    /// Dot products over columns `from..to`.
    #[inline(always)]
    fn products<V: Lanes, E: Elem, const R: usize, const C: usize>(
        &self,
        row: usize,
        t: usize,
        from: usize,
        to: usize,
        ahead: usize,
    ) -> [[f32; C]; R] {
        let k = self.w.cols();
        // SAFETY: row + R <= N, t + C <= T and from <= to <= K; the lengths were checked by
        // `WeightRef::new` and `linear`.
        unsafe {
            let w = self.w.data().as_ptr().add((row * k + from) * E::SIZE);
            let x = self.x.as_ptr().add(t * k + from);
            dot_tile::<V, E, R, C>(w, k * E::SIZE, x, k, to - from, ahead)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn borders_are_rounded_down_quarters() {
        for k in (0..200).chain([1023, 4096, 25600]) {
            let expected = [0, k / 4, 2 * k / 4, 3 * k / 4, k];
            assert_eq!(segment_borders(k), expected, "K {k}");
        }
    }
}
