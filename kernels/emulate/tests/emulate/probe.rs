//! What the kernels rely on and what the emulation claims about the hardware. With `TOKENROUTER_PROBE=probe.fatbin`
//! (testdata/probe.cu compiled by nvcc, see tests/device.sh) the same questions go to the real driver and its GPU: layouts
//! and conversions must agree to the bit, sums within rounding.

use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::{CudaContext, CudaModule, CudaStream, PushKernelArg};
use cudarc::nvrtc::Ptx;
use half::{bf16, f16};
use tokenrouter_emulate::{STUB_IMAGE, Session, Settings};

use crate::support::{begin, grid};

/// Random operand pairs of the mma probe.
const CASES: usize = 200;

/// The device that is asked. Fields drop in order.
struct Probe {
    module: Arc<CudaModule>,
    stream: Arc<CudaStream>,
    real: bool,
    _emulation: Option<Session>,
}

fn open() -> Option<Probe> {
    let image = std::env::var_os("TOKENROUTER_PROBE");
    let (emulation, image) = match &image {
        Some(path) => (None, std::fs::read(path).expect("the probe's image")),
        None => (Some(begin(Settings::default())?), STUB_IMAGE.to_vec()),
    };
    let ctx = CudaContext::new(0).expect("a device");
    // SAFETY: one stream, which every test waits for.
    unsafe { ctx.disable_event_tracking() };
    let stream = ctx.new_stream().expect("a stream");
    let module = ctx.load_module(Ptx::from_binary(image)).expect("the probe's kernels");
    Some(Probe { module, stream, real: emulation.is_none(), _emulation: emulation })
}

/// A small generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }

    /// Between 2^-8 and 2^8 in size, of either sign.
    fn float(&mut self) -> f32 {
        let bits = self.next();
        f32::from_bits(bits & 0x807f_ffff | (119 + bits % 17) << 23)
    }
}

/// The emulation's rule: two chained groups of eight products, added to the sum one after the other.
fn chained(a: &[bf16], b: &[bf16], c: f32) -> f32 {
    let group = |k: usize| {
        (k + 1..k + 8).fold(a[k].to_f32() * b[k].to_f32(), |s, i| s + a[i].to_f32() * b[i].to_f32())
    };
    c + group(0) + group(8)
}

fn pair(low: bf16, high: bf16) -> u32 {
    u32::from(low.to_bits()) | u32::from(high.to_bits()) << 16
}

/// D of one mma per case with one row in every row of A, one column in every column of B, and one value in all of C.
fn uniform(probe: &Probe, rows: &[Vec<bf16>], columns: &[Vec<bf16>], sums: &[f32]) -> Vec<f32> {
    let (mut a, mut b, mut c) = (Vec::new(), Vec::new(), Vec::new());
    for ((row, column), sum) in rows.iter().zip(columns).zip(sums) {
        for lane in 0..32 {
            let t = lane % 4 * 2;
            let (low, high) = (pair(row[t], row[t + 1]), pair(row[t + 8], row[t + 9]));
            a.extend([low, low, high, high]);
            b.extend([pair(column[t], column[t + 1]), pair(column[t + 8], column[t + 9])]);
            c.extend([*sum; 4]);
        }
    }
    let stream = &probe.stream;
    let (a, b, c) =
        (stream.clone_htod(&a).unwrap(), stream.clone_htod(&b).unwrap(), stream.clone_htod(&c).unwrap());
    let mut d = stream.alloc_zeros::<f32>(rows.len() * 128).unwrap();
    let f = probe.module.load_function("probe_mma").unwrap();
    let cfg = grid(u32::try_from(rows.len()).unwrap(), 32, 0);
    // SAFETY: the operands of one mma per block.
    unsafe { stream.launch_builder(&f).arg(&mut d).arg(&a).arg(&b).arg(&c).launch(cfg) }.unwrap();
    stream.clone_dtoh(&d).unwrap()
}

