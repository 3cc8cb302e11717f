//! Random numbers that all candidates of a search share.

use super::error::PlanError;
use super::setting::Setting;
use crate::router::mix;

/// Every so many draws of a model hold each destination as often as P says. This takes the error of the mean away,
/// which is most of the noise of a short simulation (it halves the deviation of the rate), and leaves smaller batches
/// random: the rate at N = 64 moves by 0.15 % at most.
const BLOCK: usize = 512;
/// Most draws of one model; a longer simulation starts over.
const MOST: f64 = 1e7;

/// Where the requests go, in the order in which each model finishes them: one byte per row. Candidates that are
/// simulated with the same draws differ by what they decide, not by luck.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draws {
    /// Destinations by model; never empty.
    sequences: Vec<Vec<u8>>,
}

impl Draws {
    /// Enough draws for simulations of `request_steps` rows. Equal seeds give equal draws.
    ///
    /// # Errors
    /// As [`Setting::check`].
    pub fn new(setting: &Setting, request_steps: u64, seed: u64) -> Result<Self, PlanError> {
        setting.check()?;
        let mut random = Counter(mix(seed ^ 0x2545_f491_4f6c_dd1d));
        let sequence = |(row, share): (&Vec<f64>, f64)| {
            // A little more than the mean: a run is counted in rows of all models.
            let rows = (request_steps as f64 * share * 1.1).min(MOST) as usize;
            draw(row, rows.div_ceil(BLOCK).max(1), &mut random)
        };
        Ok(Self { sequences: setting.routing.iter().zip(setting.visits()).map(sequence).collect() })
    }

    /// How many models the draws are for.
    pub(super) fn models(&self) -> usize {
        self.sequences.len()
    }

    /// The sequence of a model.
    pub(super) fn of(&self, model: usize) -> &[u8] {
        &self.sequences[model]
    }
}

/// `blocks` shuffled blocks. What a share of a block leaves over goes into the next one.
fn draw(row: &[f64], blocks: usize, random: &mut Counter) -> Vec<u8> {
    let sum: f64 = row.iter().sum();
    let mut given = vec![0usize; row.len()];
    let mut sequence = Vec::with_capacity(blocks * BLOCK);
    for block in 1..=blocks {
        let owed = |j: usize, given: &[usize]| row[j] / sum * (block * BLOCK) as f64 - given[j] as f64;
        let start = sequence.len();
        for to in 0..row.len() {
            let whole = owed(to, &given).max(0.0) as usize;
            let room = block * BLOCK - sequence.len();
            given[to] += whole.min(room);
            sequence.extend(std::iter::repeat_n(to as u8, whole.min(room)));
        }
        while sequence.len() < block * BLOCK {
            let most = |a: &usize, b: &usize| owed(*a, &given).total_cmp(&owed(*b, &given));
            let to = (0..row.len()).filter(|&j| row[j] > 0.0).max_by(most).unwrap_or(0);
            given[to] += 1;
            sequence.push(to as u8);
        }
        shuffle(&mut sequence[start..], random);
    }
    sequence
}

fn shuffle(block: &mut [u8], random: &mut Counter) {
    for last in (1..block.len()).rev() {
        block.swap(last, random.below(last + 1));
    }
}

/// A counter run through a mixing function.
struct Counter(u64);

impl Counter {
    /// A number in `0..bound`; the bias at these bounds is below 1e-6.
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (((mix(self.0) >> 32) * bound as u64) >> 32) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_is_as_p_says_and_shuffled() {
        let row = [0.35, 0.0, 0.65];
        let sequence = draw(&row, 3, &mut Counter(7));
        assert_eq!(sequence.len(), 3 * BLOCK);
        for (i, block) in sequence.chunks(BLOCK).enumerate() {
            let first = block.iter().filter(|&&to| to == 0).count() as f64;
            assert!((first - 0.35 * BLOCK as f64).abs() <= 1.0, "block {i}: {first}");
            assert!(!block.contains(&1));
            // Runs of the rarer one are geometric: they come in pairs as often as by chance.
            let pairs = block.windows(2).filter(|w| w == &[0, 0]).count() as f64;
            assert!((pairs / BLOCK as f64 - 0.35 * 0.35).abs() < 0.05, "block {i}: {pairs}");
        }
        let thirds = draw(&[1.0 / 3.0; 3], 1, &mut Counter(1));
        assert!((0..3).all(|to| thirds.iter().filter(|&&t| t == to).count().abs_diff(BLOCK / 3) <= 1));
    }

    #[test]
    fn what_is_left_over_comes_in_a_later_block() {
        let sequence = draw(&[1.0 - 1e-3, 1e-3], 20, &mut Counter(3));
        let rare = sequence.iter().filter(|&&to| to == 1).count();
        assert!((10..=11).contains(&rare), "{rare}");
    }
}
