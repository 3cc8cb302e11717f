//! Embedding, norms, linear layers and the gate: all paths against their twins to the bit, against
//! naive f64 within bounds, and rows alone against rows in batches.

use crate::common::{DTYPES, Random, Weights, everywhere, same_bits};
use tokenrouter_kernels::DType;
use tokenrouter_kernels::cpu::{self, Reduce, scalar};

const SIZES: [usize; 14] = [1, 2, 3, 5, 7, 8, 9, 15, 16, 31, 36, 64, 100, 259];

#[test]
fn linear_equals_its_twin() {
    let mut random = Random(1);
    for (case, k) in SIZES.into_iter().enumerate() {
        for (n, t) in [(1, 1), (3, 2), (4, 3), (5, 4), (9, 7), (66, 1)] {
            let dtype = DTYPES[(case + n + t) % 3];
            let w = Weights::random(&mut random, dtype, n, k);
            let bias = Weights::random(&mut random, DTYPES[t % 3], 1, n);
            let x = random.vec(t * k);
            for (reduce, bias) in [
                (Reduce::Whole, None),
                (Reduce::Segments4, Some(bias.get())),
                (Reduce::Segments2, None),
                (Reduce::Whole, Some(bias.get())),
            ] {
                let mut expected = vec![f32::NAN; t * n];
                scalar::linear(&x, w.get(), bias, reduce, &mut expected);
                everywhere(&[1], |ctx| {
                    let mut out = vec![f32::NAN; t * n];
                    cpu::linear(ctx, &x, w.get(), bias, reduce, &mut out);
                    let what = format!("{dtype:?} {reduce:?} T {t} N {n} K {k} {:?}", ctx.isa);
                    same_bits(&out, &expected, &what);
                });
            }
        }
    }
}

/// Counts of activations on both sides of every border between two ways of a product, K on both sides of a stretch.
#[test]
fn linear_equals_its_twin_for_any_number_of_activations() {
    let mut random = Random(4);
    for t in (1..=14).chain([24, 25, 47, 48, 49, 95, 97, 200]) {
        for (n, k) in [(7, 530), (8, 512), (13, 1100), (27, 2100)] {
            let dtype = DTYPES[(t + n) % 3];
            let w = Weights::random(&mut random, dtype, n, k);
            let bias = Weights::random(&mut random, dtype, 1, n);
            let x = random.vec(t * k);
            for reduce in [Reduce::Whole, Reduce::Segments4, Reduce::Segments2] {
                let mut expected = vec![f32::NAN; t * n];
                scalar::linear(&x, w.get(), Some(bias.get()), reduce, &mut expected);
                everywhere(&[1], |ctx| {
                    let mut out = vec![f32::NAN; t * n];
                    cpu::linear(ctx, &x, w.get(), Some(bias.get()), reduce, &mut out);
                    let what = format!("{dtype:?} {reduce:?} T {t} N {n} K {k} {:?}", ctx.isa);
                    same_bits(&out, &expected, &what);
                });
            }
        }
    }
}

#[test]
fn linear_of_parallel_size_equals_its_twin_on_any_number_of_threads() {
    let mut random = Random(2);
    for (dtype, t, n, k) in
        [(DType::Bf16, 1, 777, 1031), (DType::F16, 5, 130, 1024), (DType::F32, 260, 37, 300)]
    {
        let w = Weights::random(&mut random, dtype, n, k);
        let x = random.vec(t * k);
        let mut expected = vec![0.0; t * n];
        scalar::linear(&x, w.get(), None, Reduce::Segments4, &mut expected);
        everywhere(&[1, 2, 3, 4], |ctx| {
            let mut out = vec![f32::NAN; t * n];
            cpu::linear(ctx, &x, w.get(), None, Reduce::Segments4, &mut out);
            same_bits(&out, &expected, &format!("{dtype:?} {:?} {}", ctx.isa, ctx.workers.threads()));
        });
    }
}

/// Enough weight rows for planes of several rows, and for several stretches of them that tiles of activations meet in turn;
/// columns on both sides of where planes begin to pay.
#[test]
fn linear_of_planes_equals_its_twin() {
    let mut random = Random(5);
    for t in [1, 4, 6, 7, 8, 9, 12, 15, 16] {
        for (n, k) in [(16, 700), (93, 2100), (157, 32 * t), (157, 32 * t - 1)] {
            let dtype = DTYPES[(t + n + k) % 3];
            let w = Weights::random(&mut random, dtype, n, k);
            let bias = Weights::random(&mut random, dtype, 1, n);
            let x = random.vec(t * k);
            for (reduce, bias) in [(Reduce::Whole, None), (Reduce::Segments4, Some(bias.get()))] {
                let mut expected = vec![f32::NAN; t * n];
                scalar::linear(&x, w.get(), bias, reduce, &mut expected);
                everywhere(&[1, 2, 3], |ctx| {
                    let mut out = vec![f32::NAN; t * n];
                    cpu::linear(ctx, &x, w.get(), bias, reduce, &mut out);
                    let what = format!("{dtype:?} {reduce:?} T {t} N {n} K {k} {:?}", ctx.isa);
                    same_bits(&out, &expected, &what);
                });
            }
        }
    }
}

