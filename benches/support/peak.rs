//! The machine's limit of f32 multiply-adds: registers only, as many accumulators as hide the latency.

use std::hint::black_box;

use tokenrouter_kernels::cpu::Isa;

/// Multiply-adds of one call.
pub(crate) const COUNT: u64 = ROUNDS * 24 * 16;
const ROUNDS: u64 = 100_000;

/// [`COUNT`] multiply-adds with the widest registers of `isa`.
pub(crate) fn multiply_adds(isa: Isa) {
    #[cfg(target_arch = "x86_64")]
    match isa {
        // SAFETY: the set was detected on this processor.
        Isa::Avx512 => return unsafe { x86::avx512() },
        // SAFETY: as above.
        Isa::Avx2 => return unsafe { x86::avx2() },
        Isa::Portable => {}
    }
    let _ = isa;
    let (x, y) = black_box((0.999f32, 1e-4f32));
    let mut sums = [0.0f32; 24 * 16];
    for _ in 0..ROUNDS {
        sums.iter_mut().for_each(|sum| *sum = sum.mul_add(x, y));
    }
    black_box(sums);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::ROUNDS;
    use std::arch::x86_64::*;
    use std::hint::black_box;

    /// # Safety
    /// The processor must have AVX-512F.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn avx512() {
        let (x, y) = (_mm512_set1_ps(black_box(0.999)), _mm512_set1_ps(black_box(1e-4)));
        let mut sums = [_mm512_setzero_ps(); 24];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(*sum, x, y);
            }
        }
        black_box(sums);
    }

    /// # Safety
    /// The processor must have AVX2 and FMA.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn avx2() {
        let (x, y) = (_mm256_set1_ps(black_box(0.999)), _mm256_set1_ps(black_box(1e-4)));
        let mut sums = [_mm256_setzero_ps(); 12];
        for _ in 0..4 * ROUNDS {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(*sum, x, y);
            }
        }
        black_box(sums);
    }
}
