//! A counter-based draw for routers: no state, so no schedule can change it.

use crate::ids::ModelId;

/// Purpose of draws that decide where a token goes. Other routers use numbers from 1024 up.
pub const PURPOSE_ROUTE: u32 = 1;
/// Purpose of draws that decide where a whole request goes.
pub const PURPOSE_QUERY: u32 = 2;

/// A number in `[0, 1)` with 53 random bits, a pure function of its arguments.
///
/// Each argument is folded into the state by one round of a 64-bit mixing function (xor-shift-multiply), so any
/// two keys that differ in one field give unrelated draws.
pub fn draw(seed: u64, choice: u32, position: u32, purpose: u32, model: ModelId) -> f64 {
    let mut state = mix(seed ^ 0x9e37_79b9_7f4a_7c15);
    for word in [u64::from(choice), u64::from(position), u64::from(purpose), u64::from(model.0)] {
        state = mix(state ^ mix(word.wrapping_add(0x9e37_79b9_7f4a_7c15)));
    }
    (state >> 11) as f64 / (1u64 << 53) as f64
}

/// A bijection of 64-bit words that flips about half of the output bits for any flipped input bit.
pub(crate) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_argument_matters() {
        let base = draw(1, 2, 3, 4, ModelId(0));
        assert_eq!(base, draw(1, 2, 3, 4, ModelId(0)));
        let others = [
            draw(2, 2, 3, 4, ModelId(0)),
            draw(1, 3, 3, 4, ModelId(0)),
            draw(1, 2, 4, 4, ModelId(0)),
            draw(1, 2, 3, 5, ModelId(0)),
            draw(1, 2, 3, 4, ModelId(1)),
            draw(1, 3, 2, 4, ModelId(0)),
        ];
        assert!(others.iter().all(|&d| d != base), "{base} {others:?}");
    }

    #[test]
    fn draws_are_uniform_along_positions_and_seeds() {
        let n = 40_000u32;
        for along_seed in [false, true] {
            let mut bins = [0f64; 16];
            for i in 0..n {
                let d = if along_seed {
                    draw(u64::from(i), 0, 7, 1, ModelId(0))
                } else {
                    draw(7, 0, i, 1, ModelId(0))
                };
                assert!((0.0..1.0).contains(&d));
                bins[(d * 16.0) as usize] += 1.0;
            }
            let expected = f64::from(n) / 16.0;
            let chi: f64 = bins.iter().map(|b| (b - expected).powi(2) / expected).sum();
            // 15 degrees of freedom: 44.3 is the 0.9999 quantile. The draws are fixed, so this never flakes.
            assert!(chi < 44.3, "chi-square {chi}");
        }
    }
}
