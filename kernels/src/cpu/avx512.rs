//! The AVX-512 forms: [`Lanes`] on 256-bit registers, of which there are 32 now, and pairs of them in one 512-bit
//! register. Only products use the wide ones; every lane computes what it computes on AVX2, so the bits are the same.

use super::avx2::{BYTE_ORDERS, halves, join_tree, quarters, ymm_lanes};
use super::lanes::POW2_15;
use super::math::{LN_2_REST, LOWEST, ROUND, SERIES};
use super::pair::Pair;
use super::{Kernel, Lanes, Registers};
use std::arch::x86_64::*;
use std::hint::black_box;

/// Runs `kernel` in code compiled for AVX-512.
///
/// # Safety
/// The processor must have AVX2, FMA, F16C and the F, VL, BW and DQ parts of AVX-512.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512vl,avx512bw,avx512dq")]
pub(crate) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx512>()
}

/// Eight lanes in one 256-bit register, 32 registers.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(__m256);

ymm_lanes!(Avx512, Zmm, Registers::ThirtyTwo);

/// Sixteen lanes in one 512-bit register: eight of the first of a pair, eight of the second.
#[derive(Clone, Copy)]
pub(crate) struct Zmm(__m512);

/// The masks and orders of loads of 8-bit weights. They are hidden from the compiler, which knows other ways to the same
/// values: two instructions for one, on the ports that limit these products.
#[derive(Clone, Copy)]
pub(crate) struct ByteLoads {
    /// The lanes of the second row.
    upper: __mmask16,
    /// Byte 1 of each lane.
    places: __mmask64,
    /// 2^15 in each lane.
    ones: __m512i,
    /// As [`BYTE_ORDERS`], twice each.
    orders: [__m512i; 2],
}

impl Zmm {
    /// # Safety
    /// 16 bytes must be readable at `a` and at `b`.
    #[inline(always)]
    unsafe fn words(a: *const u8, b: *const u8) -> __m256i {
        // SAFETY: the caller grants 16 bytes at each; the loads are unaligned.
        unsafe {
            let low = _mm256_castsi128_si256(_mm_loadu_si128(a.cast()));
            _mm256_inserti128_si256::<1>(low, _mm_loadu_si128(b.cast()))
        }
    }

    /// The words of a step, each in the upper half of its lane.
    #[inline(always)]
    fn step(words: __m512i, order: &[u16; 32]) -> Self {
        // SAFETY: the load reads 64 bytes of `order`; the features were checked before `run`.
        Zmm(unsafe { odd_words(_mm512_loadu_si512(order.as_ptr().cast()), words) })
    }

    /// Lane `i` and `i + 4` of each group: of `a` in the lower half, of `b` in the upper one.
    #[inline(always)]
    fn halves(a: Self, b: Self) -> __m512 {
        // SAFETY: register-only instructions; the features were checked before `run`.
        unsafe {
            _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(a.0, b.0), _mm512_shuffle_f32x4::<0xdd>(a.0, b.0))
        }
    }
}

impl Pair for Zmm {
    #[inline(always)]
    fn zero() -> Self {
        // SAFETY: register-only instruction; the features were checked before `run`.
        Zmm(unsafe { _mm512_setzero_ps() })
    }

    #[inline(always)]
    fn splat(x: f32) -> Self {
        // SAFETY: register-only instruction; the features were checked before `run`.
        Zmm(unsafe { _mm512_set1_ps(x) })
    }

    #[inline(always)]
    unsafe fn load_f32(a: *const u8, b: *const u8) -> Self {
        // SAFETY: the caller grants 32 bytes at each; the loads are unaligned.
        Zmm(unsafe {
            let low = _mm512_castps256_ps512(_mm256_loadu_ps(a.cast()));
            _mm512_insertf32x8::<1>(low, _mm256_loadu_ps(b.cast()))
        })
    }

    #[inline(always)]
    unsafe fn load_f16(a: *const u8, b: *const u8) -> Self {
        // SAFETY: the caller grants 16 bytes at each.
        Zmm(unsafe { _mm512_cvtph_ps(Self::words(a, b)) })
    }

