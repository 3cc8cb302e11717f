//! Weight packing and linear layers.

use half::{bf16, f16};
use tokenrouter_kernels::cuda::{Buffer, LinearArgs, Ptr, packed_len};

use crate::harness::{Gpu, POISON, Random, bits, close, everywhere, padded, stride_of};

/// The element of a packed weight that holds row `n`, column `k` of a weight with `kb` blocks a row.
fn packed_at(n: usize, k: usize, kb: usize) -> usize {
    let (tile, row, block, column) = (n / 16, n % 16, k / 32, k % 32);
    let (t, j, e) = (column / 8, column % 8 / 4, column % 4);
    let lane = row % 8 * 4 + t;
    let word = row / 8 + e / 2 * 2;
    (((tile * kb + block) * 2 + j) * 32 + lane) * 8 + word * 2 + e % 2
}

#[test]
fn packing_puts_every_element_where_the_linear_kernels_look() {
    let (n, k) = (19, 45);
    let values: Vec<f32> = (0..n * k).map(|i| i as f32 / 7.0 - 50.0).collect();
    everywhere(|gpu| {
        let mut all = Vec::new();
        for kind in 0..3 {
            let src: Vec<u8> = match kind {
                0 => values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(),
                1 => values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
                _ => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            };
            let src = gpu.buffer(&src);
            // Every second tile from tile 1 on, as the up part of gate and up.
            let dst = gpu.buffer(&vec![POISON; 2 * packed_len(n, k)]);
            gpu.pack_into(&dst, src.ptr(), (n, k), (1, 2), kind);
            let found = gpu.read(&dst);
            let mut expected = vec![POISON; found.len()];
            for row in 0..32 {
                for column in 0..64 {
                    let x = if row < n && column < k { values[row * k + column] } else { 0.0 };
                    let x = if kind == 1 { f16::from_f32(x).to_f32() } else { x };
                    expected[packed_at(row % 16 + (row / 16 * 2 + 1) * 16, column, 2)] = bf16::from_f32(x);
                }
            }
            assert!(bits(&found) == bits(&expected), "type {kind}");
            all.push(bits(&found));
        }
        all
    });
}

/// A weight, its inputs, and how to run them.
struct Case {
    n: usize,
    k: usize,
    slices: u32,
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
    x: Vec<f32>,
}

impl Case {
    fn new(random: &mut Random, n: usize, k: usize, slices: u32, rows: usize) -> Self {
        let bias = (n % 2 == 1).then(|| random.bf16s(n));
        Self { n, k, slices, weight: random.bf16s(n * k), bias, x: random.bf16s(rows * k) }
    }

    fn upload<'a>(&'a self, gpu: &'a Gpu) -> Loaded<'a> {
        let bias = self.bias.as_ref().map(|b| gpu.rows(b, self.n, self.n));
        Loaded { gpu, case: self, weight: gpu.pack(&self.weight, self.n, self.k), bias }
    }

    fn expected(&self, row: usize, column: usize) -> f64 {
        let (x, w) = (&self.x[row * self.k..][..self.k], &self.weight[column * self.k..][..self.k]);
        let sum: f64 = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
        sum + self.bias.as_ref().map_or(0.0, |b| f64::from(b[column]))
    }
}

struct Loaded<'a> {
    gpu: &'a Gpu,
    case: &'a Case,
    weight: Buffer<bf16>,
    bias: Option<Buffer<bf16>>,
}

impl Loaded<'_> {
    /// Outputs of chosen rows, in one launch for up to `bound` rows.
    fn run(&self, rows: &[usize], bound: usize) -> Vec<u16> {
        let x: Vec<f32> =
            rows.iter().flat_map(|r| self.case.x[r * self.case.k..][..self.case.k].to_vec()).collect();
        self.run_on(&padded(&x, self.case.k, stride_of(self.case.k)), bound)
    }

    fn args(&self, x: &Buffer<bf16>, y: Ptr<u8>, rows: &Buffer<u32>, y_stride: usize) -> LinearArgs {
        LinearArgs {
            w: self.weight.ptr(),
            x: x.ptr(),
            bias: self.bias.as_ref().map_or(Ptr::NULL, Buffer::ptr),
            y,
            rows: rows.ptr(),
            n: self.case.n as u32,
            kb: self.case.k.div_ceil(32) as u32,
            x_stride: stride_of(self.case.k) as u32,
            y_stride: y_stride as u32,
            slices: self.case.slices,
            f32_out: 0,
            n_real: self.case.n as u32,
        }
    }

    /// The buffer of X ends with its last row, and what lies around the outputs must stay as it is.
    fn run_on(&self, x: &[bf16], bound: usize) -> Vec<u16> {
        let (n, rows) = (self.case.n, x.len() / stride_of(self.case.k));
        let y_stride = n + 3;
        let x = self.gpu.buffer(x);
        let y = self.gpu.buffer(&vec![POISON; (bound + 1) * y_stride]);
        let count = self.gpu.buffer(&[rows as u32]);
        self.gpu.linear(bound as u32, &self.args(&x, y.ptr().cast(), &count, y_stride));
        let all = bits(&self.gpu.read(&y));
        let mut found = Vec::new();
        for (i, row) in all.chunks(y_stride).enumerate() {
            let written = if i < rows { n } else { 0 };
            found.extend(&row[..written]);
            assert!(
                row[written..].iter().all(|x| *x == POISON.to_bits()),
                "row {i}: a write outside of the output"
            );
        }
        found
    }
}

