//! Router signals against f64, and their limits.

use crate::common::{ISAS, Random};
use tokenrouter_kernels::signals::{RawSignals, SignalFlags, TOP, signals, signals_on};

/// All signals, the same on all paths.
fn all(logits: &[f32]) -> RawSignals {
    let [a, others @ ..] = ISAS.map(|isa| signals_on(isa, logits, SignalFlags::ALL));
    for b in others {
        for (x, y) in [(a.lse, b.lse), (a.entropy, b.entropy), (a.margin, b.margin)] {
            assert!(x.to_bits() == y.to_bits() || (x.is_nan() && y.is_nan()), "{a:?} {b:?}");
        }
        assert_eq!((a.top_ids, a.top_logits, a.top_len), (b.top_ids, b.top_logits, b.top_len));
    }
    a
}

#[test]
fn signals_are_accurate() {
    let mut random = Random(21);
    for vocab in [2, 7, 8, 9, 63, 1023, 1025, 5000, 151_936] {
        for spread in [0.01, 3.0, 40.0] {
            let mut logits: Vec<f32> = random.vec(vocab).iter().map(|x| x * spread).collect();
            if vocab > 100 {
                logits[vocab - 20..].fill(f32::NEG_INFINITY);
            }
            let found = all(&logits);
            let mut sorted: Vec<(usize, f64)> =
                logits.iter().map(|x| f64::from(*x)).enumerate().filter(|(_, x)| x.is_finite()).collect();
            sorted.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            let max = sorted[0].1;
            let sum: f64 = sorted.iter().map(|(_, x)| (x - max).exp()).sum();
            let lse = max + sum.ln();
            let entropy: f64 = sorted.iter().map(|(_, x)| (lse - x) * (x - lse).exp()).sum();
            let margin = (1.0 - (sorted[1].1 - max).exp()) / sum;
            assert!((f64::from(found.lse) - lse).abs() < 2e-6 * (1.0 + lse.abs()), "{found:?} {lse}");
            assert!(
                (f64::from(found.entropy) - entropy).abs() < 2e-6 * (1.0 + entropy),
                "{found:?} {entropy}"
            );
            assert!((f64::from(found.margin) - margin).abs() < 1e-6, "{found:?} {margin}");
            let len = sorted.len().min(TOP);
            assert_eq!(found.top_len as usize, len);
            for i in 0..len {
                assert_eq!((found.top_ids[i] as usize, f64::from(found.top_logits[i])), sorted[i]);
            }
        }
    }
}

#[test]
fn one_hot_rows_have_no_entropy() {
    for vocab in [1, 8, 77] {
        let mut logits = vec![f32::NEG_INFINITY; vocab];
        logits[vocab / 2] = 3.0;
        let found = all(&logits);
        assert_eq!((found.lse, found.entropy, found.margin, found.top_len), (3.0, 0.0, 1.0, 1));
        assert_eq!(found.top_ids[0] as usize, vocab / 2);
    }
    let mut far = vec![-300.0f32; 50];
    far[9] = 300.0;
    assert_eq!((all(&far).entropy, all(&far).margin), (0.0, 1.0));
}

#[test]
fn equal_logits_are_uniform_and_ties_go_to_low_ids() {
    let found = all(&[2.0; 100]);
    assert!((found.entropy - 100f32.ln()).abs() < 1e-6 && found.margin == 0.0);
    assert_eq!(found.top_ids, [0, 1, 2, 3, 4, 5, 6, 7]);
    let mut logits = [0.0f32; 30];
    logits[29] = 1.0;
    logits[3] = 1.0;
    assert_eq!(all(&logits).top_ids, [3, 29, 0, 1, 2, 4, 5, 6]);
}

#[test]
fn flags_choose_what_is_computed() {
    let logits = [1.0f32, 2.0, 0.5];
    let full = all(&logits);
    let none = signals(&logits, SignalFlags::NONE);
    assert_eq!(none, RawSignals { lse: full.lse, ..RawSignals::default() });
    let entropy = signals(&logits, SignalFlags::ENTROPY);
    assert_eq!(entropy, RawSignals { lse: full.lse, entropy: full.entropy, ..RawSignals::default() });
    let two = signals(&logits, SignalFlags::MARGIN.union(SignalFlags::TOP_K));
    assert_eq!(two, RawSignals { entropy: 0.0, ..full });
}

#[test]
fn broken_rows_do_not_panic() {
    for bad in [f32::NAN, f32::INFINITY] {
        for at in [0, 5, 16] {
            let mut logits = [0.0f32; 17];
            logits[at] = bad;
            let found = all(&logits);
            assert!(found.entropy.is_nan() && !found.lse.is_finite(), "{bad}: {found:?}");
        }
    }
    assert!(all(&[f32::NEG_INFINITY; 12]).lse.is_nan());
    assert_eq!(all(&[]).top_len, 0);
    assert_eq!(all(&[f32::NAN; 20]).top_len, 0);
}
