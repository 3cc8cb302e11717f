//! One reading of a row of logits: its largest value, and the largest of each of many parts of it. Whoever searches the
//! best tokens afterwards passes over the parts that hold none.

use crate::cpu::{Isa, Kernel, Lanes, dispatch, none_above};
use crate::top::top_values;

/// Parts of a row at most: one for each of the eight lanes of a block of consecutive ids.
const COLUMNS: usize = 1024;
/// The best of the columns are found one by one up to here, and by a partition above.
const FEW: usize = 64;

/// What is known of a row after one reading.
pub(crate) struct Survey {
    /// The largest logit; NaN entries are passed over; negative infinity when there is none.
    pub(crate) max: f32,
    /// Ids per block: a multiple of 32.
    block: usize,
    /// The largest logit per lane of every block, negative infinity in unused places.
    columns: [f32; COLUMNS],
}

impl Survey {
    /// Of logits that nobody needs to check.
    pub(crate) fn of(isa: Isa, logits: &[f32]) -> Survey {
        let mut survey = Survey::new(logits.len());
        dispatch(isa, Scan::<false> { logits, survey: &mut survey });
        survey
    }

    /// Of logits that allow a draw; `None` when there is a NaN, positive infinity, or nothing above negative infinity.
    pub(crate) fn checked(isa: Isa, logits: &[f32]) -> Option<Survey> {
        let mut survey = Survey::new(logits.len());
        let sound = dispatch(isa, Scan::<true> { logits, survey: &mut survey });
        (sound && survey.max > f32::NEG_INFINITY).then_some(survey)
    }

    fn new(ids: usize) -> Survey {
        let block = ids.div_ceil(COLUMNS / 8).next_multiple_of(32).max(32);
        Survey { max: f32::NEG_INFINITY, block, columns: [f32::NEG_INFINITY; COLUMNS] }
    }

    /// The id of the largest logit, the lowest of equals; `None` for an empty row.
    pub(crate) fn best(&self, logits: &[f32]) -> Option<usize> {
        let at = self.columns.iter().position(|x| *x == self.max)? / 8 * self.block;
        let block = logits.get(at..)?;
        block.iter().position(|x| *x == self.max).map(|id| at + id)
    }

    /// A value that at least `k >= 1` logits exceed, the `k` best among them. `None` when the columns cannot tell.
    pub(crate) fn exceeded_by(&self, isa: Isa, k: usize) -> Option<f32> {
        let least = match k {
            // The k best columns are k different logits.
            1..=FEW => {
                let mut best = [0.0; FEW];
                top_values(isa, &self.columns, &mut best[..k]);
                best[k - 1]
            }
            _ if k <= COLUMNS => {
                let mut columns = self.columns;
                *columns.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a)).1
            }
            _ => return None,
        };
        (least > f32::NEG_INFINITY).then(|| least.next_down())
    }

    /// The blocks of the row that was surveyed, in order.
    #[inline(always)]
    pub(crate) fn blocks<'a>(&'a self, logits: &'a [f32]) -> impl Iterator<Item = Block<'a>> {
        let columns = self.columns.chunks_exact(8);
        logits.chunks(self.block).zip(columns).enumerate().map(|(i, (logits, columns))| Block {
            first: i * self.block,
            logits,
            columns,
        })
    }
}

/// Consecutive ids.
pub(crate) struct Block<'a> {
    /// The first id.
    pub(crate) first: usize,
    /// Their logits.
    pub(crate) logits: &'a [f32],
    columns: &'a [f32],
}

impl Block<'_> {
    /// Whether none of the logits exceeds `limit`.
    #[inline(always)]
    pub(crate) fn none_above<V: Lanes>(&self, limit: f32) -> bool {
        none_above::<V>(self.columns, limit)
    }
}

/// Loads up to eight values, the places behind them at negative infinity.
#[inline(always)]
pub(crate) fn load_padded<V: Lanes>(chunk: &[f32]) -> V {
    let mut padded = [f32::NEG_INFINITY; 8];
    let p = if chunk.len() == 8 {
        chunk.as_ptr()
    } else {
        padded[..chunk.len()].copy_from_slice(chunk);
        padded.as_ptr()
    };
    // SAFETY: `p` points to eight values, in the chunk or in `padded`.
    unsafe { V::load(p) }
}

