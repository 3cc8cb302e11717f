//! The largest logits of a row, as learned router heads read them.

use crate::cpu::{Isa, Kernel, Lanes, dispatch, none_above};

/// Fills `out` with the largest values of `logits` in descending order and returns how many there are: all of `out`,
/// unless fewer logits lie above negative infinity; the rest of `out` is then negative infinity. NaN entries are passed
/// over. Only values are kept, so ties need no rule.
pub fn top_values(isa: Isa, logits: &[f32], out: &mut [f32]) -> usize {
    out.fill(f32::NEG_INFINITY);
    if out.is_empty() { 0 } else { dispatch(isa, Top { logits, out }) }
}

struct Top<'a> {
    logits: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Top<'_> {
    type Output = usize;

    #[inline(always)]
    fn run<V: Lanes>(self) -> usize {
        let last = self.out.len() - 1;
        let mut len = 0;
        for chunk in self.logits.chunks(8) {
            // The list starts full of negative infinities, so its last entry is the bar from the first chunk on.
            if none_above::<V>(chunk, self.out[last]) {
                continue;
            }
            for x in chunk {
                if *x > self.out[last] {
                    let at = self.out[..last].partition_point(|kept| kept >= x);
                    self.out.copy_within(at..last, at + 1);
                    self.out[at] = *x;
                    len += 1;
                }
            }
        }
        len.min(last + 1)
    }
}
