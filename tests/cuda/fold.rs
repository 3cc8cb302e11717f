//! What ranks hold, joined: partial sums and logits.

use half::bf16;
use tokenrouter_kernels::cuda::{FoldArgs, LinearArgs, Ptr, UnshardArgs};

use crate::harness::{Gpu, POISON, Random, bits, everywhere};

/// Runs the fold over partials `[ranks][capacity][stride]`, with poison around the output's rows.
fn fold(
    gpu: &Gpu,
    partials: &[f32],
    bias: Option<&[f32]>,
    shape: (usize, usize, usize),
    rows: usize,
) -> Vec<u16> {
    let (ranks, n, stride) = shape;
    let step = partials.len() / ranks;
    let (partials, count) = (gpu.buffer(partials), gpu.buffer(&[rows as u32]));
    let bias = bias.map(|b| gpu.rows(b, n, n));
    let delta = gpu.buffer(&vec![POISON; (rows + 1) * stride]);
    let args = FoldArgs {
        partials: partials.ptr(),
        bias: bias.as_ref().map_or(Ptr::NULL, |b| b.ptr()),
        delta: delta.ptr(),
        rows: count.ptr(),
        ranks: ranks as u32,
        rank_step: step as u32,
        n: n as u32,
        stride: stride as u32,
    };
    // SAFETY: the buffers have the shapes in `args`; the result is waited for.
    unsafe { gpu.kernels.fold_ranks(&gpu.stream, (step / stride) as u32, &args) }.unwrap();
    let found = bits(&gpu.read(&delta));
    assert!(found[rows * stride..].iter().all(|x| *x == POISON.to_bits()), "a write behind the last row");
    found[..rows * stride].to_vec()
}

#[test]
fn partial_sums_are_added_in_the_order_of_the_ranks_and_rounded_once() {
    let mut random = Random(21);
    for ranks in 1..=8 {
        let (n, stride, capacity) = (37 + ranks, 64, 9);
        let partials = random.vec(ranks * capacity * stride);
        let bias = random.bf16s(n);
        everywhere(|gpu| {
            let mut all = Vec::new();
            for bias in [None, Some(&bias[..])] {
                for rows in [0, 1, capacity] {
                    let found = fold(gpu, &partials, bias, (ranks, n, stride), rows);
                    for (i, found) in found.iter().enumerate() {
                        let column = i % stride;
                        let mut sum = partials[i];
                        for rank in 1..ranks {
                            sum += partials[rank * capacity * stride + i];
                        }
                        sum += bias.map_or(-0.0, |b| b.get(column).copied().unwrap_or(0.0));
                        let expected = if column < n { sum } else { 0.0 };
                        assert_eq!(*found, bf16::from_f32(expected).to_bits(), "{ranks} ranks, element {i}");
                    }
                    all.extend(found);
                }
            }
            all
        });
    }
}

/// The order, made visible: 2^24 + 1 is 2^24 in f32.
#[test]
fn ranks_are_added_from_the_first_to_the_last() {
    let big = 16_777_216.0;
    let cases: [(&[f32], f32); 3] =
        [(&[big, 1.0, 1.0, -big], 0.0), (&[1.0, 1.0, big, -big], 2.0), (&[1.0, big, -big, 1.0], 1.0)];
    everywhere(|gpu| {
        for (ranks, expected) in &cases {
            let partials: Vec<f32> = ranks.iter().flat_map(|x| [*x; 32]).collect();
            let found = fold(gpu, &partials, Some(&[0.5; 32]), (4, 32, 32), 1);
            assert_eq!(found, [bf16::from_f32(expected + 0.5).to_bits(); 32], "{ranks:?}");
        }
    });
}

/// Columns behind the last one are neither read into the output nor harmful, whatever they hold.
#[test]
fn poison_in_the_padding_of_partials_stays_there() {
    let mut partials = vec![f32::NAN; 2 * 3 * 32];
    for row in partials.chunks_exact_mut(32) {
        row[..5].fill(1.5);
    }
    everywhere(|gpu| {
        let found = fold(gpu, &partials, None, (2, 5, 32), 3);
        for row in found.chunks_exact(32) {
            assert!(row[..5].iter().all(|x| *x == bf16::from_f32(3.0).to_bits()));
            assert!(row[5..].iter().all(|x| *x == 0));
        }
    });
}

/// A layer over half of K in four slices.
fn partial_layer(
    gpu: &Gpu,
    (n, k): (usize, usize),
    weight: &[f32],
    x: &[f32],
    rows: usize,
    bound: u32,
) -> Vec<f32> {
    let (w, x) = (gpu.pack(weight, n, k), gpu.rows(x, k, k));
    let (y, count) = (gpu.zeroed::<f32>(rows * 64), gpu.buffer(&[rows as u32]));
    let args = LinearArgs {
        w: w.ptr(),
        x: x.ptr(),
        bias: Ptr::NULL,
        y: y.ptr().cast(),
        rows: count.ptr(),
        n: n as u32,
        kb: (k / 32) as u32,
        x_stride: k as u32,
        y_stride: 64,
        slices: 4,
        f32_out: 1,
        n_real: n as u32,
    };
    gpu.linear(bound, &args);
    gpu.read(&y)
}

