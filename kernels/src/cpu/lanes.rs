//! Eight f32 lanes, and the dispatch from an [`Isa`] to code compiled for it.
//!
//! Kernels are written once over [`Lanes`], so that all paths share one order of operations.

use super::Isa;
use super::pair::{Pair, Two};
use half::{bf16, f16};

/// Vector registers of an instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Registers {
    /// Whatever the compiler finds.
    Unknown,
    /// 16 of 256 bits.
    Sixteen,
    /// 32 of 512 bits.
    ThirtyTwo,
}

/// Eight f32 values. Each method is exact lane by lane: one IEEE operation, rounded once.
pub(crate) trait Lanes: Copy {
    /// The vector registers, which decide how large register tiles may be.
    const REGISTERS: Registers;
    /// Whether wide register tiles pay off. Without, kernels use narrow tiles only, which saves
    /// much compile time and, by the order of the kernels, changes no bit.
    const WIDE_TILES: bool = !matches!(Self::REGISTERS, Registers::Unknown);
    /// Two groups of lanes.
    type Pair: Pair;
    /// All lanes equal to `x`.
    fn splat(x: f32) -> Self;
    /// # Safety
    /// Eight f32 must be readable at `p`; no alignment is needed.
    unsafe fn load(p: *const f32) -> Self;
    /// # Safety
    /// Eight f32 must be writable at `p`; no alignment is needed.
    unsafe fn store(self, p: *mut f32);
    /// # Safety
    /// 32 bytes must be readable at `p`.
    unsafe fn load_f32(p: *const u8) -> Self;
    /// # Safety
    /// 16 bytes must be readable at `p`.
    unsafe fn load_f16(p: *const u8) -> Self;
    /// # Safety
    /// 16 bytes must be readable at `p`.
    unsafe fn load_bf16(p: *const u8) -> Self;
    /// The bf16 number at `p` in all lanes. It is not NaN.
    ///
    /// # Safety
    /// Four bytes must be readable at `p`.
    unsafe fn load_scale(p: *const u8) -> Self;
    /// `2^15 + byte` for bytes 0 to 7, and for bytes 8 to 15. A byte becomes bits 8 to 15 of a number.
    ///
    /// # Safety
    /// 16 bytes must be readable at `p`.
    unsafe fn load_bytes_twice(p: *const u8) -> [Self; 2];
    fn add(self, b: Self) -> Self;
    fn sub(self, b: Self) -> Self;
    fn mul(self, b: Self) -> Self;
    fn div(self, b: Self) -> Self;
    /// `self * b + c`, rounded once.
    fn mul_add(self, b: Self, c: Self) -> Self;
    /// `self > b ? self : b` per lane.
    fn max(self, b: Self) -> Self;
    /// `self < limit ? yes : no` per lane; NaN takes `no`.
    fn select_less(self, limit: Self, yes: Self, no: Self) -> Self;
    /// `self == 0 ? 0 : value` per lane.
    fn zero_where_zero(self, value: Self) -> Self;
    /// Whether some lane of `self` is greater than that of `b`.
    fn any_greater(self, b: Self) -> bool;
    /// `2^(n-1)` for lanes that hold `n + 1.5 * 2^23`, `-125 <= n <= 128`.
    fn half_pow2(self) -> Self;
    /// Stores the lanes rounded to integers, ties to even; lanes must lie in `0..2^31`.
    ///
    /// # Safety
    /// Eight u32 must be writable at `p`.
    unsafe fn store_u32(self, p: *mut u32);
    /// Stores the lowest byte of the bits of each lane.
    ///
    /// # Safety
    /// Eight bytes must be writable at `p`.
    unsafe fn store_low_bytes(self, p: *mut u8);
    /// `((a0+a4)+(a2+a6)) + ((a1+a5)+(a3+a7))`.
    fn sum(self) -> f32;
    /// [`Lanes::sum`] of each.
    fn sums_of_eight(eight: [Self; 8]) -> [f32; 8] {
        eight.map(Self::sum)
    }
    /// The largest lane, joined in the same tree as [`Lanes::sum`].
    fn largest(self) -> f32;
    /// Asks for the cache line at `p`, which may lie anywhere.
    fn prefetch(p: *const u8);
}

/// The bits of 2^15, whose bits 8 to 15 count ones.
pub(super) const POW2_15: u32 = 0x4700_0000;

/// A piece of work that can be compiled for each instruction set. Implementations and all they
/// call must be `#[inline(always)]`, so that they take on the features of their caller.
pub(crate) trait Kernel {
    type Output;
    fn run<V: Lanes>(self) -> Self::Output;
}

/// Runs `kernel` in the code path of `isa`, or in the portable one when `isa` is not supported.
pub(crate) fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    match isa {
        // SAFETY: the processor has the features.
        Isa::Avx512 if isa.supported() => return unsafe { super::avx512::run(kernel) },
        // SAFETY: as above.
        Isa::Avx2 if isa.supported() => return unsafe { super::avx2::run(kernel) },
        _ => {}
    }
    let _ = isa;
    kernel.run::<Portable>()
}