const SHAPES: [(usize, usize, u32); 7] =
    [(5, 7, 4), (5, 7, 8), (48, 96, 8), (100, 200, 4), (70, 333, 8), (455, 64, 4), (33, 1030, 8)];

#[test]
fn linear_layers_are_right_for_every_number_of_rows() {
    let mut random = Random(1);
    let cases: Vec<Case> = SHAPES.iter().map(|(n, k, s)| Case::new(&mut random, *n, *k, *s, 70)).collect();
    everywhere(|gpu| {
        let mut all = Vec::new();
        for case in &cases {
            let loaded = case.upload(gpu);
            for rows in [1, 7, 9, 17, 70] {
                let found = loaded.run(&(0..rows).collect::<Vec<_>>(), rows);
                for (i, x) in found.iter().enumerate() {
                    let (row, column) = (i / case.n, i % case.n);
                    let what = format!("{} x {}, row {row} of {rows}, column {column}", case.n, case.k);
                    close(bf16::from_bits(*x).to_f32(), case.expected(row, column), case.k as f64, &what);
                }
                all.push(found);
            }
        }
        all
    });
}

/// The rule itself: bits of a row alone, in every kernel, anywhere in a batch.
#[test]
fn a_row_has_the_same_bits_in_every_batch() {
    let mut random = Random(2);
    let cases: Vec<Case> =
        SHAPES[2..].iter().map(|(n, k, s)| Case::new(&mut random, *n, *k, *s, 70)).collect();
    everywhere(|gpu| {
        for case in &cases {
            let loaded = case.upload(gpu);
            let all = loaded.run(&(0..70).collect::<Vec<_>>(), 70);
            for (row, expected) in all.chunks(case.n).enumerate().step_by(23) {
                assert!(loaded.run(&[row], 1) == expected, "row {row} alone");
                // A bound far above the rows picks another kernel for the same data.
                for bound in [16, 32, 64, 100] {
                    assert!(loaded.run(&[row], bound) == expected, "row {row} alone, bound {bound}");
                }
                let mut shuffled: Vec<usize> = (0..40).collect();
                shuffled[33] = row;
                let found = loaded.run(&shuffled, 40);
                assert!(&found[33 * case.n..34 * case.n] == expected, "row {row} at place 33");
            }
        }
    });
}

#[test]
fn a_row_of_nan_reaches_no_other_row() {
    let mut random = Random(3);
    let case = Case::new(&mut random, 48, 96, 4, 20);
    everywhere(|gpu| {
        let loaded = case.upload(gpu);
        let clean = loaded.run(&(0..20).collect::<Vec<_>>(), 20);
        let mut x = padded(&case.x, case.k, 96);
        x[5 * 96..6 * 96].fill(POISON);
        let found = loaded.run_on(&x, 20);
        for row in 0..20 {
            let (a, b) = (&found[row * 48..][..48], &clean[row * 48..][..48]);
            assert!(
                if row == 5 { a.iter().all(|x| bf16::from_bits(*x).is_nan()) } else { a == b },
                "row {row}"
            );
        }
    });
}