/// The whole of N3 to N5 for two ranks, with the bias, in every kernel: what tp = 2 computes is what tp = 1 computes.
#[test]
fn two_ranks_give_the_bits_of_one() {
    let mut random = Random(22);
    for (n, k, rows) in [(48, 1024, 9), (37, 192, 1), (64, 320, 70)] {
        let (weight, x, bias) = (random.bf16s(n * k), random.bf16s(rows * k), random.bf16s(n));
        let half = |values: &[f32], h: usize| -> Vec<f32> {
            values.chunks(k).flat_map(|row| row[h * (k / 2)..][..k / 2].to_vec()).collect()
        };
        everywhere(|gpu| {
            let (w, input, bias_rows) = (gpu.pack(&weight, n, k), gpu.rows(&x, k, k), gpu.rows(&bias, n, n));
            let (y, count) = (gpu.zeroed::<bf16>(rows * 64), gpu.buffer(&[rows as u32]));
            let args = LinearArgs {
                w: w.ptr(),
                x: input.ptr(),
                bias: bias_rows.ptr(),
                y: y.ptr().cast(),
                rows: count.ptr(),
                n: n as u32,
                kb: (k / 32) as u32,
                x_stride: k as u32,
                y_stride: 64,
                slices: 8,
                f32_out: 0,
                n_real: n as u32,
            };
            gpu.linear(rows as u32, &args);
            let whole = bits(&gpu.read(&y));
            for bound in [rows as u32, 128] {
                let partials: Vec<f32> = (0..2)
                    .flat_map(|h| {
                        partial_layer(gpu, (n, k / 2), &half(&weight, h), &half(&x, h), rows, bound)
                    })
                    .collect();
                assert!(fold(gpu, &partials, Some(&bias), (2, n, 64), rows) == whole, "{n} x {k}, gathered");
                // As an all-reduce of two ranks leaves it.
                let (low, high) = partials.split_at(rows * 64);
                let sum: Vec<f32> = high.iter().zip(low).map(|(a, b)| a + b).collect();
                assert!(fold(gpu, &sum, Some(&bias), (1, n, 64), rows) == whole, "{n} x {k}, reduced");
            }
            whole
        });
    }
}

#[test]
fn logits_of_ranks_become_rows() {
    // (ranks, width of a rank, columns, real columns, rows, capacity)
    let shapes = [
        (2usize, 128usize, 256usize, 256usize, 3usize, 4usize),
        (3, 128, 301, 290, 2, 2),
        (1, 4, 3, 2, 1, 1),
        (4, 256, 520, 512, 5, 9),
    ];
    for (ranks, width, n, n_real, rows, capacity) in shapes {
        let step = capacity * width + 8;
        let shards: Vec<f32> = (0..ranks * step).map(|i| i as f32 - 1000.5).collect();
        let stride = n.next_multiple_of(4) + 4;
        everywhere(|gpu| {
            let (from, count) = (gpu.buffer(&shards), gpu.buffer(&[rows as u32]));
            let to = gpu.buffer(&vec![f32::NAN; capacity * stride]);
            let args = UnshardArgs {
                shards: from.ptr(),
                logits: to.ptr(),
                rows: count.ptr(),
                rank_step: step as u32,
                width: width as u32,
                n: n as u32,
                n_real: n_real as u32,
                stride: stride as u32,
            };
            // SAFETY: the buffers have the shapes in `args`; the result is waited for.
            unsafe { gpu.kernels.unshard_logits(&gpu.stream, capacity as u32, &args) }.unwrap();
            let found = gpu.read(&to);
            for (row, logits) in found.chunks(stride).enumerate() {
                for (id, x) in logits.iter().enumerate() {
                    if row >= rows || id >= n.next_multiple_of(4) {
                        assert!(x.is_nan(), "a write outside of the output: row {row}, id {id}");
                    } else if id >= n_real {
                        assert_eq!(*x, f32::NEG_INFINITY, "row {row}, id {id}");
                    } else {
                        assert_eq!(
                            *x,
                            shards[id / width * step + row * width + id % width],
                            "row {row}, id {id}"
                        );
                    }
                }
            }
        });
    }
}

#[test]
fn shapes_that_have_no_kernel_are_refused() {
    everywhere(|gpu| {
        let good = FoldArgs {
            partials: Ptr::NULL,
            bias: Ptr::NULL,
            delta: Ptr::NULL,
            rows: Ptr::NULL,
            ranks: 2,
            rank_step: 32,
            n: 32,
            stride: 32,
        };
        for bad in [
            FoldArgs { ranks: 0, ..good },
            FoldArgs { ranks: 9, ..good },
            FoldArgs { stride: 48, ..good },
            FoldArgs { rank_step: 33, ..good },
            FoldArgs { n: 33, ..good },
        ] {
            // SAFETY: refused before anything is queued.
            let refused = unsafe { gpu.kernels.fold_ranks(&gpu.stream, 1, &bad) };
            assert!(refused.is_err(), "{bad:?}");
        }
    });
}