    #[inline(always)]
    unsafe fn load_bf16(a: *const u8, b: *const u8) -> Self {
        // SAFETY: the caller grants 16 bytes at each.
        Zmm(unsafe {
            let words = _mm512_cvtepu16_epi32(Self::words(a, b));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words))
        })
    }

    #[inline(always)]
    unsafe fn load_bf16_twice(a: *const u8, b: *const u8) -> [Self; 2] {
        // Word 2 i + 1 of a step is element i of its group; the even words are zeros.
        const FIRST: [u16; 32] = words_of_step(0);
        const SECOND: [u16; 32] = words_of_step(8);
        // SAFETY: the caller grants 32 bytes at each; the loads are unaligned.
        unsafe {
            let low = _mm512_castsi256_si512(_mm256_loadu_si256(a.cast()));
            let both = _mm512_inserti64x4::<1>(low, _mm256_loadu_si256(b.cast()));
            [Self::step(both, &FIRST), Self::step(both, &SECOND)]
        }
    }

    type ByteLoads = ByteLoads;

    #[inline(always)]
    fn byte_loads() -> ByteLoads {
        // SAFETY: the loads read 32 bytes of each order; the features were checked before `run`.
        unsafe {
            ByteLoads {
                upper: black_box(0xff00),
                places: black_box(0x2222_2222_2222_2222),
                ones: black_box(_mm512_set1_epi32(POW2_15 as i32)),
                orders: black_box([
                    _mm512_broadcast_i64x4(_mm256_loadu_si256(BYTE_ORDERS[0].as_ptr().cast())),
                    _mm512_broadcast_i64x4(_mm256_loadu_si256(BYTE_ORDERS[1].as_ptr().cast())),
                ]),
            }
        }
    }

    #[inline(always)]
    unsafe fn load_scale(loads: ByteLoads, a: *const u8, b: *const u8) -> Self {
        // SAFETY: the caller grants four bytes at each; what follows the scale is shifted out.
        Zmm(unsafe {
            let (a, b) = (a.cast::<i32>().read_unaligned(), b.cast::<i32>().read_unaligned());
            let both = _mm512_mask_set1_epi32(_mm512_set1_epi32(a), loads.upper, b);
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(both))
        })
    }

    #[inline(always)]
    unsafe fn load_bytes_twice(loads: ByteLoads, a: *const u8, b: *const u8) -> [Self; 2] {
        // SAFETY: the caller grants 16 bytes at each.
        unsafe {
            let low = _mm512_broadcast_i32x4(_mm_loadu_si128(a.cast()));
            let both = _mm512_mask_broadcast_i32x4(low, loads.upper, _mm_loadu_si128(b.cast()));
            let [first, second] = loads.orders;
            [
                Zmm(_mm512_castsi512_ps(_mm512_mask_shuffle_epi8(loads.ones, loads.places, both, first))),
                Zmm(_mm512_castsi512_ps(_mm512_mask_shuffle_epi8(loads.ones, loads.places, both, second))),
            ]
        }
    }

    #[inline(always)]
    unsafe fn twice(p: *const f32) -> Self {
        // SAFETY: the caller grants eight readable values; the load is unaligned.
        Zmm(unsafe { _mm512_broadcast_f32x8(_mm256_loadu_ps(p)) })
    }

    #[inline(always)]
    unsafe fn read(p: *const f32) -> Self {
        // SAFETY: the caller grants sixteen readable values; the load is unaligned.
        Zmm(unsafe { _mm512_loadu_ps(p) })
    }

    #[inline(always)]
    unsafe fn write(self, p: *mut f32) {
        // SAFETY: the caller grants sixteen writable values; the store is unaligned.
        unsafe { _mm512_storeu_ps(p, self.0) }
    }

    #[inline(always)]
    fn crossed(self) -> Self {
        // SAFETY: register-only instruction; the features were checked before `run`.
        Zmm(unsafe { _mm512_shuffle_f32x4::<0x4e>(self.0, self.0) })
    }

    #[inline(always)]
    fn add(self, b: Self) -> Self {
        // SAFETY: register-only instruction; the features were checked before `run`.
        Zmm(unsafe { _mm512_add_ps(self.0, b.0) })
    }

    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        // SAFETY: register-only instruction; the features were checked before `run`.
        Zmm(unsafe { _mm512_sub_ps(self.0, b.0) })
    }

    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        // SAFETY: register-only instruction; the features were checked before `run`.
        Zmm(unsafe { _mm512_mul_ps(self.0, b.0) })
    }

    #[inline(always)]
    fn max(self, b: Self) -> Self {
        // SAFETY: register-only instruction; the features were checked before `run`.
        Zmm(unsafe { _mm512_max_ps(self.0, b.0) })
    }

    #[inline(always)]
    fn exp_below(self) -> Self {
        let round = Self::splat(ROUND);
        let t = self.mul_add(Self::splat(std::f32::consts::LOG2_E), round);
        let n = t.sub(round);
        let r = n.mul_add(Self::splat(-std::f32::consts::LN_2), self);
        let r = n.mul_add(Self::splat(-LN_2_REST), r);
        let mut p = Self::splat(SERIES[0]);
        for i in 1..SERIES.len() {
            p = p.mul_add(r, Self::splat(SERIES[i]));
        }
        let p = p.mul_add(r, Self::splat(1.0)).mul_add(r, Self::splat(1.0));
        // SAFETY: register-only instructions; the features were checked before `run`.
        Zmm(unsafe {
            // 2^n at once: n lies in -125..=0, so neither way rounds.
            let n = _mm512_slli_epi32::<23>(_mm512_castps_si512(t.0));
            let power = _mm512_castsi512_ps(_mm512_add_epi32(n, _mm512_set1_epi32(127 << 23)));
            // Not less: a NaN stays one.
            let stays = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(self.0, Self::splat(LOWEST).0);
            _mm512_maskz_mul_ps(stays, p.0, power)
        })
    }

    #[inline(always)]
    fn largest(self) -> f32 {
        // SAFETY: register-only instructions; the features were checked before `run`.
        let half = unsafe { _mm512_extractf32x8_ps::<1>(self.0) };
        // SAFETY: as above.
        let other = unsafe { _mm512_castps512_ps256(self.0) };
        Avx512(half).max(Avx512(other)).largest()
    }

    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        // SAFETY: register-only instruction; the features were checked before `run`.
        Zmm(unsafe { _mm512_fmadd_ps(self.0, b.0, c.0) })
    }

    #[inline(always)]
    fn sums_of_four(pairs: [Self; 4]) -> [f32; 8] {
        sum_four(pairs, [0, 4, 8, 12, 2, 6, 10, 14])
    }

    #[inline(always)]
    fn crossed_sums(straight: [Self; 2], cross: [Self; 2]) -> [[f32; 4]; 2] {
        let [a, b, c, d, e, f, g, h] =
            sum_four([straight[0], cross[0], straight[1], cross[1]], [0, 8, 2, 10, 12, 4, 14, 6]);
        [[a, b, c, d], [e, f, g, h]]
    }
}