#[test]
fn logits_are_f32_and_padding_ids_are_impossible() {
    let mut random = Random(4);
    let case = Case { bias: None, ..Case::new(&mut random, 475, 64, 4, 3) };
    everywhere(|gpu| {
        let loaded = case.upload(gpu);
        let x = gpu.rows(&case.x, 64, 64);
        let y = gpu.buffer(&vec![f32::NAN; 3 * 480]);
        let count = gpu.buffer(&[3u32]);
        let args = LinearArgs { f32_out: 1, n_real: 455, ..loaded.args(&x, y.ptr().cast(), &count, 480) };
        gpu.linear(3, &args);
        let found = gpu.read(&y);
        for (row, logits) in found.chunks(480).enumerate() {
            for (id, x) in logits.iter().enumerate() {
                match id {
                    0..455 => {
                        let expected = case.expected(row, id);
                        let error = (f64::from(*x) - expected).abs();
                        assert!(error < 1e-5 * (1.0 + expected.abs()), "row {row}, id {id}: {x}, {expected}");
                    }
                    455..475 => assert_eq!(*x, f32::NEG_INFINITY, "padding id {id}"),
                    _ => assert!(x.is_nan(), "a write outside of the output"),
                }
            }
        }
        found.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
    });
}

/// Row-parallel layers under tensor parallelism: each of two ranks holds half of K in four slices and exchanges f32.
#[test]
fn two_halves_of_k_add_up_to_the_whole_to_the_bit() {
    let mut random = Random(5);
    let case = Case { bias: None, ..Case::new(&mut random, 48, 1024, 8, 9) };
    let half = |values: &[f32], h: usize| -> Vec<f32> {
        values.chunks(1024).flat_map(|row| row[h * 512..][..512].to_vec()).collect()
    };
    let run = |gpu: &Gpu, case: &Case| -> Vec<f32> {
        let loaded = case.upload(gpu);
        let (x, y) = (gpu.rows(&case.x, case.k, case.k), gpu.zeroed::<f32>(9 * 48));
        let count = gpu.buffer(&[9u32]);
        gpu.linear(9, &LinearArgs { f32_out: 1, ..loaded.args(&x, y.ptr().cast(), &count, 48) });
        gpu.read(&y)
    };
    everywhere(|gpu| {
        let whole = run(gpu, &case);
        let halves = [0, 1].map(|h| {
            let (weight, x) = (half(&case.weight, h), half(&case.x, h));
            run(gpu, &Case { n: 48, k: 512, slices: 4, weight, bias: None, x })
        });
        for (i, x) in whole.iter().enumerate() {
            assert_eq!(x.to_bits(), (halves[0][i] + halves[1][i]).to_bits(), "element {i}");
        }
    });
}

/// The order of the contract (N3, N4), made visible: 2^24 + 1 is 2^24 in f32, so each order has its own sum.
#[test]
fn slices_are_cut_at_fixed_blocks_and_added_from_left_to_right() {
    let big = 16_777_216.0f32;
    // Ten 32-blocks: four slices start at blocks 0, 2, 5, 7, eight at 0, 1, 2, 3, 5, 6, 7, 8.
    // Slices, (block, value) pairs, sum.
    type Order<'a> = (u32, &'a [(usize, f32)], f32);
    let cases: [Order; 5] = [
        (4, &[(0, big), (2, 1.0), (5, -big), (7, 1.0)], 1.0),
        (4, &[(1, big), (4, 1.0), (6, -big), (9, 1.0)], 1.0),
        // One chain: blocks 2 and 3 are one slice, the small number meets the large one first.
        (4, &[(0, big), (2, 1.0), (3, 1.0)], big + 2.0),
        // Halves: (big + 1 + 0 + 0) + (-big + 1 + 0 + 0) = big - (big - 1).
        (8, &[(0, big), (1, 1.0), (5, -big), (6, 1.0)], 1.0),
        (8, &[(0, big), (5, 1.0), (6, 1.0)], big + 2.0),
    ];
    everywhere(|gpu| {
        for (slices, parts, expected) in &cases {
            let mut weight = vec![0.0; 320];
            for (block, value) in *parts {
                weight[block * 32] = *value;
            }
            let case = Case { n: 1, k: 320, slices: *slices, weight, bias: None, x: vec![1.0; 320] };
            let loaded = case.upload(gpu);
            let (x, y) = (gpu.rows(&case.x, 320, 320), gpu.zeroed::<f32>(1));
            let count = gpu.buffer(&[1u32]);
            for bound in [8, 16, 32, 64, 65] {
                gpu.linear(bound, &LinearArgs { f32_out: 1, ..loaded.args(&x, y.ptr().cast(), &count, 1) });
                assert_eq!(gpu.read(&y), [*expected], "{slices} slices, {parts:?}, bound {bound}");
            }
        }
    });
}

#[test]
fn no_rows_write_nothing() {
    let mut random = Random(6);
    let case = Case::new(&mut random, 48, 96, 4, 1);
    everywhere(|gpu| assert!(case.upload(gpu).run(&[], 8).is_empty()));
}
