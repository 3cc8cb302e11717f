//! Two groups of eight lanes side by side: what one weight register holds in a product. Each group follows the order of
//! the [module text](super) by itself, whether they share a wide register or not.

use super::Lanes;
use super::math::exp_lanes_below;

/// Eight lanes of a first row and eight of a second.
pub(crate) trait Pair: Copy {
    fn zero() -> Self;
    /// All lanes equal to `x`.
    fn splat(x: f32) -> Self;
    /// # Safety
    /// 32 bytes must be readable at `a` and at `b`.
    unsafe fn load_f32(a: *const u8, b: *const u8) -> Self;
    /// # Safety
    /// 16 bytes must be readable at `a` and at `b`.
    unsafe fn load_f16(a: *const u8, b: *const u8) -> Self;
    /// # Safety
    /// 16 bytes must be readable at `a` and at `b`.
    unsafe fn load_bf16(a: *const u8, b: *const u8) -> Self;
    /// Two steps: elements 0 to 7 of both rows, and elements 8 to 15.
    ///
    /// # Safety
    /// 32 bytes must be readable at `a` and at `b`.
    #[inline(always)]
    unsafe fn load_bf16_twice(a: *const u8, b: *const u8) -> [Self; 2] {
        // SAFETY: as the caller grants.
        unsafe { [Self::load_bf16(a, b), Self::load_bf16(a.add(16), b.add(16))] }
    }
    /// What loads of 8-bit weights need, made once for a row of them.
    type ByteLoads: Copy;
    /// Makes it.
    fn byte_loads() -> Self::ByteLoads;
    /// The bf16 number at `a` in the first group, the one at `b` in the second.
    ///
    /// # Safety
    /// Four bytes must be readable at `a` and at `b`.
    unsafe fn load_scale(loads: Self::ByteLoads, a: *const u8, b: *const u8) -> Self;
    /// `2^15 + byte` for bytes 0 to 7 of both rows, and for bytes 8 to 15.
    ///
    /// # Safety
    /// 16 bytes must be readable at `a` and at `b`.
    unsafe fn load_bytes_twice(loads: Self::ByteLoads, a: *const u8, b: *const u8) -> [Self; 2];
    /// The eight values at `p` in both groups.
    ///
    /// # Safety
    /// Eight f32 must be readable at `p`.
    unsafe fn twice(p: *const f32) -> Self;
    /// The sixteen values at `p`, the first group's before the second's.
    ///
    /// # Safety
    /// Sixteen f32 must be readable at `p`.
    unsafe fn read(p: *const f32) -> Self;
    /// The reverse of [`Pair::read`].
    ///
    /// # Safety
    /// Sixteen f32 must be writable at `p`.
    unsafe fn write(self, p: *mut f32);
    /// The groups in each other's place.
    fn crossed(self) -> Self;
    fn add(self, b: Self) -> Self;
    fn sub(self, b: Self) -> Self;
    fn mul(self, b: Self) -> Self;
    /// `self * b + c`, rounded once.
    fn mul_add(self, b: Self, c: Self) -> Self;
    /// `self > b ? self : b` per lane.
    fn max(self, b: Self) -> Self;
    /// [`exp`](super::math::exp) of lanes that are not above 0.
    fn exp_below(self) -> Self;
    /// [`Lanes::largest`] of all lanes: NaN is never the largest.
    fn largest(self) -> f32;
    /// [`Lanes::sum`] of each group of four pairs, in order.
    fn sums_of_four(pairs: [Self; 4]) -> [f32; 8];
    /// What two pairs of rows add up to with two activations, `[activation][row]`: as the rows lie (the first by the first
    /// activation, the second by the second), and crosswise.
    #[inline(always)]
    fn crossed_sums(straight: [Self; 2], cross: [Self; 2]) -> [[f32; 4]; 2] {
        let of = Self::sums_of_four([straight[0], cross[0], straight[1], cross[1]]);
        [[of[0], of[2], of[4], of[6]], [of[3], of[1], of[7], of[5]]]
    }
}

/// What the accumulators of `R` pairs of rows, 1, 2 or 4, by `C` vectors add up to, `[vector][pair][row]`.
#[inline(always)]
pub(crate) fn tile_sums<P: Pair, const R: usize, const C: usize>(acc: &[[P; C]; R]) -> [[[f32; 2]; R]; C] {
    let mut out = [[[0.0; 2]; R]; C];
    let per = 4 / R;
    let mut c = 0;
    while c < C {
        // The last vector stands for those that are not there.
        let last = C - 1;
        let sums = P::sums_of_four([
            acc[0][c],
            acc[1 % R][(c + 1 / R).min(last)],
            acc[2 % R][(c + 2 / R).min(last)],
            acc[3 % R][(c + 3 / R).min(last)],
        ]);
        let n = per.min(C - c) * R * 2;
        out.as_flattened_mut().as_flattened_mut()[2 * R * c..2 * R * c + n].copy_from_slice(&sums[..n]);
        c += per;
    }
    out
}