/// Fills a survey; with `CHECK` it tells whether every logit is below positive infinity.
struct Scan<'a, const CHECK: bool> {
    logits: &'a [f32],
    survey: &'a mut Survey,
}

impl<const CHECK: bool> Kernel for Scan<'_, CHECK> {
    type Output = bool;

    #[inline(always)]
    fn run<V: Lanes>(self) -> bool {
        let Survey { max, block, columns } = self.survey;
        let lowest = V::splat(f32::NEG_INFINITY);
        let (mut best, mut unsound) = (lowest, V::splat(0.0));
        for (block, columns) in self.logits.chunks(*block).zip(columns.chunks_exact_mut(8)) {
            // Four chains, since each waits for its last comparison.
            let mut chains = [lowest; 4];
            let groups = block.chunks_exact(32);
            let rest = groups.remainder().chunks(8);
            for group in groups {
                for (chunk, chain) in group.chunks_exact(8).zip(&mut chains) {
                    // SAFETY: the chunk holds eight values.
                    take::<V, CHECK>(unsafe { V::load(chunk.as_ptr()) }, chain, &mut unsound);
                }
            }
            for (chunk, chain) in rest.zip(&mut chains) {
                take::<V, CHECK>(load_padded(chunk), chain, &mut unsound);
            }
            let [a, b, c, d] = chains;
            let largest = a.max(b).max(c.max(d));
            // SAFETY: eight columns are writable.
            unsafe { largest.store(columns.as_mut_ptr()) };
            best = largest.max(best);
        }
        *max = best.largest();
        !unsound.any_greater(V::splat(0.0))
    }
}

/// Eight logits: the larger ones, and with `CHECK` a one for each that is not below infinity.
#[inline(always)]
fn take<V: Lanes, const CHECK: bool>(x: V, largest: &mut V, unsound: &mut V) {
    // A NaN is never greater.
    *largest = x.max(*largest);
    if CHECK {
        *unsound = x.select_less(V::splat(f32::INFINITY), *unsound, V::splat(1.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(len: usize) -> Vec<f32> {
        (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 20) as f32 - 2_000.0).collect()
    }

    #[test]
    fn a_survey_knows_the_largest_and_where_it_is() {
        for isa in [Isa::Avx2, Isa::Portable] {
            for len in [1, 7, 8, 31, 33, 4_000, 4_097, 49_152, 50_001] {
                let mut logits = row(len);
                let survey = Survey::checked(isa, &logits).expect("finite");
                let max = logits.iter().copied().fold(f32::MIN, f32::max);
                assert_eq!((survey.max, survey.best(&logits)), (max, logits.iter().position(|x| *x == max)));
                // In every place once.
                let step = (len / 50).max(1);
                for at in (0..len).step_by(step) {
                    let kept = std::mem::replace(&mut logits[at], 9_999.0);
                    assert_eq!(Survey::of(isa, &logits).best(&logits), Some(at));
                    logits[at] = kept;
                }
            }
            assert!(Survey::checked(isa, &[]).is_none());
            assert!(Survey::checked(isa, &[f32::NEG_INFINITY; 40]).is_none());
            for (at, bad) in [(0, f32::NAN), (38, f32::NAN), (3, f32::INFINITY), (39, f32::INFINITY)] {
                let mut logits = [1.0; 40];
                logits[at] = bad;
                assert!(Survey::checked(isa, &logits).is_none(), "{bad} at {at}");
                assert_eq!(Survey::of(isa, &logits).max, if bad.is_nan() { 1.0 } else { bad });
            }
        }
    }

    #[test]
    fn at_least_as_many_as_asked_for_exceed_the_bound() {
        for isa in [Isa::Avx2, Isa::Portable] {
            for len in [40, 5_000, 49_152] {
                let logits = row(len);
                let survey = Survey::of(isa, &logits);
                for k in [1, 8, 64, 65, 1_000] {
                    let Some(bound) = survey.exceeded_by(isa, k) else {
                        assert!(k > len.div_ceil(survey.block) * 8, "{len} {k}");
                        continue;
                    };
                    assert!(logits.iter().filter(|x| **x > bound).count() >= k, "{len} {k}");
                }
                assert_eq!(survey.exceeded_by(isa, COLUMNS + 1), None);
            }
        }
    }
}
