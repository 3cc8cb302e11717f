//! A number over everything that decides what a launch record computes.
//!
//! Not a defence: it finds a record that was put together or carried wrongly, before ranks that disagree on it wait for
//! one another in the middle of a collective.

use super::record::LaunchRecord;

/// An odd number without a pattern: 2^64 divided by the golden ratio.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
/// Sums that run side by side, so that a long block table costs a load and not a multiplication's latency per word.
const LANES: usize = 4;

struct Sum([u64; LANES]);

impl Sum {
    fn word(&mut self, lane: usize, word: u64) {
        self.0[lane] = (self.0[lane] ^ word).wrapping_mul(FACTOR).rotate_left(29);
    }

    fn words(&mut self, words: &[u32]) {
        self.word(0, words.len() as u64);
        let pairs = words.chunks_exact(2);
        let last = pairs.remainder();
        for (i, pair) in pairs.enumerate() {
            self.word(i % LANES, u64::from(pair[0]) | u64::from(pair[1]) << 32);
        }
        for word in last {
            self.word(1, u64::from(*word));
        }
    }

    fn end(self) -> u64 {
        self.0.iter().fold(0, |sum, lane| (sum ^ lane).wrapping_mul(FACTOR).rotate_left(31))
    }
}

/// The sum of a record. Its own field `checksum` does not count.
pub(super) fn of(record: &LaunchRecord) -> u64 {
    let step = &record.step;
    let mut sum = Sum([1, 2, 3, 4]);
    sum.word(0, record.seq);
    sum.word(1, record.graph.map_or(0, |bucket| 1 << 32 | u64::from(bucket)));
    sum.word(2, u64::from(step.model.0) | u64::from(step.heads) << 8);
    sum.word(3, step.seq);
    let tokens = step.tokens();
    let tables = [
        &step.ids,
        &step.logit_tokens,
        &step.score_tokens,
        &step.score_ids,
        tokens.token_row,
        tokens.positions,
        tokens.row_pages,
        tokens.row_page_start,
    ];
    tables.into_iter().for_each(|table| sum.words(table));
    for spec in step.rows.iter().map(|row| row.sample.as_ref()) {
        let Some(spec) = spec else {
            sum.word(0, 0);
            continue;
        };
        sum.word(0, 1 | u64::from(spec.mask_stops) << 1);
        sum.word(1, spec.key.seed);
        sum.word(2, u64::from(spec.key.choice) | u64::from(spec.key.position) << 32);
        sum.word(3, spec.prompt_len as u64 | u64::from(spec.logprobs.map_or(0, |top| top + 1)) << 32);
    }
    sum.end()
}
