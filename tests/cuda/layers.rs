//! Embedding, norms, and the gate of the feed-forward layer.

use half::bf16;
use tokenrouter_kernels::cuda::{Buffer, EmbedArgs, NormArgs, Ptr, SiluArgs};

use crate::harness::{Gpu, POISON, Random, bits, close, everywhere, padded, round, stride_of};

#[test]
fn embedding_copies_rows_of_the_packed_table() {
    let (vocab, width) = (37, 72);
    let table = Random(1).bf16s(vocab * width);
    let ids = [0u32, 36, 7, 8, 16, 15, 36, 40, 3];
    everywhere(|gpu| {
        let packed = gpu.pack(&table, vocab, width);
        let stride = stride_of(width);
        let ids_on = gpu.buffer(&ids);
        for tokens in [7, ids.len()] {
            let h = gpu.buffer(&vec![POISON; ids.len() * stride]);
            let (rows, fault) = (gpu.buffer(&[tokens as u32]), gpu.zeroed::<u32>(1));
            let args = EmbedArgs {
                table: packed.ptr(),
                ids: ids_on.ptr(),
                h: h.ptr(),
                rows: rows.ptr(),
                fault: fault.ptr(),
                vocab: vocab as u32,
                kb: width.div_ceil(32) as u32,
                stride: stride as u32,
            };
            // SAFETY: the buffers have these shapes.
            unsafe { gpu.kernels.embed(&gpu.stream, ids.len() as u32, &args) }.unwrap();
            let found = gpu.read(&h);
            for (token, row) in found.chunks(stride).enumerate() {
                let id = if ids[token] < vocab as u32 { ids[token] as usize } else { 0 };
                let mut expected = padded(&table[id * width..][..width], width, stride);
                if token >= tokens {
                    expected.fill(POISON);
                }
                assert!(bits(row) == bits(&expected), "token {token}");
            }
            assert_eq!(gpu.read(&fault), [u32::from(tokens > 7)], "id 40 lies beyond the table");
        }
    });
}

/// Rows of hidden states, what is added to them, and a norm.
struct Norm {
    width: usize,
    h: Vec<f32>,
    delta: Vec<f32>,
    weight: Vec<f32>,
}

const EPS: f32 = 1e-5;

impl Norm {
    fn new(random: &mut Random, width: usize, rows: usize) -> Self {
        let h: Vec<f32> = random.bf16s(rows * width).iter().map(|x| x * 8.0).collect();
        Self { width, h, delta: random.bf16s(rows * width), weight: random.bf16s(width) }
    }

    fn args(
        &self,
        h: &Buffer<bf16>,
        weight: &Buffer<bf16>,
        out: &Buffer<bf16>,
        rows: &Buffer<u32>,
    ) -> NormArgs {
        NormArgs {
            h: h.ptr(),
            delta: Ptr::NULL,
            weight: weight.ptr(),
            index: Ptr::NULL,
            out: out.ptr(),
            rows: rows.ptr(),
            width: self.width as u32,
            stride: stride_of(self.width) as u32,
            eps: EPS,
            store: 0,
        }
    }

    /// Chosen rows of `h` (+ delta): the sums as stored, and the outputs.
    fn run(&self, gpu: &Gpu, chosen: &[usize], add: bool) -> (Vec<bf16>, Vec<bf16>) {
        let stride = stride_of(self.width);
        let pick = |values: &[f32]| -> Vec<f32> {
            chosen.iter().flat_map(|r| values[r * self.width..][..self.width].to_vec()).collect()
        };
        let h = gpu.rows(&pick(&self.h), self.width, stride);
        let delta = gpu.rows(&pick(&self.delta), self.width, stride);
        let weight = gpu.rows(&self.weight, self.width, self.width);
        let out = gpu.buffer(&vec![POISON; chosen.len() * stride]);
        let rows = gpu.buffer(&[chosen.len() as u32]);
        let mut args = self.args(&h, &weight, &out, &rows);
        if add {
            (args.delta, args.store) = (delta.ptr(), 1);
        }
        // SAFETY: the buffers have these shapes.
        unsafe { gpu.kernels.rms_norm(&gpu.stream, chosen.len() as u32, &args) }.unwrap();
        (gpu.read(&h), gpu.read(&out))
    }

    /// What one row of sums should become.
    fn check(&self, sums: &[bf16], out: &[bf16], what: &str) {
        let x: Vec<f64> = sums[..self.width].iter().map(|x| f64::from(x.to_f32())).collect();
        let mean = x.iter().map(|x| x * x).sum::<f64>() / self.width as f64;
        let scale = 1.0 / (mean + f64::from(EPS)).sqrt();
        for i in 0..self.width {
            close(out[i].to_f32(), x[i] * scale * f64::from(self.weight[i]), 0.0, what);
        }
        assert!(out[self.width..].iter().all(|x| x.to_bits() == 0), "{what}: the padding of a row");
    }
}

