//! A histogram of numbers from 0 to 1 that is fine where thresholds lie: near both ends.

/// Bins per factor of two.
const FINE: u32 = 32;
/// Bits of an `f32` below those that number a bin.
const SHIFT: u32 = 23 - FINE.ilog2();
/// The bin number that the bits of the smallest resolved number give: 2^-24.
const BASE: u32 = (127 - 24) << FINE.ilog2();
/// Bins below one half: one for everything below 2^-24, and 23 factors of two.
const HALF: usize = 1 + 23 * FINE as usize;

/// Counts in `2 * HALF` bins: below one half at most 1/32 of the number wide, above as wide as at `1 - x`. Its size is
/// fixed; when it has seen much it forgets half of it, so that it follows what changes.
#[derive(Clone, Debug)]
pub(super) struct Sketch {
    bins: Box<[u32]>,
    /// Values that are no numbers.
    odd: u32,
    total: u32,
}

/// So many values are kept before half of them is forgotten.
pub(super) const MOST: u32 = 1 << 17;

impl Sketch {
    pub(super) const BINS: usize = 2 * HALF;

    pub(super) fn new() -> Self {
        Self { bins: vec![0; Self::BINS].into_boxed_slice(), odd: 0, total: 0 }
    }

    pub(super) fn total(&self) -> u32 {
        self.total
    }

    pub(super) fn odd(&self) -> u32 {
        self.odd
    }

    pub(super) fn bins(&self) -> &[u32] {
        &self.bins
    }

    pub(super) fn add(&mut self, value: f32) {
        if value.is_nan() {
            self.odd += 1;
        } else {
            self.bins[bin(value)] += 1;
        }
        self.total += 1;
        if self.total >= MOST {
            self.forget();
        }
    }

    fn forget(&mut self) {
        self.bins.iter_mut().for_each(|n| *n /= 2);
        self.odd /= 2;
        self.total = self.bins.iter().sum::<u32>() + self.odd;
    }
}

/// The bin of a number; what lies outside 0 to 1 counts as the nearest end.
fn bin(value: f32) -> usize {
    let lower = |v: f32| match ((v.max(0.0).to_bits() >> SHIFT) + 1).checked_sub(BASE) {
        Some(bin) => (bin as usize).min(HALF - 1),
        None => 0,
    };
    if value < 0.5 { lower(value) } else { Sketch::BINS - 1 - lower(1.0 - value) }
}

/// The number between bin `i - 1` and bin `i`, for `i` from 0 to `BINS`.
pub(super) fn edge(i: usize) -> f32 {
    let lower = |i: usize| match i {
        0 => 0.0,
        i => f32::from_bits((BASE + i as u32 - 1) << SHIFT),
    };
    if i <= HALF { lower(i) } else { 1.0 - lower(Sketch::BINS - i) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_rise_and_every_number_lies_in_its_bin() {
        assert_eq!((edge(0), edge(HALF), edge(Sketch::BINS)), (0.0, 0.5, 1.0));
        // Next to 1 a float is coarser than the bins.
        assert!((1..=Sketch::BINS).all(|i| edge(i - 1) <= edge(i)));
        assert!((1..=HALF).all(|i| edge(i - 1) < edge(i)));
        for i in 0..=20_000 {
            for value in
                [i as f32 / 20_000.0, (i as f32 / 20_000.0).powi(8), 1.0 - (i as f32 / 20_000.0).powi(8)]
            {
                let bin = bin(value);
                assert!((edge(bin)..=edge(bin + 1)).contains(&value), "{value} in {bin}");
            }
        }
        assert_eq!(
            [-1.0, f32::NEG_INFINITY, 2.0, f32::INFINITY].map(bin),
            [0, 0, Sketch::BINS - 1, Sketch::BINS - 1]
        );
    }

    #[test]
    fn it_forgets_and_its_total_stays_right() {
        let mut sketch = Sketch::new();
        for i in 0..3 * MOST {
            sketch.add(if i % 8 == 0 { f32::NAN } else { i as f32 / (3 * MOST) as f32 });
            assert!(sketch.total() < MOST);
        }
        assert_eq!(sketch.total(), sketch.bins().iter().sum::<u32>() + sketch.odd());
        // What came last weighs most.
        let half = HALF;
        let [low, high] = [0..half, half..Sketch::BINS].map(|r| sketch.bins()[r].iter().sum::<u32>());
        assert!(high > 2 * low, "{low} {high}");
    }
}