#[test]
fn linear_rows_do_not_see_their_batch() {
    let mut random = Random(3);
    let (n, k) = (130, 515);
    let w = Weights::random(&mut random, DType::Bf16, n, k);
    let x = random.vec(17 * k);
    everywhere(&[1, 2, 4], |ctx| {
        let alone: Vec<Vec<f32>> = x
            .chunks(k)
            .map(|row| {
                let mut out = vec![0.0; n];
                cpu::linear(ctx, row, w.get(), None, Reduce::Whole, &mut out);
                out
            })
            .collect();
        for t in 1..=17 {
            let mut out = vec![0.0; t * n];
            cpu::linear(ctx, &x[..t * k], w.get(), None, Reduce::Whole, &mut out);
            for (row, expected) in out.chunks(n).zip(&alone) {
                same_bits(row, expected, &format!("T {t} {:?}", ctx.isa));
            }
        }
    });
}

/// A row of infinities and NaN beside a clean one changes nothing in the clean one.
#[test]
fn linear_rows_do_not_see_a_broken_neighbour() {
    let mut random = Random(4);
    let (n, k) = (9, 37);
    let w = Weights::random(&mut random, DType::F16, n, k);
    let mut x = random.vec(3 * k);
    everywhere(&[1], |ctx| {
        let mut alone = vec![0.0; n];
        cpu::linear(ctx, &x[k..2 * k], w.get(), None, Reduce::Whole, &mut alone);
        x[..k].fill(f32::NAN);
        x[2 * k..].fill(f32::INFINITY);
        let mut out = vec![0.0; 3 * n];
        cpu::linear(ctx, &x, w.get(), None, Reduce::Whole, &mut out);
        same_bits(&out[n..2 * n], &alone, "the clean row");
        assert!(out[..n].iter().all(|x| x.is_nan()));
    });
}

/// Ranks that hold halves or quarters of K join to the bits of one rank that holds all; the bias is added once.
#[test]
fn partial_products_of_ranks_join_to_the_same_bits() {
    let mut random = Random(5);
    for (k, n, t) in [(32, 6, 1), (36, 5, 3), (52, 6, 2), (512, 9, 5), (64, 260, 600)] {
        let (values, x) = (random.vec(n * k), random.vec(t * k));
        let whole = Weights::new(DType::F32, n, k, &values);
        let bias = Weights::random(&mut random, DType::Bf16, 1, n);
        everywhere(&[1, 3], |ctx| {
            let mut expected = vec![0.0; t * n];
            cpu::linear(ctx, &x, whole.get(), Some(bias.get()), Reduce::Segments4, &mut expected);
            for ranks in [2, 4] {
                let part = k / ranks;
                let columns = |all: &[f32], rank: usize| -> Vec<f32> {
                    all.chunks(k).flat_map(|row| row[rank * part..(rank + 1) * part].to_vec()).collect()
                };
                let partial: Vec<Vec<f32>> = (0..ranks)
                    .map(|rank| {
                        let w = Weights::new(DType::F32, n, part, &columns(&values, rank));
                        let mut out = vec![0.0; t * n];
                        let reduce = Reduce::of_rank(ranks);
                        cpu::linear(ctx, &columns(&x, rank), w.get(), None, reduce, &mut out);
                        out
                    })
                    .collect();
                let partial: Vec<&[f32]> = partial.iter().map(Vec::as_slice).collect();
                let mut joined = vec![f32::NAN; t * n];
                cpu::fold(ctx, &partial, Some(bias.get()), n, &mut joined);
                same_bits(&joined, &expected, &format!("{ranks} ranks, K {k}, T {t}"));
            }
        });
    }
}

#[test]
fn linear_is_accurate() {
    let mut random = Random(6);
    let (t, n, k) = (3, 11, 2051);
    for dtype in DTYPES {
        let w = Weights::random(&mut random, dtype, n, k);
        let x = random.vec(t * k);
        for reduce in [Reduce::Whole, Reduce::Segments4] {
            everywhere(&[1], |ctx| {
                let mut out = vec![0.0; t * n];
                cpu::linear(ctx, &x, w.get(), None, reduce, &mut out);
                for (i, found) in out.iter().enumerate() {
                    let terms = (0..k).map(|j| f64::from(x[i / n * k + j]) * w.value(i % n * k + j));
                    let size: f64 = terms.clone().map(f64::abs).sum();
                    let error = (f64::from(*found) - terms.sum::<f64>()).abs() / size;
                    assert!(error < 2e-7, "{dtype:?} {reduce:?}: error {error:e} of the absolute sum");
                }
            });
        }
    }
}

