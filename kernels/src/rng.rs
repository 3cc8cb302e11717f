//! Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as
//! 1, 2, 3", SC 2011). A number is a pure function of its key, so neighbours in the batch, the
//! schedule and the device cannot shift a stream.

/// What a number is drawn for. The values are a stable contract shared with other devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Purpose {
    /// The draw of a token from a model's distribution.
    Sample = 0,
    /// Decisions of a router that run inside a step.
    Router = 1,
}

/// Names one random number stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DrawKey {
    /// The seed of the request.
    pub seed: u64,
    /// Which of the `n` choices of the request.
    pub choice: u32,
    /// Absolute position in the sequence of the token that is drawn.
    pub position: u32,
    /// What the number is for.
    pub purpose: Purpose,
    /// The model that draws; only the low 16 bits count.
    pub model: u32,
}

/// Block `n` of four random words for `key`.
///
/// Philox key: low and high word of the seed. Counter words: `n`, position, choice, and
/// `purpose << 16 | (model & 0xffff)`.
pub fn block(key: &DrawKey, n: u32) -> [u32; 4] {
    let tag = (key.purpose as u32) << 16 | (key.model & 0xffff);
    philox4x32_10([n, key.position, key.choice, tag], [key.seed as u32, (key.seed >> 32) as u32])
}

/// The 64 random bits of one draw: word 0 of block 0 above word 1.
pub fn bits(key: &DrawKey) -> u64 {
    let words = block(key, 0);
    u64::from(words[0]) << 32 | u64::from(words[1])
}

/// A number in `[0, 1)` with 24 bits: the upper 24 bits of [`bits`].
pub fn uniform(key: &DrawKey) -> f32 {
    (bits(key) >> 40) as f32 * (1.0 / 16_777_216.0)
}

/// The Philox4x32 bijection with ten rounds.
pub fn philox4x32_10(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let (mut c, mut k) = (counter, key);
    for round in 0..10 {
        if round > 0 {
            k = [k[0].wrapping_add(0x9E37_79B9), k[1].wrapping_add(0xBB67_AE85)];
        }
        let a = u64::from(c[0]) * 0xD251_1F53;
        let b = u64::from(c[2]) * 0xCD9E_8D57;
        c = [(b >> 32) as u32 ^ c[1] ^ k[0], b as u32, (a >> 32) as u32 ^ c[3] ^ k[1], a as u32];
    }
    c
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> DrawKey {
        DrawKey { seed: 0x0123_4567_89ab_cdef, choice: 2, position: 77, purpose: Purpose::Sample, model: 1 }
    }

    /// The known answers published with the Random123 library.
    #[test]
    fn known_answers() {
        let ones = u32::MAX;
        let cases = [
            ([0; 4], [0; 2], [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]),
            ([ones; 4], [ones; 2], [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]),
            (
                [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344],
                [0xa4093822, 0x299f31d0],
                [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1],
            ),
        ];
        for (counter, key, expected) in cases {
            assert_eq!(philox4x32_10(counter, key), expected);
        }
    }

    #[test]
    fn block_packs_the_key_as_documented() {
        let expected = philox4x32_10([5, 77, 2, 1], [0x89ab_cdef, 0x0123_4567]);
        assert_eq!(block(&key(), 5), expected);
        let router = DrawKey { purpose: Purpose::Router, ..key() };
        assert_eq!(block(&router, 5), philox4x32_10([5, 77, 2, 0x1_0001], [0x89ab_cdef, 0x0123_4567]));
    }

    #[test]
    fn every_field_changes_the_stream() {
        let base = bits(&key());
        let others = [
            DrawKey { seed: key().seed ^ 1, ..key() },
            DrawKey { seed: key().seed ^ (1 << 40), ..key() },
            DrawKey { choice: 3, ..key() },
            DrawKey { position: 78, ..key() },
            DrawKey { purpose: Purpose::Router, ..key() },
            DrawKey { model: 0, ..key() },
        ];
        for other in others {
            assert_ne!(bits(&other), base, "{other:?}");
        }
    }

    #[test]
    fn uniform_stays_below_one_and_is_flat() {
        let mut counts = [0u32; 16];
        for position in 0..32_000 {
            let u = uniform(&DrawKey { position, ..key() });
            assert!((0.0..1.0).contains(&u));
            counts[(u * 16.0) as usize] += 1;
        }
        let chi: f64 = counts.iter().map(|&c| (f64::from(c) - 2000.0).powi(2) / 2000.0).sum();
        assert!(chi < 45.0, "chi square {chi} with 15 degrees of freedom");
    }
}
