//! Our own exponential: the same operations, in the same order, in scalar and in vector code, so
//! that no result depends on a system's mathematics library.

use super::Lanes;

/// Below this the exponential is 0: the scaling by powers of two stays in normal numbers.
pub(super) const LOWEST: f32 = -86.6;
/// Above this the exponential is infinite.
const HIGHEST: f32 = 88.73;
/// `1.5 * 2^23`: adding it rounds to an integer, which then sits in the low bits.
pub(super) const ROUND: f32 = 12_582_912.0;
/// `ln 2` less its f32 value.
pub(super) const LN_2_REST: f32 = (std::f64::consts::LN_2 - std::f32::consts::LN_2 as f64) as f32;
/// `1/7! .. 1/2!`: the series up to `r^7` leaves less than 6e-9 for `|r| <= ln(2)/2`.
pub(super) const SERIES: [f32; 6] = [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5];

/// `e^x` within 2 units in the last place; 0 below -86.6, infinite above 88.73, NaN for NaN.
///
/// Order: `t = fma(x, log2 e, 1.5 * 2^23)`, `n = t - 1.5 * 2^23`, `r = fma(n, -ln2, x)`,
/// `r = fma(n, -ln2_rest, r)`, Horner by fused multiply-adds from `1/7!` down to 1, 1, then
/// `(p * 2^(n-1)) * 2`.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    if x < LOWEST {
        return 0.0;
    }
    if x > HIGHEST {
        return f32::INFINITY;
    }
    let t = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = t - ROUND;
    let r = n.mul_add(-std::f32::consts::LN_2, x);
    let r = n.mul_add(-LN_2_REST, r);
    let mut p = SERIES[0];
    for c in &SERIES[1..] {
        p = p.mul_add(r, *c);
    }
    p = p.mul_add(r, 1.0).mul_add(r, 1.0);
    p * half_pow2(t) * 2.0
}

/// `2^(n-1)` for `t = n + 1.5 * 2^23`.
#[inline(always)]
pub(super) fn half_pow2(t: f32) -> f32 {
    f32::from_bits((t.to_bits() << 23).wrapping_add(126 << 23))
}

/// [`exp`] of eight lanes.
#[inline(always)]
pub(crate) fn exp_lanes<V: Lanes>(x: V) -> V {
    V::splat(HIGHEST).select_less(x, V::splat(f32::INFINITY), exp_lanes_below(x))
}

/// [`exp`] of eight lanes that are not above 88.73.
#[inline(always)]
pub(crate) fn exp_lanes_below<V: Lanes>(x: V) -> V {
    let round = V::splat(ROUND);
    let one = V::splat(1.0);
    let t = x.mul_add(V::splat(std::f32::consts::LOG2_E), round);
    let n = t.sub(round);
    let r = n.mul_add(V::splat(-std::f32::consts::LN_2), x);
    let r = n.mul_add(V::splat(-LN_2_REST), r);
    let mut p = V::splat(SERIES[0]);
    p = p.mul_add(r, V::splat(SERIES[1]));
    p = p.mul_add(r, V::splat(SERIES[2]));
    p = p.mul_add(r, V::splat(SERIES[3]));
    p = p.mul_add(r, V::splat(SERIES[4]));
    p = p.mul_add(r, V::splat(SERIES[5]));
    p = p.mul_add(r, one).mul_add(r, one);
    let e = p.mul(t.half_pow2()).mul(V::splat(2.0));
    x.select_less(V::splat(LOWEST), V::splat(0.0), e)
}

/// `x / (1 + e^-x)`.
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::pair::Pair;
    use crate::cpu::{Isa, Kernel, dispatch};

    struct Exp8([f32; 8]);
    impl Kernel for Exp8 {
        type Output = [f32; 8];
        #[inline(always)]
        fn run<V: Lanes>(self) -> [f32; 8] {
            let mut out = [0.0; 8];
            // SAFETY: both arrays hold eight values.
            unsafe { exp_lanes(V::load(self.0.as_ptr())).store(out.as_mut_ptr()) };
            out
        }
    }

    struct Below([f32; 16]);
    impl Kernel for Below {
        type Output = [f32; 16];
        #[inline(always)]
        fn run<V: Lanes>(self) -> [f32; 16] {
            let mut out = [0.0; 16];
            // SAFETY: both arrays hold sixteen values.
            unsafe { V::Pair::read(self.0.as_ptr()).exp_below().write(out.as_mut_ptr()) };
            out
        }
    }

    #[test]
    fn exp_of_what_is_not_above_zero_agrees_to_the_bit() {
        let low: Vec<f32> = inputs().into_iter().filter(|x| x.is_nan() || *x <= 0.0).collect();
        for isa in [Isa::Avx512, Isa::Avx2, Isa::Portable] {
            for chunk in low.chunks(16) {
                let x = std::array::from_fn(|i| chunk[i % chunk.len()]);
                for (x, y) in x.iter().zip(dispatch(isa, Below(x))) {
                    let same = y.to_bits() == exp(*x).to_bits() || (y.is_nan() && x.is_nan());
                    assert!(same, "{isa:?} exp({x}) = {y} or {}", exp(*x));
                }
            }
        }
    }

    fn inputs() -> Vec<f32> {
        let mut xs: Vec<f32> = (-9000..9000).map(|i| i as f32 * 0.01003).collect();
        for limit in [LOWEST, HIGHEST, 88.72, -0.0, 0.34657, -0.34657] {
            xs.extend([
                limit,
                f32::from_bits(limit.to_bits() + 1),
                f32::from_bits(limit.to_bits().wrapping_sub(1)),
            ]);
        }
        xs.extend([f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-40, -1e-40, f32::MAX, f32::MIN, 0.0]);
        while !xs.len().is_multiple_of(8) {
            xs.push(1.0);
        }
        xs
    }

    #[test]
    fn vector_and_scalar_exp_agree_to_the_bit() {
        for isa in [Isa::Avx512, Isa::Avx2, Isa::Portable] {
            for chunk in inputs().chunks_exact(8) {
                let x: [f32; 8] = chunk.try_into().unwrap();
                let y = dispatch(isa, Exp8(x));
                for i in 0..8 {
                    let expected = exp(x[i]);
                    let same = y[i].to_bits() == expected.to_bits() || (y[i].is_nan() && expected.is_nan());
                    assert!(same, "{isa:?} exp({}) = {} or {expected}", x[i], y[i]);
                }
            }
        }
    }

    #[test]
    fn exp_is_close_to_the_true_value() {
        for x in inputs() {
            let (y, truth) = (exp(x), f64::from(x).exp());
            if x.is_nan() {
                assert!(y.is_nan());
            } else if x < LOWEST {
                assert_eq!(y, 0.0);
            } else if truth > f64::from(f32::MAX) {
                assert_eq!(y, f32::INFINITY, "exp({x})");
            } else {
                let error = (f64::from(y) - truth).abs() / truth;
                assert!(error < 1.6e-7, "exp({x}) = {y}, true {truth}, error {error}");
            }
        }
    }

    #[test]
    fn silu_limits() {
        assert_eq!(silu(-200.0), 0.0);
        assert_eq!(silu(200.0), 200.0);
        assert_eq!(silu(0.0), 0.0);
        assert!(silu(f32::NAN).is_nan());
    }
}
