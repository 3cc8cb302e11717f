//! The AVX2 form of [`Lanes`], also compiled for AVX-512, where it has twice the registers. Values are made only
//! inside the `run` of their kind, whose caller has checked the processor.

use super::lanes::POW2_15;
use super::pair::Two;
use super::{Kernel, Lanes, Registers};
use std::arch::x86_64::*;

/// Runs `kernel` in code compiled for AVX2, FMA and F16C.
///
/// # Safety
/// The processor must have all three.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx>()
}

/// Eight lanes in one 256-bit register, sixteen registers.
#[derive(Clone, Copy)]
pub(crate) struct Avx(__m256);

/// Joins the halves of a register with `$join`, then the rest, in the tree of [`Lanes::sum`].
macro_rules! join_tree {
    ($v:expr, $join:ident, $join_last:ident) => {{
        // SAFETY: register-only instructions; the features were checked before `run`.
        unsafe {
            let four = $join(_mm256_castps256_ps128($v), _mm256_extractf128_ps::<1>($v));
            let two = $join(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32($join_last(two, _mm_movehdup_ps(two)))
        }
    }};
}
pub(super) use join_tree;

/// For bytes 0 to 7 and for bytes 8 to 15 of a half register: byte `i` becomes byte 1 of lane `i`; 0x80 gives a zero.
pub(super) const BYTE_ORDERS: [[u8; 32]; 2] = [byte_order(0), byte_order(8)];

const fn byte_order(from: u8) -> [u8; 32] {
    let mut order = [0x80; 32];
    let mut i = 0;
    while i < 8 {
        order[4 * i + 1] = from + i as u8;
        i += 1;
    }
    order
}

/// Lane `i` and `i + 4` of two vectors, one in each half.
///
/// # Safety
/// The processor must have AVX2.
#[inline(always)]
pub(super) unsafe fn halves(a: __m256, b: __m256) -> __m256 {
    // SAFETY: register-only instructions, which the caller grants.
    unsafe { _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b)) }
}

/// Then lane `i` and `i + 2` of four vectors.
///
/// # Safety
/// The processor must have AVX2.
#[inline(always)]
pub(super) unsafe fn quarters(a: __m256, b: __m256) -> __m256 {
    // SAFETY: register-only instructions, which the caller grants.
    unsafe { _mm256_add_ps(_mm256_shuffle_ps::<0x44>(a, b), _mm256_shuffle_ps::<0xee>(a, b)) }
}

