//! Rotary position embedding, in the rotate-half layout of Hugging Face checkpoints: element `i`
//! pairs with element `i + D/2`.

use super::Lanes;

/// Cosines and sines per position.
#[derive(Clone, Debug)]
pub struct RopeTable {
    half: usize,
    positions: usize,
    /// Per position: `half` cosines, then `half` sines.
    values: Vec<f32>,
}

impl RopeTable {
    /// The table for positions `0..positions`. `inv_freq` holds `head_dim / 2` angles per position
    /// step; the angle, its cosine and sine and the product with `attention_factor` are computed
    /// in f64 and rounded to f32 once.
    pub fn new(inv_freq: &[f32], attention_factor: f32, positions: usize) -> RopeTable {
        let half = inv_freq.len();
        let factor = f64::from(attention_factor);
        let mut values = Vec::with_capacity(positions * half * 2);
        for position in 0..positions {
            let angle = |f: &f32| position as f64 * f64::from(*f);
            values.extend(inv_freq.iter().map(|f| (angle(f).cos() * factor) as f32));
            values.extend(inv_freq.iter().map(|f| (angle(f).sin() * factor) as f32));
        }
        RopeTable { half, positions, values }
    }

    /// Elements per head.
    pub fn head_dim(&self) -> usize {
        2 * self.half
    }

    /// Positions in the table.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// `D/2` cosines and `D/2` sines of a position.
    ///
    /// # Panics
    /// When the position lies beyond the table.
    pub fn at(&self, position: usize) -> (&[f32], &[f32]) {
        self.values[position * self.half * 2..(position + 1) * self.half * 2].split_at(self.half)
    }
}

/// Rotates one head in place: with `a = x[i]`, `b = x[i + D/2]`,
/// `x[i] = fma(a, cos, -(b * sin))` and `x[i + D/2] = fma(b, cos, a * sin)`.
#[inline(always)]
pub(super) fn rotate<V: Lanes>(x: &mut [f32], cos: &[f32], sin: &[f32]) {
    let half = x.len() / 2;
    assert!(
        x.len() == 2 * half && cos.len() == half && sin.len() == half,
        "rotation of {} elements",
        x.len()
    );
    let (low, high) = x.split_at_mut(half);
    let zero = V::splat(-0.0);
    let mut i = 0;
    while i + 8 <= half {
        // SAFETY: i + 8 <= half, the length of all four slices.
        unsafe {
            let (a, b) = (V::load(low.as_ptr().add(i)), V::load(high.as_ptr().add(i)));
            let (c, s) = (V::load(cos.as_ptr().add(i)), V::load(sin.as_ptr().add(i)));
            a.mul_add(c, zero.sub(b.mul(s))).store(low.as_mut_ptr().add(i));
            b.mul_add(c, a.mul(s)).store(high.as_mut_ptr().add(i));
        }
        i += 8;
    }
    while i < half {
        let (a, b) = (low[i], high[i]);
        low[i] = a.mul_add(cos[i], -(b * sin[i]));
        high[i] = b.mul_add(cos[i], a * sin[i]);
        i += 1;
    }
}
