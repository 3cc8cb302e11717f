//! Router heads: their rows, layers, states and means. The heads as a whole are tested beside `engine/src/heads/cuda.rs`.

use half::bf16;
use tokenrouter_kernels::cpu::{gelu_one, math};
use tokenrouter_kernels::cuda::{
    Activation, Buffer, HeadEnd, HeadLinearArgs, HeadRowsArgs, KeepArgs, MeanArgs, Ptr,
};

use crate::harness::{Gpu, POISON, Random, bits, everywhere, padded, round};

/// A layer, its inputs, and what it adds to.
struct Layer {
    n: usize,
    k: usize,
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
    x: Vec<f32>,
    add: Option<Vec<f32>>,
    activation: Activation,
}

impl Layer {
    fn new(random: &mut Random, n: usize, k: usize, rows: usize) -> Self {
        let mut some = |len: usize, given: bool| given.then(|| random.bf16s(len));
        let (bias, add) = (some(n, n % 2 == 1), some(rows * n, n.is_multiple_of(3)));
        let (weight, x) = (random.bf16s(n * k), random.bf16s(rows * k));
        Self { n, k, weight, bias, x, add, activation: Activation::None }
    }

    /// Outputs of the rows `which`, launched for up to `bound` rows; all types of W and X must give the same bits.
    fn run(&self, gpu: &Gpu, which: &[usize], bound: usize) -> Vec<u32> {
        let mut first: Option<Vec<u32>> = None;
        for (w_bf16, x_bf16) in [(false, false), (true, false), (false, true), (true, true)] {
            let found = self.run_as(gpu, which, bound, w_bf16, x_bf16);
            assert!(*first.get_or_insert(found.clone()) == found, "types {w_bf16} {x_bf16}");
        }
        first.unwrap()
    }

    fn run_as(&self, gpu: &Gpu, which: &[usize], bound: usize, w_bf16: bool, x_bf16: bool) -> Vec<u32> {
        let (n, k, stride, y_stride) = (self.n, self.k, self.k.next_multiple_of(4) + 4, self.n + 3);
        let rows = |values: &[f32], width: usize| -> Vec<f32> {
            which.iter().flat_map(|r| values[r * width..][..width].to_vec()).collect()
        };
        // Weights end with zeros, inputs with poison.
        let w = widened(&self.weight, k, stride, 0.0);
        let x = widened(&rows(&self.x, k), k, stride, f32::NAN);
        let (w_32, w_16) = (gpu.buffer(&w), gpu.buffer(&narrow(&w)));
        let (x_32, x_16) = (gpu.buffer(&x), gpu.buffer(&narrow(&x)));
        let bias = self.bias.as_ref().map(|b| gpu.buffer(b));
        // Where there is something to add to, the output is added to in place.
        let before = self.add.as_ref().map_or(vec![f32::NAN; which.len() * n], |a| rows(a, n));
        let mut y = widened(&before, n, y_stride, f32::NAN);
        y.resize(y.len() + y_stride, f32::NAN);
        let (y, count) = (gpu.buffer(&y), gpu.buffer(&[which.len() as u32]));
        let args = HeadLinearArgs {
            w: if w_bf16 { w_16.ptr().cast() } else { w_32.ptr().cast() },
            bias: bias.as_ref().map_or(Ptr::NULL, Buffer::ptr),
            x: if x_bf16 { x_16.ptr().cast() } else { x_32.ptr().cast() },
            add: if self.add.is_some() { y.ptr() } else { Ptr::NULL },
            y: y.ptr(),
            rows: count.ptr(),
            wanted: Ptr::NULL,
            head: 0,
            n: n as u32,
            k: k as u32,
            w_stride: stride as u32,
            x_stride: stride as u32,
            add_stride: y_stride as u32,
            y_stride: y_stride as u32,
            x_bf16: u32::from(x_bf16),
            activation: self.activation as u32,
        };
        // SAFETY: the buffers have the shapes in `args`; the result is waited for.
        unsafe { gpu.kernels.head_linear(&gpu.stream, bound as u32, w_bf16, &args) }.unwrap();
        let all = gpu.read(&y);
        let outside = |(i, x): (usize, &f32)| i % y_stride < n && i / y_stride < which.len() || x.is_nan();
        assert!(all.iter().enumerate().all(outside), "a write outside of the output");
        all.chunks(y_stride).take(which.len()).flat_map(|r| r[..n].iter().map(|x| x.to_bits())).collect()
    }
}

