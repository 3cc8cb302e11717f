//! Log-probabilities against f64, and their limits.

use crate::common::{ISAS, Random};
use tokenrouter_kernels::logprobs::{IMPOSSIBLE, LogSoftmax, top_ids};

/// The likeliest ids, the same on all paths.
fn top(logits: &[f32], count: usize) -> Vec<(u32, f32)> {
    let [a, b, c] = ISAS.map(|isa| {
        let mut out = vec![(0, 0.0); count];
        let len = top_ids(isa, logits, &mut out);
        out.truncate(len);
        out
    });
    assert!(a == b && b == c, "{a:?} {b:?} {c:?}");
    a
}

#[test]
fn log_probabilities_and_lists_are_those_of_a_sort_in_f64() {
    let mut random = Random(41);
    for vocab in [1, 2, 7, 9, 63, 1025, 5000] {
        for spread in [0.01f32, 3.0, 40.0] {
            // Rounded, so that ties are frequent.
            let mut logits: Vec<f32> =
                random.vec(vocab).iter().map(|x| (x * 32.0).round() / 32.0 * spread).collect();
            logits[vocab - vocab / 5..].fill(f32::NEG_INFINITY);
            let max = logits.iter().fold(f64::NEG_INFINITY, |m, x| m.max(f64::from(*x)));
            let sum: f64 = logits.iter().map(|x| (f64::from(*x) - max).exp()).sum();
            let [a, b, c] = ISAS.map(|isa| LogSoftmax::new(isa, &logits).unwrap());
            assert!(a == b && b == c, "{a:?} {b:?} {c:?}");
            for x in &logits {
                let (found, want) = (a.of(*x), f64::from(*x) - max - sum.ln());
                assert!(found <= 0.0 && found.is_finite());
                assert!((f64::from(found) - want.max(-9999.0)).abs() <= 2e-6 * (1.0 + want.abs().min(1e4)));
            }
            let mut sorted: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
            sorted.retain(|(_, x)| *x > f32::NEG_INFINITY);
            sorted.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            for count in [0, 1, 3, 20] {
                assert_eq!(top(&logits, count), sorted[..count.min(sorted.len())], "{vocab} {spread}");
            }
        }
    }
}

#[test]
fn what_cannot_occur_has_a_number_and_what_is_none_has_no_softmax() {
    let isa = ISAS[0];
    let masked = [3.0, f32::NEG_INFINITY, 2.0];
    let softmax = LogSoftmax::new(isa, &masked).unwrap();
    assert_eq!(softmax.of(f32::NEG_INFINITY), IMPOSSIBLE);
    assert_eq!(LogSoftmax::new(isa, &[f32::NEG_INFINITY, 5.0]).unwrap().of(5.0), 0.0, "certain");
    for broken in [f32::NAN, f32::INFINITY] {
        assert!(LogSoftmax::new(isa, &[1.0, broken, 2.0]).is_none());
    }
    assert!(LogSoftmax::new(isa, &[f32::NEG_INFINITY; 9]).is_none() && LogSoftmax::new(isa, &[]).is_none());
    // A NaN is in no list, and hides nobody.
    let mut row = vec![f32::NAN; 17];
    (row[3], row[16]) = (1.0, 2.0);
    assert_eq!(top(&row, 5), [(16, 2.0), (3, 1.0)]);
}
