//! The dot product of a row with itself, in the order of the [module text](super).

use super::Lanes;

/// The sum of the squares of a row.
#[inline(always)]
pub(crate) fn sum_of_squares<V: Lanes>(row: &[f32]) -> f32 {
    let mut sum = V::splat(0.0);
    let whole = row.len() / 8 * 8;
    let mut k = 0;
    while k < whole {
        // SAFETY: k + 8 <= whole <= the row's length.
        let x = unsafe { V::load(row.as_ptr().add(k)) };
        sum = x.mul_add(x, sum);
        k += 8;
    }
    if k < row.len() {
        let mut padded = [0.0f32; 8];
        padded[..row.len() - k].copy_from_slice(&row[k..]);
        // SAFETY: `padded` holds eight values.
        let x = unsafe { V::load(padded.as_ptr()) };
        sum = x.mul_add(x, sum);
    }
    sum.sum()
}