/// Whether `chunk` is a full group of eight and none of them exceeds `limit`: a quick way past the
/// many logits that matter to no list of best ones.
#[inline(always)]
pub(crate) fn none_above<V: Lanes>(chunk: &[f32], limit: f32) -> bool {
    if chunk.len() != 8 {
        return false;
    }
    // SAFETY: the chunk holds eight values.
    let x = unsafe { V::load(chunk.as_ptr()) };
    !x.any_greater(V::splat(limit))
}

/// Eight lanes in plain Rust; vectorises where the target has a fused multiply-add.
#[derive(Clone, Copy)]
pub(crate) struct Portable([f32; 8]);

impl Portable {
    #[inline(always)]
    fn zip(self, b: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        let mut out = [0.0; 8];
        for i in 0..8 {
            out[i] = f(self.0[i], b.0[i]);
        }
        Portable(out)
    }
}

impl Lanes for Portable {
    const REGISTERS: Registers = Registers::Unknown;
    type Pair = Two<Portable>;

    #[inline(always)]
    fn splat(x: f32) -> Self {
        Portable([x; 8])
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller grants eight readable values.
        Portable(unsafe { p.cast::<[f32; 8]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller grants eight writable values.
        unsafe { p.cast::<[f32; 8]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn load_f32(p: *const u8) -> Self {
        // SAFETY: the caller grants 32 readable bytes.
        let bytes = unsafe { p.cast::<[[u8; 4]; 8]>().read_unaligned() };
        Portable(bytes.map(f32::from_le_bytes))
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Self {
        // SAFETY: the caller grants 16 readable bytes.
        let bytes = unsafe { p.cast::<[[u8; 2]; 8]>().read_unaligned() };
        Portable(bytes.map(|b| f16::from_le_bytes(b).to_f32()))
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> Self {
        // SAFETY: the caller grants 16 readable bytes.
        let bytes = unsafe { p.cast::<[[u8; 2]; 8]>().read_unaligned() };
        Portable(bytes.map(|b| bf16::from_le_bytes(b).to_f32()))
    }

    #[inline(always)]
    unsafe fn load_scale(p: *const u8) -> Self {
        // SAFETY: the caller grants readable bytes.
        let bits = u32::from(u16::from_le_bytes(unsafe { p.cast::<[u8; 2]>().read() }));
        Self::splat(f32::from_bits(bits << 16))
    }

    #[inline(always)]
    unsafe fn load_bytes_twice(p: *const u8) -> [Self; 2] {
        // SAFETY: the caller grants 16 readable bytes.
        let bytes = unsafe { p.cast::<[[u8; 8]; 2]>().read() };
        bytes.map(|eight| Portable(eight.map(|byte| f32::from_bits(POW2_15 | u32::from(byte) << 8))))
    }

    #[inline(always)]
    fn add(self, b: Self) -> Self {
        self.zip(b, |x, y| x + y)
    }

    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        self.zip(b, |x, y| x - y)
    }

    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        self.zip(b, |x, y| x * y)
    }

    #[inline(always)]
    fn div(self, b: Self) -> Self {
        self.zip(b, |x, y| x / y)
    }

    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        let mut out = c.0;
        for i in 0..8 {
            out[i] = self.0[i].mul_add(b.0[i], c.0[i]);
        }
        Portable(out)
    }

    #[inline(always)]
    fn max(self, b: Self) -> Self {
        self.zip(b, |x, y| if x > y { x } else { y })
    }

    #[inline(always)]
    fn select_less(self, limit: Self, yes: Self, no: Self) -> Self {
        let mut out = no.0;
        for i in 0..8 {
            if self.0[i] < limit.0[i] {
                out[i] = yes.0[i];
            }
        }
        Portable(out)
    }

    #[inline(always)]
    fn zero_where_zero(self, value: Self) -> Self {
        self.zip(value, |x, y| if x == 0.0 { 0.0 } else { y })
    }

    #[inline(always)]
    fn any_greater(self, b: Self) -> bool {
        let mut any = false;
        for i in 0..8 {
            any |= self.0[i] > b.0[i];
        }
        any
    }

    #[inline(always)]
    fn half_pow2(self) -> Self {
        Portable(self.0.map(super::math::half_pow2))
    }

    #[inline(always)]
    unsafe fn store_u32(self, p: *mut u32) {
        let words = self.0.map(|x| x.round_ties_even() as u32);
        // SAFETY: the caller grants eight writable values.
        unsafe { p.cast::<[u32; 8]>().write_unaligned(words) }
    }

    #[inline(always)]
    unsafe fn store_low_bytes(self, p: *mut u8) {
        let bytes = self.0.map(|x| x.to_bits() as u8);
        // SAFETY: the caller grants eight writable bytes.
        unsafe { p.cast::<[u8; 8]>().write(bytes) }
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        let a = self.0;
        ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]))
    }

    #[inline(always)]
    fn largest(self) -> f32 {
        let a = self.0;
        let max = |x: f32, y: f32| if x > y { x } else { y };
        max(max(max(a[0], a[4]), max(a[2], a[6])), max(max(a[1], a[5]), max(a[3], a[7])))
    }

    #[inline(always)]
    fn prefetch(_: *const u8) {}
}