/// Rows of `width` in rows of `stride`, `fill` behind each.
fn widened(values: &[f32], width: usize, stride: usize, fill: f32) -> Vec<f32> {
    let behind = std::iter::repeat_n(fill, stride - width);
    values.chunks(width).flat_map(|r| r.iter().copied().chain(behind.clone())).collect()
}

fn narrow(values: &[f32]) -> Vec<bf16> {
    values.iter().map(|x| bf16::from_f32(*x)).collect()
}

#[test]
fn head_layers_are_right_and_a_row_has_the_same_bits_in_every_batch() {
    let mut random = Random(31);
    let shapes = [(1, 1), (3, 5), (33, 100), (64, 260), (9, 1030), (2, 2051)];
    let layers: Vec<Layer> = shapes.iter().map(|(n, k)| Layer::new(&mut random, *n, *k, 19)).collect();
    everywhere(|gpu| {
        let mut all = Vec::new();
        for layer in &layers {
            let (n, k) = (layer.n, layer.k);
            let found = layer.run(gpu, &(0..19).collect::<Vec<_>>(), 19);
            for (i, x) in found.iter().enumerate() {
                let (row, column) = (i / n, i % n);
                let terms = layer.x[row * k..][..k].iter().zip(&layer.weight[column * k..][..k]);
                let sum: f64 = terms.map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
                let more = |v: &Option<Vec<f32>>, i: usize| v.as_ref().map_or(0.0, |v| f64::from(v[i]));
                let expected = sum + more(&layer.bias, column) + more(&layer.add, i);
                let error = (f64::from(f32::from_bits(*x)) - expected).abs();
                assert!(error < 1e-6 * (k as f64).sqrt().max(1.0) * 2.0, "{n} x {k}, element {i}: {error}");
            }
            for row in [0, 8, 18] {
                assert!(layer.run(gpu, &[row], 1) == found[row * n..][..n], "row {row} alone");
                assert!(layer.run(gpu, &[row], 30) == found[row * n..][..n], "row {row}, larger bound");
                let some = layer.run(gpu, &[4, 5, 6, 7, 9, 1, 2, 3, 10, row], 10);
                assert!(some[9 * n..] == found[row * n..][..n], "row {row} at place 9");
            }
            assert!(layer.run(gpu, &[], 8).is_empty());
            all.push(found);
        }
        all
    });
}

/// Chains, shuffles and the order of bias, activation and addition, made visible: 2^24 + 1 is 2^24 in f32.
#[test]
fn head_layers_sum_in_their_order() {
    let big = 16_777_216.0f32;
    // (columns with values, expected): lane l has columns 4 l .. 4 l + 3 of each 128, in that order; lanes l and l + 16
    // join first.
    let cases: [(&[(usize, f32)], f32); 4] = [
        (&[(0, big), (1, 1.0), (2, -big)], 0.0),
        (&[(0, 1.0), (128, big), (3, -big)], 1.0 - big + big),
        (&[(0, big), (64, -big), (4, 1.0)], 1.0),
        (&[(0, big), (4, -big), (64, 1.0)], 0.0),
    ];
    everywhere(|gpu| {
        for (parts, expected) in &cases {
            let mut weight = vec![0.0; 160];
            parts.iter().for_each(|(column, value)| weight[*column] = *value);
            let (x, activation) = (vec![1.0; 160], Activation::None);
            let layer = Layer { n: 1, k: 160, weight, bias: None, x, add: None, activation };
            assert_eq!(layer.run(gpu, &[0], 1), [expected.to_bits()], "{parts:?}");
        }
        let layer = Layer {
            n: 1,
            k: 1,
            weight: vec![1.0],
            bias: Some(vec![-2.0]),
            x: vec![1.0],
            add: Some(vec![4.0]),
            activation: Activation::Relu,
        };
        assert_eq!(layer.run(gpu, &[0], 1), [4.0f32.to_bits()], "relu(1 - 2) + 4");
    });
}