/// The eight sums of four pairs in this order: 0 and 4 are the groups of the first pair, 8 and 12 those of the second, 2 and 6
/// of the third, 10 and 14 of the fourth.
#[inline(always)]
fn sum_four([a, b, c, d]: [Zmm; 4], order: [i32; 8]) -> [f32; 8] {
    let mut out = [0.0; 8];
    // SAFETY: register-only instructions, the features were checked before `run`; `order` and `out` hold eight values.
    unsafe {
        // Lane i and i + 4 of each group, then i and i + 2, then the two that are left.
        let (ab, cd) = (Zmm::halves(a, b), Zmm::halves(c, d));
        let two = _mm512_add_ps(_mm512_shuffle_ps::<0x44>(ab, cd), _mm512_shuffle_ps::<0xee>(ab, cd));
        let one = _mm512_add_ps(two, _mm512_movehdup_ps(two));
        // Elements 0 and 2 of each quarter hold sums: of a and c (first group), a and c (second), then b and d.
        let order = _mm512_castsi256_si512(_mm256_loadu_si256(order.as_ptr().cast()));
        let sums = _mm512_permutexvar_ps(order, one);
        _mm256_storeu_ps(out.as_mut_ptr(), _mm512_castps512_ps256(sums));
    }
    out
}

/// Word `order[i]` of `words` where `i` is odd, zeros elsewhere.
///
/// By hand: the compiler turns the zeroing mask of the intrinsic into an instruction of its own, for which a product has
/// no slot to spare.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn odd_words(order: __m512i, words: __m512i) -> __m512 {
    let out: __m512;
    // SAFETY: the instruction touches registers only.
    unsafe {
        std::arch::asm!(
            "vpermw {out}{{{odd}}}{{z}}, {order}, {words}",
            out = lateout(zmm_reg) out,
            odd = in(kreg) 0xaaaa_aaaau32,
            order = in(zmm_reg) order,
            words = in(zmm_reg) words,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    out
}

/// Which word of two times sixteen goes where, for the step that begins at element `from`.
const fn words_of_step(from: u16) -> [u16; 32] {
    let mut order = [0; 32];
    let mut i = 0;
    while i < 8 {
        order[2 * i + 1] = from + i as u16;
        order[16 + 2 * i + 1] = 16 + from + i as u16;
        i += 1;
    }
    order
}
