//! Products with 8-bit weights: all paths against the twin to the bit, against the same weights stored as f32, and rows
//! alone against rows in batches.

use crate::common::{Random, Weights, everywhere, same_bits};
use tokenrouter_kernels::DType;
use tokenrouter_kernels::cpu::{self, Ctx, Int8Ref, Isa, Reduce, WorkerGroup, scalar};

const REDUCES: [Reduce; 3] = [Reduce::Whole, Reduce::Segments4, Reduce::Segments2];

/// 8-bit weights, at an odd address.
struct Int8 {
    rows: usize,
    cols: usize,
    bytes: Vec<u8>,
}

impl Int8 {
    /// Blocks of very different sizes, one in seven of zeros.
    fn random(random: &mut Random, rows: usize, cols: usize) -> Int8 {
        let size = |i: usize| [1.0, 1e-3, 40.0, 0.02, 0.0, 3e-6, 1e-40][i / cpu::INT8_BLOCK % 7];
        let values: Vec<f32> =
            random.vec(rows * cols).into_iter().enumerate().map(|(i, x)| x * size(i)).collect();
        let w = Weights::new(DType::F32, rows, cols, &values);
        let mut bytes = vec![0; 1 + Int8Ref::bytes(rows, cols).unwrap()];
        let workers = WorkerGroup::new("test", 1).unwrap();
        cpu::quantise(Ctx { isa: Isa::Portable, workers: &workers }, w.get(), &mut bytes[1..]).unwrap();
        Int8 { rows, cols, bytes }
    }

    fn get(&self) -> Int8Ref<'_> {
        Int8Ref::new(self.rows, self.cols, &self.bytes[1..]).unwrap()
    }

    /// The same weights as f32.
    fn stored(&self) -> Weights {
        let w = self.get();
        let values: Vec<f32> =
            (0..self.rows * self.cols).map(|i| w.get(i / self.cols, i % self.cols)).collect();
        Weights::new(DType::F32, self.rows, self.cols, &values)
    }
}

/// K whose segments begin at multiples of 32, of 16, of 8 and of less, with and without a last block that is cut.
const COLUMNS: [usize; 22] =
    [1, 2, 5, 7, 8, 9, 16, 24, 31, 32, 33, 36, 40, 64, 72, 100, 128, 160, 192, 259, 544, 576];

#[test]
fn products_equal_their_twin_and_those_of_the_same_weights_as_f32() {
    let mut random = Random(1);
    for (case, k) in COLUMNS.into_iter().enumerate() {
        for (n, t) in [(1, 1), (9, 1), (8, 2), (66, 3), (9, 7), (17, 15), (8, 50)] {
            let reduce = REDUCES[(case + n + t) % 3];
            let (w, x) = (Int8::random(&mut random, n, k), random.vec(t * k));
            let stored = w.stored();
            let bias = Weights::random(&mut random, DType::Bf16, 1, n);
            let bias = (t % 2 == 1).then(|| bias.get());
            let mut expected = vec![f32::NAN; t * n];
            scalar::linear(&x, w.get(), bias, reduce, &mut expected);
            everywhere(&[1], |ctx| {
                let what = format!("{reduce:?} T {t} N {n} K {k} {:?}", ctx.isa);
                let mut out = vec![f32::NAN; t * n];
                cpu::linear(ctx, &x, w.get(), bias, reduce, &mut out);
                same_bits(&out, &expected, &what);
                cpu::linear(ctx, &x, stored.get(), bias, reduce, &mut out);
                same_bits(&out, &expected, &format!("{what}, stored as f32"));
            });
        }
    }
}

/// Every reduction at K on both sides of a stretch, for counts of activations on both sides of the two ways of a product.
#[test]
fn products_equal_their_twin_for_any_number_of_activations() {
    let mut random = Random(2);
    for t in (1..=14).chain([24, 47, 48, 49, 97]) {
        for (n, k) in [(8, 576), (13, 1100), (9, 2112)] {
            let (w, x) = (Int8::random(&mut random, n, k), random.vec(t * k));
            for reduce in REDUCES {
                let mut expected = vec![f32::NAN; t * n];
                scalar::linear(&x, w.get(), None, reduce, &mut expected);
                everywhere(&[1], |ctx| {
                    let mut out = vec![f32::NAN; t * n];
                    cpu::linear(ctx, &x, w.get(), None, reduce, &mut out);
                    same_bits(&out, &expected, &format!("{reduce:?} T {t} N {n} K {k} {:?}", ctx.isa));
                });
            }
        }
    }
}

#[test]
fn products_are_the_same_on_any_number_of_threads() {
    let mut random = Random(3);
    for (t, n, k) in [(1, 777, 1031), (5, 130, 1024), (260, 37, 300)] {
        let (w, x) = (Int8::random(&mut random, n, k), random.vec(t * k));
        let mut expected = vec![0.0; t * n];
        scalar::linear(&x, w.get(), None, Reduce::Segments4, &mut expected);
        everywhere(&[1, 2, 3, 4], |ctx| {
            let mut out = vec![f32::NAN; t * n];
            cpu::linear(ctx, &x, w.get(), None, Reduce::Segments4, &mut out);
            same_bits(&out, &expected, &format!("T {t} {:?} {} threads", ctx.isa, ctx.workers.threads()));
        });
    }
}

#[test]
fn rows_do_not_see_their_batch() {
    let mut random = Random(4);
    let (n, k) = (130, 515);
    let (w, x) = (Int8::random(&mut random, n, k), random.vec(17 * k));
    everywhere(&[1, 2], |ctx| {
        let product = |x: &[f32]| {
            let mut out = vec![0.0; x.len() / k * n];
            cpu::linear(ctx, x, w.get(), None, Reduce::Whole, &mut out);
            out
        };
        let alone: Vec<Vec<f32>> = x.chunks(k).map(product).collect();
        for t in 1..=17 {
            for (row, expected) in product(&x[..t * k]).chunks(n).zip(&alone) {
                same_bits(row, expected, &format!("T {t} {:?}", ctx.isa));
            }
        }
    });
}

/// Quantising is the same for any number of threads.
#[test]
fn quantising_gives_the_same_bytes_on_any_number_of_threads() {
    let mut random = Random(5);
    let (rows, cols) = (301, 1000);
    let w = Weights::random(&mut random, DType::Bf16, rows, cols);
    let mut all = Vec::new();
    everywhere(&[1, 2, 3], |ctx| {
        let mut out = vec![0; Int8Ref::bytes(rows, cols).unwrap()];
        cpu::quantise(ctx, w.get(), &mut out).unwrap();
        all.push(out);
    });
    assert!(all.iter().all(|out| *out == all[0]));
    let view = Int8Ref::new(rows, cols, &all[0]).unwrap();
    let worst = (0..rows * cols)
        .map(|i| (f64::from(view.get(i / cols, i % cols)) - w.value(i)).abs())
        .fold(0.0, f64::max);
    assert!(worst > 1e-3 && worst < 1.01 / 254.0, "{worst}: half a step of blocks that reach 1");
}