#[test]
fn activations_have_the_bits_of_the_cpu() {
    let mut x: Vec<f32> = (-640..640).map(|i| i as f32 / 64.0).collect();
    x.extend([0.0, -0.0, 90.0, -90.0, 1e-30, -1e-30, f32::INFINITY].map(|x| bf16::from_f32(x).to_f32()));
    let x: Vec<f32> = x.into_iter().map(round).collect();
    everywhere(|gpu| {
        for activation in [Activation::None, Activation::Gelu, Activation::Relu, Activation::Silu] {
            let layer =
                Layer { n: 1, k: 1, weight: vec![1.0], bias: None, x: x.clone(), add: None, activation };
            let found = layer.run(gpu, &(0..x.len()).collect::<Vec<_>>(), x.len());
            for (found, x) in found.iter().zip(&x) {
                // A sum that starts from 0 has no negative zero.
                let x = *x + 0.0;
                let expected = match activation {
                    Activation::None => x,
                    Activation::Gelu => gelu_one(x),
                    Activation::Relu => x.max(0.0),
                    Activation::Silu => math::silu(x),
                };
                let found = f32::from_bits(*found);
                assert!(
                    found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan(),
                    "{activation:?} of {x}: {found}, {expected}"
                );
            }
        }
        let layer = Layer {
            n: 1,
            k: 1,
            weight: vec![1.0],
            bias: None,
            x: vec![f32::NAN],
            add: None,
            activation: Activation::Relu,
        };
        assert!(f32::from_bits(layer.run(gpu, &[0], 1)[0]).is_nan(), "NaN stays NaN");
    });
}

/// Runs `head_rows` and gives its output, checking what lies around it.
fn take(gpu: &Gpu, args: HeadRowsArgs, rows: usize) -> Vec<f32> {
    let (width, stride) = (args.width as usize, args.width as usize + 3);
    let (out, count) = (gpu.buffer(&vec![f32::NAN; (rows + 1) * stride]), gpu.buffer(&[rows as u32]));
    let args = HeadRowsArgs { out: out.ptr(), out_stride: stride as u32, rows: count.ptr(), ..args };
    // SAFETY: the callers give buffers of the shapes in `args`; the result is waited for.
    unsafe { gpu.kernels.head_rows(&gpu.stream, rows as u32 + 2, &args) }.unwrap();
    let all = gpu.read(&out);
    for (row, values) in all.chunks(stride).enumerate() {
        let written = if row < rows { width } else { 0 };
        assert!(values[written..].iter().all(|x| x.is_nan()), "row {row}: a write outside of the output");
    }
    all.chunks(stride).take(rows).flat_map(|r| r[..width].to_vec()).collect()
}

const NOTHING: HeadRowsArgs = HeadRowsArgs {
    x: Ptr::NULL,
    ids: Ptr::NULL,
    weight: Ptr::NULL,
    bias: Ptr::NULL,
    out: Ptr::NULL,
    rows: Ptr::NULL,
    wanted: Ptr::NULL,
    head: 0,
    source: 0,
    op: 0,
    width: 0,
    x_stride: 0,
    out_stride: 0,
    kb: 0,
    vocab: 0,
    eps: 1e-5,
};

/// Rows as f32, as bf16, and out of a packed table, copied and normalised.
#[test]
fn head_rows_are_right_from_every_source() {
    let mut random = Random(32);
    for (width, vocab) in [(1usize, 3usize), (5, 40), (255, 17), (600, 33)] {
        let table = random.bf16s(vocab * width);
        let ids = [vocab as u32 - 1, 0, 2, 16 % vocab as u32, 9 % vocab as u32, 1, vocab as u32];
        let (weight, bias) = (random.vec(width), random.vec(width));
        let chosen: Vec<f32> = ids
            .iter()
            .flat_map(|id| {
                table[if (*id as usize) < vocab { *id as usize } else { 0 } * width..][..width].to_vec()
            })
            .collect();
        everywhere(|gpu| {
            let stride = width.next_multiple_of(32);
            let packed = gpu.pack(&table, vocab, width);
            let (ids_at, x_32) = (gpu.buffer(&ids), gpu.buffer(&chosen));
            let x_16 = gpu.buffer(&padded(&chosen, width, stride));
            let (w, b) = (gpu.buffer(&weight), gpu.buffer(&bias));
            let base = HeadRowsArgs {
                ids: ids_at.ptr(),
                weight: w.ptr(),
                bias: b.ptr(),
                width: width as u32,
                kb: (stride / 32) as u32,
                vocab: vocab as u32,
                ..NOTHING
            };
            let sources = [
                HeadRowsArgs { x: x_32.ptr().cast(), x_stride: width as u32, source: 0, ..base },
                HeadRowsArgs { x: x_16.ptr().cast(), x_stride: stride as u32, source: 1, ..base },
                HeadRowsArgs { x: packed.ptr().cast(), source: 2, ..base },
            ];
            let mut all = Vec::new();
            for source in sources {
                assert!(take(gpu, source, ids.len()) == chosen, "copy from source {}", source.source);
                let normed = take(gpu, HeadRowsArgs { op: 1, ..source }, ids.len());
                for (row, x) in chosen.chunks(width).enumerate() {
                    let mean = x.iter().map(|x| f64::from(*x)).sum::<f64>() / width as f64;
                    let square: f64 = x.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum();
                    let scale = 1.0 / (square / width as f64 + 1e-5).sqrt();
                    for (i, x) in x.iter().enumerate() {
                        let expected =
                            (f64::from(*x) - mean) * scale * f64::from(weight[i]) + f64::from(bias[i]);
                        let error = (f64::from(normed[row * width + i]) - expected).abs();
                        assert!(error < 1e-5, "width {width}, row {row}, column {i}: {error}");
                    }
                }
                let alone = take(gpu, HeadRowsArgs { op: 1, ..source }, 1);
                assert!(alone == normed[..width], "row 0 alone");
                all.push(normed.iter().map(|x| x.to_bits()).collect::<Vec<_>>());
            }
            assert!(all[0] == all[1] && all[0] == all[2], "one order for all sources");
            all
        });
    }
}

