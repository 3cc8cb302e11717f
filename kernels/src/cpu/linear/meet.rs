//! How a register of weights, eight values of each of two rows, meets activations: one of them in both of its halves, or two
//! side by side, once as the weights lie and once crosswise.

use crate::cpu::pair::{Pair, twice_part};

/// The activations of a tile: rows of f32, `stride` values from one to the next, or steps of two activations, see [`Side`].
#[derive(Clone, Copy)]
pub(super) struct Activations {
    pub(super) at: *const f32,
    pub(super) stride: usize,
}

/// A way for `C` columns of a tile.
pub(super) trait Meet<P: Pair> {
    /// What a pair of weight rows adds up with a column.
    type Sums: Copy;
    /// Of nothing.
    fn zero() -> Self::Sums;
    /// The activations from `k` on, a multiple of 8.
    fn from<const C: usize>(x: Activations, k: usize) -> Activations;
    /// Eight values of column `c`, from `k` on.
    ///
    /// # Safety
    /// They must be readable.
    unsafe fn load<const C: usize>(x: Activations, c: usize, k: usize) -> P;
    /// The last `n <= 8` values of column `c`, from `k` on, then zeros.
    ///
    /// # Safety
    /// They must be readable.
    unsafe fn load_part<const C: usize>(x: Activations, c: usize, k: usize, n: usize) -> P;
    /// Adds their products.
    fn add(w: P, x: P, sums: Self::Sums) -> Self::Sums;
}

/// A column is an activation, in both halves of a register.
pub(super) struct Twice;

impl<P: Pair> Meet<P> for Twice {
    type Sums = P;

    #[inline(always)]
    fn zero() -> P {
        P::zero()
    }

    #[inline(always)]
    fn from<const C: usize>(x: Activations, k: usize) -> Activations {
        Activations { at: x.at.wrapping_add(k), ..x }
    }

    #[inline(always)]
    unsafe fn load<const C: usize>(x: Activations, c: usize, k: usize) -> P {
        // SAFETY: the caller grants eight values.
        unsafe { P::twice(x.at.add(c * x.stride + k)) }
    }

    #[inline(always)]
    unsafe fn load_part<const C: usize>(x: Activations, c: usize, k: usize, n: usize) -> P {
        // SAFETY: the caller grants n values.
        unsafe { twice_part(x.at.add(c * x.stride + k), n) }
    }

    #[inline(always)]
    fn add(w: P, x: P, sums: P) -> P {
        w.mul_add(x, sums)
    }
}

/// A column is two activations, one in each half of a register: `[K / 8][C][16]`, with zeros behind the last value and for
/// an activation that is not there. Loading them is a plain load, where [`Twice`] costs some processors a port that
/// multiplies.
pub(super) struct Side;

impl<P: Pair> Meet<P> for Side {
    /// The weights as they lie: the first row by the first activation, the second by the second. Crosswise: the second
    /// row by the first activation, the first by the second.
    type Sums = [P; 2];

    #[inline(always)]
    fn zero() -> [P; 2] {
        [P::zero(); 2]
    }

    #[inline(always)]
    fn from<const C: usize>(x: Activations, k: usize) -> Activations {
        Activations { at: x.at.wrapping_add(2 * C * k), ..x }
    }

    #[inline(always)]
    unsafe fn load<const C: usize>(x: Activations, c: usize, k: usize) -> P {
        // SAFETY: the caller grants the step of both activations.
        unsafe { P::read(x.at.add(2 * C * k + 16 * c)) }
    }

    #[inline(always)]
    unsafe fn load_part<const C: usize>(x: Activations, c: usize, k: usize, _: usize) -> P {
        // SAFETY: the last step has zeros behind its values.
        unsafe { <Self as Meet<P>>::load::<C>(x, c, k) }
    }

    #[inline(always)]
    fn add(w: P, x: P, [straight, cross]: [P; 2]) -> [P; 2] {
        [w.mul_add(x, straight), w.crossed().mul_add(x, cross)]
    }
}
