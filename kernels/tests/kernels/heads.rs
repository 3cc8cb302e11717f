//! What the learned router heads need: LayerNorm, GELU and the list of largest logits.

use crate::common::{DTYPES, ISAS, Random, Weights, everywhere, same_bits};
use tokenrouter_kernels::cpu::{self, gelu_one, scalar};
use tokenrouter_kernels::top::top_values;

#[test]
fn layer_norm_equals_its_twin_and_the_formula() {
    let mut random = Random(31);
    for (case, h) in [1, 3, 7, 8, 9, 16, 45, 100, 1031].into_iter().enumerate() {
        let dtype = DTYPES[case % 3];
        let (w, b) = (Weights::random(&mut random, dtype, 1, h), Weights::random(&mut random, dtype, 1, h));
        let rows = 5;
        let x: Vec<f32> = random.vec(rows * h).iter().map(|x| 3.0 * x + 2.0).collect();
        let mut expected = vec![f32::NAN; rows * h];
        scalar::layer_norm(&x, w.get(), b.get(), 1e-5, &mut expected);
        everywhere(&[1, 2], |ctx| {
            let mut out = vec![f32::NAN; rows * h];
            cpu::layer_norm(ctx, &x, w.get(), b.get(), 1e-5, &mut out);
            same_bits(&out, &expected, &format!("H {h} {:?}", ctx.isa));
        });
        let mut ones = vec![0.0; rows * h];
        let (one, zero) =
            (Weights::new(dtype, 1, h, &vec![1.0; h]), Weights::new(dtype, 1, h, &vec![0.0; h]));
        scalar::layer_norm(&x, one.get(), zero.get(), 1e-5, &mut ones);
        for (x, y) in x.chunks_exact(h).zip(ones.chunks_exact(h)) {
            let mean = x.iter().map(|x| f64::from(*x)).sum::<f64>() / h as f64;
            let var = x.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / h as f64;
            for (x, y) in x.iter().zip(y) {
                let truth = (f64::from(*x) - mean) / (var + 1e-5).sqrt();
                assert!((truth - f64::from(*y)).abs() < 2e-5, "H {h}: {y}, true {truth}");
            }
        }
    }
}

/// `Phi(x)` by Simpson's rule over the density, which shares nothing with the kernel.
fn phi(x: f64) -> f64 {
    let steps = 4000;
    let (a, b) = (-14.0f64.max(x.abs() + 1.0), -x.abs());
    let width = (b - a) / f64::from(steps);
    let density = |x: f64| (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let inner: f64 =
        (1..steps).map(|i| density(a + width * f64::from(i)) * if i % 2 == 1 { 4.0 } else { 2.0 }).sum();
    let tail = (density(a) + inner + density(b)) * width / 3.0;
    if x < 0.0 { tail } else { 1.0 - tail }
}

#[test]
fn gelu_is_exact_to_single_precision_on_every_path() {
    let xs: Vec<f32> = (-1203..1210).map(|i| i as f32 * 0.01).chain([0.0, -0.0, 1e-30, -1e-30]).collect();
    let expected: Vec<f32> = xs.iter().map(|x| gelu_one(*x)).collect();
    everywhere(&[1, 3], |ctx| {
        let mut out = xs.clone();
        cpu::gelu(ctx, &mut out);
        same_bits(&out, &expected, &format!("{:?}", ctx.isa));
    });
    for (x, y) in xs.iter().zip(&expected) {
        let truth = f64::from(*x) * phi(f64::from(*x));
        let error = (f64::from(*y) - truth).abs();
        assert!(error < 3e-7 * f64::from(x.abs()).max(0.1), "gelu({x}) = {y}, true {truth}");
    }
    assert!(gelu_one(f32::NAN).is_nan());
    assert_eq!((gelu_one(100.0), gelu_one(-100.0)), (100.0, 0.0));
}

#[test]
fn top_values_are_those_of_a_sort() {
    let mut random = Random(33);
    for (n, k) in [(1, 1), (5, 9), (100, 100), (455, 100), (1000, 7), (5003, 100)] {
        let mut logits = random.vec(n);
        // Ties, NaN and masked entries among them.
        for i in 0..n / 3 {
            logits[i * 3] = (logits[i * 3] * 8.0).round();
        }
        if n > 50 {
            (logits[7], logits[9]) = (f32::NAN, f32::NEG_INFINITY);
        }
        let mut sorted: Vec<f32> =
            logits.iter().copied().filter(|x| !x.is_nan() && *x > f32::NEG_INFINITY).collect();
        sorted.sort_by(|a, b| b.total_cmp(a));
        sorted.truncate(k);
        for isa in ISAS {
            let mut out = vec![f32::NAN; k];
            let len = top_values(isa, &logits, &mut out);
            assert_eq!(len, sorted.len(), "{n} {k} {isa:?}");
            assert_eq!(out[..len], sorted[..], "{n} {k} {isa:?}");
            assert!(out[len..].iter().all(|x| *x == f32::NEG_INFINITY));
        }
    }
    let rising: Vec<f32> = (0..300).map(|i| i as f32).collect();
    let mut out = [0.0; 3];
    assert_eq!((top_values(ISAS[0], &rising, &mut out), out), (3, [299.0, 298.0, 297.0]));
    assert_eq!(top_values(ISAS[0], &rising, &mut []), 0);
}