#[test]
fn norms_equal_their_twins_and_are_accurate() {
    let mut random = Random(7);
    for (case, h) in SIZES.into_iter().chain([2048]).enumerate() {
        let t = 1 + case % 5;
        let weight = Weights::random(&mut random, DTYPES[case % 3], 1, h);
        let (x, delta, eps) = (random.vec(t * h), random.vec(t * h), 1e-6);
        let mut plain = vec![0.0; t * h];
        scalar::rms_norm(&x, weight.get(), eps, &mut plain);
        let (mut sum, mut added) = (x.clone(), vec![0.0; t * h]);
        scalar::add_rms_norm(&mut sum, &delta, weight.get(), eps, &mut added);
        everywhere(&[1, 3], |ctx| {
            let mut out = vec![f32::NAN; t * h];
            cpu::rms_norm(ctx, &x, weight.get(), eps, &mut out);
            same_bits(&out, &plain, &format!("norm, H {h}"));
            let mut residual = x.clone();
            cpu::add_rms_norm(ctx, &mut residual, &delta, weight.get(), eps, &mut out);
            same_bits(&residual, &sum, &format!("residual, H {h}"));
            same_bits(&out, &added, &format!("norm of the residual, H {h}"));
        });
        for (i, found) in plain.iter().enumerate() {
            let row = &x[i / h * h..(i / h + 1) * h];
            let mean = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / h as f64;
            let truth = f64::from(x[i]) / (mean + f64::from(eps)).sqrt() * weight.value(i % h);
            assert!((f64::from(*found) - truth).abs() <= 1e-6 * truth.abs() + 1e-9, "H {h}: {found} {truth}");
        }
    }
}

/// Activations whose squares leave the range of f16 (bug log L12).
#[test]
fn norm_of_large_activations_stays_finite() {
    let weight = Weights::new(DType::F16, 1, 16, &[1.0; 16]);
    everywhere(&[1], |ctx| {
        let mut out = [0.0; 16];
        cpu::rms_norm(ctx, &[60000.0; 16], weight.get(), 1e-6, &mut out);
        assert!(out.iter().all(|x| (x - 1.0).abs() < 1e-6), "{out:?}");
    });
}

#[test]
fn embedding_equals_its_twin() {
    let mut random = Random(8);
    for h in SIZES {
        for dtype in DTYPES {
            let table = Weights::random(&mut random, dtype, 7, h);
            let ids = [6, 0, 3, 3];
            let mut expected = vec![0.0; 4 * h];
            scalar::embed(table.get(), &ids, &mut expected);
            assert_eq!(f64::from(expected[0]), table.value(6 * h));
            everywhere(&[1], |ctx| {
                let mut out = vec![f32::NAN; 4 * h];
                cpu::embed(ctx, table.get(), &ids, &mut out);
                same_bits(&out, &expected, &format!("H {h} {dtype:?}"));
            });
        }
    }
}

#[test]
#[should_panic(expected = "token id 7")]
fn embedding_checks_ids() {
    let table = Weights::new(DType::F32, 7, 2, &[0.0; 14]);
    let workers = cpu::WorkerGroup::new("test", 1).unwrap();
    cpu::embed(cpu::Ctx { isa: cpu::Isa::Portable, workers: &workers }, table.get(), &[7], &mut [0.0; 2]);
}

#[test]
fn silu_equals_its_twin_and_is_accurate() {
    let mut random = Random(9);
    for len in SIZES.into_iter().chain([40_000]) {
        let mut gate: Vec<f32> = random.vec(len).iter().map(|x| x * 30.0).collect();
        gate[0] = -0.0;
        gate[len / 2] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -95.0][len % 4];
        let up = random.vec(len);
        let mut expected = gate.clone();
        scalar::silu_mul(&mut expected, &up);
        everywhere(&[1, 3], |ctx| {
            let mut out = gate.clone();
            cpu::silu_mul(ctx, &mut out, &up);
            same_bits(&out, &expected, &format!("silu of {len} {:?}", ctx.isa));
        });
        for i in (0..len).filter(|i| gate[*i].is_finite()) {
            let g = f64::from(gate[i]);
            let truth = g / (1.0 + (-g).exp()) * f64::from(up[i]);
            let error = (f64::from(expected[i]) - truth).abs();
            assert!(error <= 5e-7 * truth.abs() + 1e-30, "silu({g}) * {}: {} {truth}", up[i], expected[i]);
        }
    }
}