#[test]
fn head_softmax_is_right() {
    let mut random = Random(33);
    let (rows, width) = (5, 300);
    let mut x: Vec<f32> = random.vec(rows * width).iter().map(|x| 20.0 * x).collect();
    x[width..width + 290].fill(f32::NEG_INFINITY);
    x[2 * width..3 * width].fill(f32::NEG_INFINITY);
    x[3 * width + 4] = f32::NAN;
    everywhere(|gpu| {
        let x_at = gpu.buffer(&x);
        let args = HeadRowsArgs {
            x: x_at.ptr().cast(),
            x_stride: width as u32,
            op: 2,
            width: width as u32,
            ..NOTHING
        };
        let found = take(gpu, args, rows);
        for row in [0, 1, 4] {
            let x = &x[row * width..][..width];
            let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f64 = x.iter().map(|x| f64::from(x - max).exp()).sum();
            for (i, x) in x.iter().enumerate() {
                let expected = f64::from(x - max).exp() / sum;
                let error = (f64::from(found[row * width + i]) - expected).abs();
                assert!(error <= 1e-6 * expected + 1e-30, "row {row}, column {i}: {error}");
            }
        }
        for row in [2, 3] {
            assert!(found[row * width..][..width].iter().all(|x| x.is_nan()), "row {row}");
        }
        found.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
    });
}