/// [`Lanes`] for a 256-bit register, compiled with the features of whoever runs it.
macro_rules! ymm_lanes {
    ($name:ident, $pair:ty, $registers:expr) => {
        impl Lanes for $name {
            const REGISTERS: Registers = $registers;
            type Pair = $pair;

            #[inline(always)]
            fn splat(x: f32) -> Self {
                // SAFETY: register-only instruction; the features were checked before `run`.
                $name(unsafe { _mm256_set1_ps(x) })
            }

            #[inline(always)]
            unsafe fn load(p: *const f32) -> Self {
                // SAFETY: the caller grants eight readable values; the load is unaligned.
                $name(unsafe { _mm256_loadu_ps(p) })
            }

            #[inline(always)]
            unsafe fn store(self, p: *mut f32) {
                // SAFETY: the caller grants eight writable values; the store is unaligned.
                unsafe { _mm256_storeu_ps(p, self.0) }
            }

            #[inline(always)]
            unsafe fn load_f32(p: *const u8) -> Self {
                // SAFETY: the caller grants 32 readable bytes; the load is unaligned.
                $name(unsafe { _mm256_loadu_ps(p.cast()) })
            }

            #[inline(always)]
            unsafe fn load_f16(p: *const u8) -> Self {
                // SAFETY: the caller grants 16 readable bytes; the load is unaligned.
                $name(unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) })
            }

            #[inline(always)]
            unsafe fn load_bf16(p: *const u8) -> Self {
                // SAFETY: the caller grants 16 readable bytes; the load is unaligned.
                $name(unsafe {
                    let words = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words))
                })
            }

            #[inline(always)]
            unsafe fn load_scale(p: *const u8) -> Self {
                // SAFETY: the caller grants four readable bytes; what follows the number is shifted out.
                $name(unsafe {
                    let words = _mm256_set1_epi32(p.cast::<i32>().read_unaligned());
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words))
                })
            }

            #[inline(always)]
            unsafe fn load_bytes_twice(p: *const u8) -> [Self; 2] {
                // SAFETY: the caller grants 16 readable bytes; the loads of the orders read 32 bytes of each.
                unsafe {
                    let both = _mm256_broadcastsi128_si256(_mm_loadu_si128(p.cast()));
                    let ones = _mm256_set1_epi32(POW2_15 as i32);
                    let first = _mm256_loadu_si256(BYTE_ORDERS[0].as_ptr().cast());
                    let second = _mm256_loadu_si256(BYTE_ORDERS[1].as_ptr().cast());
                    let first = _mm256_or_si256(_mm256_shuffle_epi8(both, first), ones);
                    let second = _mm256_or_si256(_mm256_shuffle_epi8(both, second), ones);
                    [$name(_mm256_castsi256_ps(first)), $name(_mm256_castsi256_ps(second))]
                }
            }

            #[inline(always)]
            fn add(self, b: Self) -> Self {
                // SAFETY: register-only instruction; the features were checked before `run`.
                $name(unsafe { _mm256_add_ps(self.0, b.0) })
            }

            #[inline(always)]
            fn sub(self, b: Self) -> Self {
                // SAFETY: register-only instruction; the features were checked before `run`.
                $name(unsafe { _mm256_sub_ps(self.0, b.0) })
            }

            #[inline(always)]
            fn mul(self, b: Self) -> Self {
                // SAFETY: register-only instruction; the features were checked before `run`.
                $name(unsafe { _mm256_mul_ps(self.0, b.0) })
            }

            #[inline(always)]
            fn div(self, b: Self) -> Self {
                // SAFETY: register-only instruction; the features were checked before `run`.
                $name(unsafe { _mm256_div_ps(self.0, b.0) })
            }

            #[inline(always)]
            fn mul_add(self, b: Self, c: Self) -> Self {
                // SAFETY: register-only instruction; the features were checked before `run`.
                $name(unsafe { _mm256_fmadd_ps(self.0, b.0, c.0) })
            }

            #[inline(always)]
            fn max(self, b: Self) -> Self {
                // SAFETY: register-only instruction; the features were checked before `run`.
                $name(unsafe { _mm256_max_ps(self.0, b.0) })
            }

            #[inline(always)]
            fn select_less(self, limit: Self, yes: Self, no: Self) -> Self {
                // SAFETY: register-only instructions; the features were checked before `run`.
                $name(unsafe { _mm256_blendv_ps(no.0, yes.0, _mm256_cmp_ps::<_CMP_LT_OQ>(self.0, limit.0)) })
            }

            #[inline(always)]
            fn zero_where_zero(self, value: Self) -> Self {
                // SAFETY: register-only instructions; the features were checked before `run`.
                $name(unsafe {
                    _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_EQ_OQ>(self.0, _mm256_setzero_ps()), value.0)
                })
            }

            #[inline(always)]
            fn any_greater(self, b: Self) -> bool {
                // SAFETY: register-only instructions; the features were checked before `run`.
                unsafe { _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(self.0, b.0)) != 0 }
            }

            #[inline(always)]
            fn half_pow2(self) -> Self {
                // SAFETY: register-only instructions; the features were checked before `run`.
                $name(unsafe {
                    let n = _mm256_slli_epi32::<23>(_mm256_castps_si256(self.0));
                    _mm256_castsi256_ps(_mm256_add_epi32(n, _mm256_set1_epi32(126 << 23)))
                })
            }

            #[inline(always)]
            unsafe fn store_u32(self, p: *mut u32) {
                // SAFETY: the caller grants eight writable values; the default rounding mode is nearest.
                unsafe { _mm256_storeu_si256(p.cast(), _mm256_cvtps_epi32(self.0)) }
            }

            #[inline(always)]
            unsafe fn store_low_bytes(self, p: *mut u8) {
                // SAFETY: the caller grants eight writable bytes.
                unsafe {
                    let order = _mm256_set1_epi32(0x0c08_0400);
                    let fours = _mm256_shuffle_epi8(_mm256_castps_si256(self.0), order);
                    let upper = _mm256_extracti128_si256::<1>(fours);
                    _mm_storel_epi64(p.cast(), _mm_unpacklo_epi32(_mm256_castsi256_si128(fours), upper));
                }
            }

            #[inline(always)]
            fn sum(self) -> f32 {
                join_tree!(self.0, _mm_add_ps, _mm_add_ss)
            }

            #[inline(always)]
            fn sums_of_eight(v: [Self; 8]) -> [f32; 8] {
                let mut out = [0.0; 8];
                // SAFETY: register-only instructions, the features were checked before `run`; `out` holds eight values.
                unsafe {
                    let low = quarters(halves(v[0].0, v[4].0), halves(v[1].0, v[5].0));
                    let high = quarters(halves(v[2].0, v[6].0), halves(v[3].0, v[7].0));
                    let sums = _mm256_add_ps(
                        _mm256_shuffle_ps::<0x88>(low, high),
                        _mm256_shuffle_ps::<0xdd>(low, high),
                    );
                    _mm256_storeu_ps(out.as_mut_ptr(), sums);
                }
                out
            }

            #[inline(always)]
            fn largest(self) -> f32 {
                join_tree!(self.0, _mm_max_ps, _mm_max_ss)
            }

            #[inline(always)]
            fn prefetch(p: *const u8) {
                // SAFETY: a prefetch is a hint and never faults, whatever the address.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
            }
        }
    };
}
pub(super) use ymm_lanes;

ymm_lanes!(Avx, Two<Avx>, Registers::Sixteen);
