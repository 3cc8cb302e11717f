//! Rows of logits.
#![allow(unreachable_pub, reason = "every bench compiles this module for itself")]

/// Logits near a normal distribution of this spread: at 0.3 nearly all tokens are as likely as any, at 9 a few dozen hold
/// nearly everything.
pub fn logits(vocab: usize, spread: f32) -> Vec<f32> {
    let mut state = 7_u64;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1_u64 << 24) as f32 - 0.5
    };
    // Six uniform numbers have a variance of a half.
    (0..vocab).map(|_| (0..6).map(|_| uniform()).sum::<f32>() * std::f32::consts::SQRT_2 * spread).collect()
}
