//! The dot product that every kernel uses, as a register tile: several stored rows against several
//! f32 rows at once. The order within one product is that of the [module text](super), so the
//! tile shape never shows in a result.

use super::Lanes;
use super::weight::Elem;

/// Vector steps between two prefetches of a stored row: 64 bytes of a two-byte type.
const UNROLL: usize = 4;

/// `out[r][c] = dot(stored row r, f32 row c)` over `len` elements. `ahead` is the distance in
/// bytes from each stored row to the bytes to prefetch meanwhile; 0 prefetches nothing.
///
/// # Safety
/// `R` rows of `len` elements of type `E`, `w_stride` bytes apart, must be readable at `w`, and
/// `C` rows of `len` f32, `x_stride` elements apart, at `x`.
#[inline(always)]
pub(crate) unsafe fn dot_tile<V: Lanes, E: Elem, const R: usize, const C: usize>(
    w: *const u8,
    w_stride: usize,
    x: *const f32,
    x_stride: usize,
    len: usize,
    ahead: usize,
) -> [[f32; C]; R] {
    let mut acc = [[V::splat(0.0); C]; R];
    let blocked = len / (8 * UNROLL) * (8 * UNROLL);
    let whole = len / 8 * 8;
    let mut k = 0;
    while k < blocked {
        if ahead != 0 {
            for r in 0..R {
                let line = w.wrapping_add(r * w_stride + k * E::SIZE + ahead);
                V::prefetch(line);
                if E::SIZE == 4 {
                    V::prefetch(line.wrapping_add(64));
                }
            }
        }
        for u in 0..UNROLL {
            // SAFETY: k + 8 * u + 8 <= blocked <= len in each row.
            unsafe { step::<V, E, R, C>(&mut acc, w, w_stride, x, x_stride, k + 8 * u) };
        }
        k += 8 * UNROLL;
    }
    while k < whole {
        // SAFETY: k + 8 <= whole <= len in each row.
        unsafe { step::<V, E, R, C>(&mut acc, w, w_stride, x, x_stride, k) };
        k += 8;
    }
    if k < len {
        let n = len - k;
        for c in 0..C {
            // SAFETY: n elements are left in each row.
            let xv: V = unsafe { super::weight::F32::load_part(x.add(c * x_stride + k).cast(), n) };
            for r in 0..R {
                // SAFETY: n elements are left in each row.
                let wv: V = unsafe { E::load_part(w.add(r * w_stride + k * E::SIZE), n) };
                acc[r][c] = wv.mul_add(xv, acc[r][c]);
            }
        }
    }
    let mut out = [[0.0; C]; R];
    for r in 0..R {
        for c in 0..C {
            out[r][c] = acc[r][c].sum();
        }
    }
    out
}

/// One vector step of the tile.
///
/// # Safety
/// As [`dot_tile`], with eight elements readable from `k` on in every row.
#[inline(always)]
unsafe fn step<V: Lanes, E: Elem, const R: usize, const C: usize>(
    acc: &mut [[V; C]; R],
    w: *const u8,
    w_stride: usize,
    x: *const f32,
    x_stride: usize,
    k: usize,
) {
    let mut xs = [V::splat(0.0); C];
    for c in 0..C {
        // SAFETY: the caller grants eight elements from k on.
        xs[c] = unsafe { V::load(x.add(c * x_stride + k)) };
    }
    for r in 0..R {
        // SAFETY: the caller grants eight elements from k on.
        let wv: V = unsafe { E::load(w.add(r * w_stride + k * E::SIZE)) };
        for c in 0..C {
            acc[r][c] = wv.mul_add(xs[c], acc[r][c]);
        }
    }
}