#[test]
fn norms_are_right_alone_and_after_an_addition() {
    let mut random = Random(2);
    let norms: Vec<Norm> = [16, 40, 64, 100, 1030, 2048].map(|w| Norm::new(&mut random, w, 5)).into();
    everywhere(|gpu| {
        let mut all = Vec::new();
        for norm in &norms {
            let (width, stride) = (norm.width, stride_of(norm.width));
            for add in [false, true] {
                let (sums, out) = norm.run(gpu, &[0, 1, 2, 3, 4], add);
                for row in 0..5 {
                    let what = format!("width {width}, row {row}, add {add}");
                    let (sums, out) = (&sums[row * stride..][..stride], &out[row * stride..][..stride]);
                    for (i, found) in sums.iter().enumerate().take(width) {
                        let at = row * width + i;
                        let sum = norm.h[at] + if add { norm.delta[at] } else { 0.0 };
                        assert_eq!(found.to_f32(), round(sum), "{what}, sum {i}");
                    }
                    norm.check(sums, out, &what);
                    let alone = norm.run(gpu, &[row], add);
                    assert!(bits(&alone.1) == bits(out), "{what}: other bits alone");
                }
                all.push(bits(&out));
            }
        }
        all
    });
}

#[test]
fn the_final_norm_gathers_rows_and_leaves_the_sums() {
    let norm = Norm::new(&mut Random(3), 100, 6);
    let index = [5u32, 0, 5, 3];
    everywhere(|gpu| {
        let stride = stride_of(100);
        let (h, delta) = (gpu.rows(&norm.h, 100, stride), gpu.rows(&norm.delta, 100, stride));
        let before = bits(&gpu.read(&h));
        let weight = gpu.rows(&norm.weight, 100, 100);
        let out = gpu.buffer(&vec![POISON; 5 * stride]);
        let (rows, index_on) = (gpu.buffer(&[4u32]), gpu.buffer(&index));
        let mut args = norm.args(&h, &weight, &out, &rows);
        (args.delta, args.index) = (delta.ptr(), index_on.ptr());
        // SAFETY: the buffers have these shapes.
        unsafe { gpu.kernels.rms_norm(&gpu.stream, 5, &args) }.unwrap();
        let found = gpu.read(&out);
        for (i, from) in index.iter().enumerate() {
            let (_, expected) = norm.run(gpu, &[*from as usize], true);
            assert!(bits(&found[i * stride..][..stride]) == bits(&expected), "row {i}");
        }
        assert!(
            found[4 * stride..].iter().all(|x| x.to_bits() == POISON.to_bits()),
            "a row that nobody asked for"
        );
        assert!(bits(&gpu.read(&h)) == before, "the residual");
        args.store = 1;
        // SAFETY: refused before anything is queued.
        let refused = unsafe { gpu.kernels.rms_norm(&gpu.stream, 5, &args) };
        assert!(refused.is_err(), "two rows of the index may name one row of sums");
    });
}

#[test]
fn the_gate_is_right_and_rounds_as_the_models_do() {
    let mut random = Random(4);
    for width in [16usize, 40, 300] {
        let tiles = width.div_ceil(16);
        let (x_stride, y_stride) = (tiles * 32, stride_of(width));
        let mut x = vec![0.0f32; 3 * x_stride];
        let value = |random: &mut Random| round(random.unit() * 20.0);
        let (mut gates, mut ups) = (Vec::new(), Vec::new());
        for row in 0..3 {
            for i in 0..width {
                let at = row * x_stride + i / 16 * 32 + i % 16;
                (x[at], x[at + 16]) = (value(&mut random), value(&mut random));
                gates.push(x[at]);
                ups.push(x[at + 16]);
            }
        }
        everywhere(|gpu| {
            let x = gpu.rows(&x, x_stride, x_stride);
            let y = gpu.zeroed::<bf16>(4 * y_stride);
            let rows = gpu.buffer(&[3u32]);
            let args = SiluArgs {
                x: x.ptr(),
                y: y.ptr(),
                rows: rows.ptr(),
                width: width as u32,
                x_stride: x_stride as u32,
                y_stride: y_stride as u32,
            };
            // SAFETY: the buffers have these shapes.
            unsafe { gpu.kernels.silu_mul(&gpu.stream, 4, &args) }.unwrap();
            let found = gpu.read(&y);
            for row in 0..4 {
                for i in 0..y_stride {
                    let x = found[row * y_stride + i].to_f32();
                    if row < 3 && i < width {
                        let (gate, up) = (gates[row * width + i], ups[row * width + i]);
                        // The CPU's own function, so this is equal to the bit.
                        let expected = round(round(tokenrouter_kernels::cpu::math::silu(gate)) * up);
                        assert_eq!(x.to_bits(), expected.to_bits(), "silu({gate}) * {up}");
                        let wide = f64::from(gate) / (1.0 + f64::from(-gate).exp()) * f64::from(up);
                        close(x, wide, 0.0, "silu");
                    } else {
                        assert_eq!(x.to_bits(), 0, "row {row}, column {i}");
                    }
                }
            }
            bits(&found)
        });
    }
}