/// The first `n <= 8` values at `p`, then zeros, in both groups.
///
/// # Safety
/// `n` f32 must be readable at `p`.
#[inline(always)]
pub(crate) unsafe fn twice_part<P: Pair>(p: *const f32, n: usize) -> P {
    let mut padded = [0.0f32; 8];
    debug_assert!(n <= 8);
    // SAFETY: n <= 8 values are readable at `p`, and `padded` holds eight.
    unsafe {
        std::ptr::copy_nonoverlapping(p, padded.as_mut_ptr(), n);
        P::twice(padded.as_ptr())
    }
}

/// A pair in two registers.
#[derive(Clone, Copy)]
pub(crate) struct Two<V>(V, V);

impl<V: Lanes> Pair for Two<V> {
    #[inline(always)]
    fn zero() -> Self {
        Self::splat(0.0)
    }

    #[inline(always)]
    fn splat(x: f32) -> Self {
        Two(V::splat(x), V::splat(x))
    }

    #[inline(always)]
    unsafe fn load_f32(a: *const u8, b: *const u8) -> Self {
        // SAFETY: as the caller grants.
        unsafe { Two(V::load_f32(a), V::load_f32(b)) }
    }

    #[inline(always)]
    unsafe fn load_f16(a: *const u8, b: *const u8) -> Self {
        // SAFETY: as the caller grants.
        unsafe { Two(V::load_f16(a), V::load_f16(b)) }
    }

    #[inline(always)]
    unsafe fn load_bf16(a: *const u8, b: *const u8) -> Self {
        // SAFETY: as the caller grants.
        unsafe { Two(V::load_bf16(a), V::load_bf16(b)) }
    }

    type ByteLoads = ();

    #[inline(always)]
    fn byte_loads() {}

    #[inline(always)]
    unsafe fn load_scale((): (), a: *const u8, b: *const u8) -> Self {
        // SAFETY: as the caller grants.
        unsafe { Two(V::load_scale(a), V::load_scale(b)) }
    }

    #[inline(always)]
    unsafe fn load_bytes_twice((): (), a: *const u8, b: *const u8) -> [Self; 2] {
        // SAFETY: as the caller grants.
        let [[a0, a1], [b0, b1]] = unsafe { [V::load_bytes_twice(a), V::load_bytes_twice(b)] };
        [Two(a0, b0), Two(a1, b1)]
    }

    #[inline(always)]
    unsafe fn twice(p: *const f32) -> Self {
        // SAFETY: as the caller grants.
        let lanes = unsafe { V::load(p) };
        Two(lanes, lanes)
    }

    #[inline(always)]
    unsafe fn read(p: *const f32) -> Self {
        // SAFETY: the caller grants sixteen values.
        unsafe { Two(V::load(p), V::load(p.add(8))) }
    }

    #[inline(always)]
    unsafe fn write(self, p: *mut f32) {
        // SAFETY: the caller grants sixteen values.
        unsafe {
            self.0.store(p);
            self.1.store(p.add(8));
        }
    }

    #[inline(always)]
    fn crossed(self) -> Self {
        Two(self.1, self.0)
    }

    #[inline(always)]
    fn add(self, b: Self) -> Self {
        Two(self.0.add(b.0), self.1.add(b.1))
    }

    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        Two(self.0.sub(b.0), self.1.sub(b.1))
    }

    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        Two(self.0.mul(b.0), self.1.mul(b.1))
    }

    #[inline(always)]
    fn max(self, b: Self) -> Self {
        Two(self.0.max(b.0), self.1.max(b.1))
    }

    #[inline(always)]
    fn exp_below(self) -> Self {
        Two(exp_lanes_below(self.0), exp_lanes_below(self.1))
    }

    #[inline(always)]
    fn largest(self) -> f32 {
        self.0.max(self.1).largest()
    }

    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        Two(self.0.mul_add(b.0, c.0), self.1.mul_add(b.1, c.1))
    }

    #[inline(always)]
    fn sums_of_four([a, b, c, d]: [Self; 4]) -> [f32; 8] {
        V::sums_of_eight([a.0, a.1, b.0, b.1, c.0, c.1, d.0, d.1])
    }
}
