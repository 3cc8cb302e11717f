//! The tiled linear kernel against the one for few rows: every bit.

use half::bf16;
use tokenrouter_kernels::cuda::{Buffer, KernelId, LinearArgs, Ptr};

use crate::harness::{Gpu, POISON, Random, close, everywhere, padded, stride_of};

/// A layer with its inputs on the device.
struct Layer {
    n: usize,
    k: usize,
    slices: u32,
    weight: Vec<f32>,
    x: Vec<f32>,
    bias: Option<Vec<f32>>,
}

impl Layer {
    fn new(random: &mut Random, n: usize, k: usize, slices: u32, rows: usize) -> Self {
        let bias = (n % 2 == 1).then(|| random.bf16s(n));
        Self { n, k, slices, weight: random.bf16s(n * k), x: random.bf16s(rows * k), bias }
    }

    /// Outputs as bits, of rows in one launch (`chunk` 0) or in launches of `chunk` rows.
    fn run(&self, gpu: &Gpu, x: &[bf16], chunk: usize, f32_out: bool) -> Vec<u32> {
        let (n, stride, y_stride) = (self.n, stride_of(self.k), self.n + 5);
        let rows = x.len() / stride;
        let weight = gpu.pack(&self.weight, n, self.k);
        let bias = self.bias.as_ref().map(|b| gpu.rows(b, n, n));
        let x = gpu.buffer(x);
        let words = if f32_out { 2 } else { 1 };
        let y = gpu.buffer(&vec![u16::MAX; (rows + 1) * y_stride * words]);
        let chunk = if chunk == 0 { rows } else { chunk };
        for first in (0..rows).step_by(chunk) {
            let count = gpu.buffer(&[chunk.min(rows - first) as u32]);
            let args = LinearArgs {
                w: weight.ptr(),
                x: x.ptr().add(first * stride),
                bias: bias.as_ref().map_or(Ptr::NULL, Buffer::ptr),
                y: y.ptr().add(first * y_stride * words).cast(),
                rows: count.ptr(),
                n: n as u32,
                kb: self.k.div_ceil(32) as u32,
                x_stride: stride as u32,
                y_stride: y_stride as u32,
                slices: self.slices,
                f32_out: u32::from(f32_out),
                n_real: n as u32 - 1,
            };
            gpu.linear(chunk as u32, &args);
            gpu.stream.synchronize().unwrap();
        }
        let join = |w: &[u16]| w.iter().rev().fold(0, |all, w| all << 16 | u32::from(*w));
        let all: Vec<u32> = gpu.read(&y).chunks(words).map(join).collect();
        let poison = join(&[u16::MAX; 2][..words]);
        let around = |(i, x): (usize, &u32)| i % y_stride < n && i / y_stride < rows || *x == poison;
        assert!(all.iter().enumerate().all(around), "a write outside of the output");
        all.chunks(y_stride).take(rows).flat_map(|r| r[..n].to_vec()).collect()
    }
}

#[test]
fn many_rows_have_the_bits_of_few() {
    let mut random = Random(41);
    // (features, columns, slices, rows): one tile and several, less than a stage, odd numbers of blocks, few slices.
    let shapes = [
        (5, 7, 8, 65),
        (128, 96, 8, 128),
        (129, 333, 8, 129),
        (250, 64, 4, 300),
        (37, 1030, 8, 66),
        (300, 200, 4, 70),
        (16, 224, 8, 257),
    ];
    let layers: Vec<(Layer, usize)> =
        shapes.iter().map(|(n, k, s, rows)| (Layer::new(&mut random, *n, *k, *s, *rows), *rows)).collect();
    everywhere(|gpu| {
        let mut all = Vec::new();
        for (layer, rows) in &layers {
            let x = padded(&layer.x, layer.k, stride_of(layer.k));
            for f32_out in [false, true] {
                let few = layer.run(gpu, &x, 64, f32_out);
                let many = layer.run(gpu, &x, 0, f32_out);
                assert!(few == many, "{} x {}, {rows} rows, f32 {f32_out}", layer.n, layer.k);
                all.push(many);
            }
            let row = rows - 1;
            for column in [0, layer.n / 2, layer.n - 1] {
                let (x, w) = (&layer.x[row * layer.k..], &layer.weight[column * layer.k..][..layer.k]);
                let sum: f64 = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
                let expected = sum + layer.bias.as_ref().map_or(0.0, |b| f64::from(b[column]));
                let found = bf16::from_bits(all[all.len() - 2][row * layer.n + column] as u16).to_f32();
                close(found, expected, layer.k as f64, "a value of the tiled kernel");
            }
        }
        all
    });
}

/// NaN in one row stays there, and what lies behind the last row, of X or of a tile, is not read.
#[test]
fn a_row_of_nan_reaches_no_other_row_of_its_tile() {
    let mut random = Random(42);
    let layer = Layer::new(&mut random, 48, 160, 8, 100);
    everywhere(|gpu| {
        let mut x = padded(&layer.x, 160, 160);
        let clean = layer.run(gpu, &x, 0, false);
        x[77 * 160..78 * 160].fill(POISON);
        let found = layer.run(gpu, &x, 0, false);
        for row in 0..100 {
            let (a, b) = (&found[row * 48..][..48], &clean[row * 48..][..48]);
            let nan = a.iter().all(|x| bf16::from_bits(*x as u16).is_nan());
            assert!(if row == 77 { nan } else { a == b }, "row {row}");
        }
        found
    });
}

#[test]
fn the_tiled_kernel_fits_an_a100() {
    let shared = KernelId::LinearTiled.info().shared;
    assert_eq!(shared, (3 * 32 + 64) * 1024);
    assert!(shared <= 163 * 1024);
}