/// N8 of the numeric contract: what an mma gives for a row, a column and a sum depends on nothing else.
#[test]
fn an_mma_gives_the_same_bits_at_all_128_positions() {
    let Some(probe) = open() else { return };
    let mut random = Random(5);
    let mut vector = || (0..16).map(|_| bf16::from_f32(random.float())).collect::<Vec<_>>();
    let (rows, columns): (Vec<_>, Vec<_>) = (0..CASES).map(|_| (vector(), vector())).unzip();
    let sums: Vec<f32> = (0..CASES).map(|i| if i % 2 == 0 { 0.0 } else { random.float() * 64.0 }).collect();
    let d = uniform(&probe, &rows, &columns, &sums);
    let swapped = uniform(&probe, &columns, &rows, &sums);
    let (mut as_emulated, mut as_swapped) = (0, 0);
    for i in 0..CASES {
        let found = &d[i * 128..(i + 1) * 128];
        assert!(found.iter().all(|x| x.to_bits() == found[0].to_bits()), "case {i}: {found:?}");
        let exact: f64 = rows[i].iter().zip(&columns[i]).map(|(a, b)| a.to_f64() * b.to_f64()).sum();
        let size: f64 = rows[i].iter().zip(&columns[i]).map(|(a, b)| (a.to_f64() * b.to_f64()).abs()).sum();
        let error = (f64::from(found[0]) - exact - f64::from(sums[i])).abs();
        assert!(error <= (size + f64::from(sums[i].abs())) * 1e-5, "case {i}: {} for {exact}", found[0]);
        as_emulated += usize::from(found[0].to_bits() == chained(&rows[i], &columns[i], sums[i]).to_bits());
        as_swapped += usize::from(found[0].to_bits() == swapped[i * 128].to_bits());
    }
    println!(
        "mma: {as_emulated} of {CASES} sums as the emulation rounds them, {as_swapped} the same with A and B swapped"
    );
    assert!(probe.real || (as_emulated, as_swapped) == (CASES, CASES));
}

#[test]
fn fragments_lie_where_the_emulation_puts_them() {
    let Some(probe) = open() else { return };
    let stream = &probe.stream;
    // One product at a time: row i of A and column j of B are one at k = 0 and zero elsewhere.
    let one = bf16::ONE;
    let (mut a, mut b) = (vec![0u32; 128 * 128], vec![0u32; 128 * 64]);
    for (case, (i, j)) in (0..16).flat_map(|i| (0..8).map(move |j| (i, j))).enumerate() {
        a[case * 128 + i % 8 * 4 * 4 + i / 8] = pair(one, bf16::ZERO);
        b[case * 64 + j * 4 * 2] = pair(one, bf16::ZERO);
    }
    let (a, b) = (stream.clone_htod(&a).unwrap(), stream.clone_htod(&b).unwrap());
    let c = stream.alloc_zeros::<f32>(128 * 128).unwrap();
    let mut d = stream.alloc_zeros::<f32>(128 * 128).unwrap();
    let f = probe.module.load_function("probe_mma").unwrap();
    // SAFETY: the operands of one mma per block.
    unsafe { stream.launch_builder(&f).arg(&mut d).arg(&a).arg(&b).arg(&c).launch(grid(128, 32, 0)) }
        .unwrap();
    let d = stream.clone_dtoh(&d).unwrap();
    for (case, (i, j)) in (0..16).flat_map(|i| (0..8).map(move |j| (i, j))).enumerate() {
        let at = (i % 8 * 4 + j / 2) * 4 + i / 8 * 2 + j % 2;
        let hot: Vec<_> = (0..128).filter(|k| d[case * 128 + k] != 0.0).collect();
        assert_eq!(hot, [at], "row {i}, column {j}");
    }
    let source = stream.clone_htod(&(0..256).collect::<Vec<u16>>()).unwrap();
    let mut out = stream.alloc_zeros::<u32>(256).unwrap();
    let f = probe.module.load_function("probe_ldmatrix").unwrap();
    // SAFETY: four matrices in, eight registers for 32 lanes out.
    unsafe { stream.launch_builder(&f).arg(&mut out).arg(&source).launch(grid(1, 32, 0)) }.unwrap();
    let out = stream.clone_dtoh(&out).unwrap();
    for (i, found) in out.iter().enumerate() {
        let (transposed, m, lane) = (i / 128, i / 32 % 4, i % 32);
        let (row, column) = (lane / 4, lane % 4 * 2);
        let at = |r: usize, c: usize| (m * 64 + if transposed == 1 { c * 8 + r } else { r * 8 + c }) as u32;
        assert_eq!(
            *found,
            at(row, column) | at(row, column + 1) << 16,
            "matrix {m}, lane {lane}, {transposed}"
        );
    }
}