/// Kept in two steps, on pages in disorder, with NaN wherever nothing was kept.
#[test]
fn states_are_kept_and_averaged_over_their_prompts() {
    let mut random = Random(34);
    for width in [8usize, 70, 130] {
        let stride = width.next_multiple_of(32);
        let lengths = [33usize, 1, 90];
        let tables: Vec<u32> = [[7, 2, 5, 99, 99, 99], [9, 99, 99, 99, 99, 99], [1, 10, 0, 8, 4, 6]].concat();
        let states: Vec<Vec<f32>> = lengths.iter().map(|n| random.bf16s(n * width)).collect();
        everywhere(|gpu| {
            let kept = gpu.buffer(&vec![POISON; 11 * 16 * stride]);
            let tables_at = gpu.buffer(&tables);
            for half in 0..2 {
                let (mut x, mut positions, mut token_row) = (Vec::new(), Vec::new(), Vec::new());
                for (row, n) in lengths.iter().enumerate() {
                    let range = if half == 0 { 0..n / 2 } else { n / 2..*n };
                    x.extend(&states[row][range.start * width..range.end * width]);
                    positions.extend(range.clone().map(|p| p as u32));
                    token_row.extend(range.map(|_| row as u32));
                }
                let tokens = positions.len() as u32;
                let x = gpu.rows(&x, width, stride);
                let (positions, token_row) = (gpu.buffer(&positions), gpu.buffer(&token_row));
                let count = gpu.buffer(&[tokens]);
                let args = KeepArgs {
                    states: x.ptr(),
                    kept: kept.ptr(),
                    positions: positions.ptr(),
                    token_row: token_row.ptr(),
                    tables: tables_at.ptr(),
                    tokens: count.ptr(),
                    stride: stride as u32,
                    table_stride: 6,
                };
                // SAFETY: the buffers have the shapes in `args`; the stream is waited for.
                unsafe { gpu.kernels.keep_states(&gpu.stream, tokens + 5, &args) }.unwrap();
                gpu.stream.synchronize().unwrap();
            }
            let all = gpu.read(&kept);
            assert_eq!(
                all[3 * 16 * stride..4 * 16 * stride].iter().filter(|x| !x.is_nan()).count(),
                0,
                "page 3"
            );
            // Ends in another order than the rows, one of them before the end of its row's states.
            let ends = [(2, 90), (0, 20), (1, 1), (0, 33)].map(|(row, tokens)| HeadEnd { row, tokens });
            let (ends_at, count) = (gpu.buffer(&ends), gpu.buffer(&[ends.len() as u32]));
            let means = gpu.buffer(&vec![f32::NAN; 5 * (width + 2)]);
            let args = MeanArgs {
                kept: kept.ptr(),
                ends: ends_at.ptr(),
                tables: tables_at.ptr(),
                means: means.ptr(),
                count: count.ptr(),
                wanted: Ptr::NULL,
                head: 0,
                width: width as u32,
                stride: stride as u32,
                out_stride: width as u32 + 2,
                table_stride: 6,
            };
            // SAFETY: the buffers have the shapes in `args`; the result is waited for.
            unsafe { gpu.kernels.prompt_means(&gpu.stream, 5, &args) }.unwrap();
            let found = gpu.read(&means);
            for (end, row) in ends.iter().zip(found.chunks(width + 2)) {
                for (column, x) in row[..width].iter().enumerate() {
                    let states = states[end.row as usize].chunks(width).take(end.tokens as usize);
                    let sum: f64 = states.map(|s| f64::from(s[column])).sum();
                    let expected = (sum / f64::from(end.tokens)) as f32;
                    assert_eq!(x.to_bits(), expected.to_bits(), "{end:?}, column {column}");
                }
                assert!(row[width..].iter().all(|x| x.is_nan()), "a write outside of the output");
            }
            assert!(found[4 * (width + 2)..].iter().all(|x| x.is_nan()), "a write behind the last end");
            (bits(&all), found.iter().map(|x| x.to_bits()).collect::<Vec<_>>())
        });
    }
}

/// The bit of `wanted` decides, in every kernel that reads it.
#[test]
fn unwanted_heads_write_nothing() {
    everywhere(|gpu| {
        let (wanted, count, one) = (gpu.buffer(&[0b100u32]), gpu.buffer(&[1u32]), gpu.buffer(&[1.0f32; 4]));
        let ends = gpu.buffer(&[HeadEnd { row: 0, tokens: 1 }]);
        let (kept, tables) = (gpu.rows(&[1.0], 1, 32 * 16), gpu.buffer(&[0u32]));
        for head in [1, 2, 3] {
            let y = gpu.buffer(&[f32::NAN; 4]);
            let rows = HeadRowsArgs {
                x: one.ptr().cast(),
                out: y.ptr(),
                rows: count.ptr(),
                wanted: wanted.ptr(),
                head,
                width: 1,
                ..NOTHING
            };
            let linear = HeadLinearArgs {
                w: one.ptr().cast(),
                bias: Ptr::NULL,
                x: one.ptr().cast(),
                add: Ptr::NULL,
                y: y.ptr().add(1),
                rows: count.ptr(),
                wanted: wanted.ptr(),
                head,
                n: 1,
                k: 1,
                w_stride: 4,
                x_stride: 4,
                add_stride: 0,
                y_stride: 1,
                x_bf16: 0,
                activation: 0,
            };
            let means = MeanArgs {
                kept: kept.ptr(),
                ends: ends.ptr(),
                tables: tables.ptr(),
                means: y.ptr().add(2),
                count: count.ptr(),
                wanted: wanted.ptr(),
                head,
                width: 1,
                stride: 32,
                out_stride: 1,
                table_stride: 1,
            };
            // SAFETY: the buffers have the shapes in the arguments; the result is waited for.
            unsafe {
                gpu.kernels.head_rows(&gpu.stream, 1, &rows).unwrap();
                gpu.kernels.head_linear(&gpu.stream, 1, false, &linear).unwrap();
                gpu.kernels.prompt_means(&gpu.stream, 1, &means).unwrap();
            }
            let found = gpu.read(&y);
            let expected = if head == 2 { [1.0; 3] } else { [f32::NAN; 3] };
            for (x, y) in found.iter().zip(expected) {
                assert!(*x == y || x.is_nan() && y.is_nan(), "head {head}: {found:?}");
            }
        }
    });
}