#[test]
fn shuffles_and_votes_agree() {
    let Some(probe) = open() else { return };
    let mut out = probe.stream.alloc_zeros::<u32>(192).unwrap();
    let f = probe.module.load_function("probe_warp").unwrap();
    // SAFETY: six values for 32 lanes.
    unsafe { probe.stream.launch_builder(&f).arg(&mut out).arg(&11u32).launch(grid(1, 32, 0)) }.unwrap();
    let out = probe.stream.clone_dtoh(&out).unwrap();
    let v = |lane: u32| lane * 3 + 11;
    let votes = (0..32).filter(|l| v(*l) % 3 == 1).fold(0u32, |bits, l| bits | 1 << l);
    for lane in 0..32u32 {
        let up = if lane < 3 { lane } else { lane - 3 };
        let down = if lane + 9 > 31 { lane } else { lane + 9 };
        let want = [v(lane * 7 % 32), v(lane ^ 5), v(up), v(down), v(lane ^ 3), votes];
        let found: Vec<u32> = (0..6).map(|i| out[i * 32 + lane as usize]).collect();
        assert_eq!(found, want, "lane {lane}");
    }
}

#[test]
fn conversions_agree_to_the_bit() {
    let Some(probe) = open() else { return };
    let n = 1usize << 16;
    let mut random = Random(9);
    // Every upper half with random lower ones: all exponents, ties, subnormals, infinities and NaN.
    let input: Vec<f32> = (0..n as u32)
        .map(|i| {
            f32::from_bits(i << 16 | [0, 0x8000, 0x7fff, random.next() & 0xffff][random.next() as usize % 4])
        })
        .collect();
    let source = probe.stream.clone_htod(&input).unwrap();
    let mut narrow = probe.stream.alloc_zeros::<u16>(2 * n).unwrap();
    let mut wide = probe.stream.alloc_zeros::<f32>(n).unwrap();
    let f = probe.module.load_function("probe_convert").unwrap();
    let count = n as u32;
    // SAFETY: the buffers hold n floats in, 2n halves and n floats out.
    unsafe {
        let mut launch = probe.stream.launch_builder(&f);
        launch.arg(&mut narrow).arg(&mut wide).arg(&source).arg(&count).launch(grid(64, 256, 0)).unwrap();
    }
    let (narrow, wide) = (probe.stream.clone_dtoh(&narrow).unwrap(), probe.stream.clone_dtoh(&wide).unwrap());
    for (i, x) in input.iter().enumerate() {
        let (b, h) = if x.is_nan() {
            (0x7fff, 0x7fff)
        } else {
            (bf16::from_f32(*x).to_bits(), f16::from_f32(*x).to_bits())
        };
        assert_eq!((narrow[i], narrow[n + i]), (b, h), "{x:e}");
        let want = f16::from_bits(i as u16).to_f32();
        assert!(wide[i].to_bits() == want.to_bits() || (wide[i].is_nan() && want.is_nan()), "pattern {i:#x}");
    }
}

/// Not a claim but a measure: the bf16 rate that the products are compared with.
#[test]
fn the_matrix_rate_is_measured_on_a_gpu() {
    let Some(probe) = open() else { return };
    let (blocks, rounds) = if probe.real { (1056u32, 20_000u32) } else { (1, 2) };
    let mut out = probe.stream.alloc_zeros::<f32>(blocks as usize * 256).unwrap();
    let f = probe.module.load_function("probe_rate").unwrap();
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        let start = Instant::now();
        // SAFETY: a float per thread.
        unsafe { probe.stream.launch_builder(&f).arg(&mut out).arg(&rounds).launch(grid(blocks, 256, 0)) }
            .unwrap();
        probe.stream.synchronize().unwrap();
        best = best.min(start.elapsed().as_secs_f64());
    }
    let flop = f64::from(blocks) * 8.0 * f64::from(rounds) * 8.0 * (2 * 16 * 8 * 16) as f64;
    if probe.real {
        println!("matrix rate: {:.0} TFLOP/s in bf16", flop / best / 1e12);
    }
    assert!(probe.stream.clone_dtoh(&out).unwrap().iter().all(|x| x.is_finite()));
}
