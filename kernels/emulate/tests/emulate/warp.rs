//! Warp operations, copies, atomics and conversions against plain loops.

use cudarc::driver::{CudaSlice, PushKernelArg};
use half::{bf16, f16};
use tokenrouter_emulate::{Settings, seeds};

use crate::support::{Rig, begin, grid};

fn matrix(rows: usize, columns: usize, salt: usize) -> Vec<bf16> {
    // Small integers and halves: products and sums are exact in f32.
    (0..rows * columns).map(|i| bf16::from_f32(((i * 37 + salt * 11) % 23) as f32 * 0.5 - 5.0)).collect()
}

fn product(a: &[bf16], b: &[bf16], c: &[f32]) -> Vec<f32> {
    let mut out = c.to_vec();
    for i in 0..16 {
        for j in 0..8 {
            for k in 0..16 {
                out[i * 8 + j] += a[i * 16 + k].to_f32() * b[k * 8 + j].to_f32();
            }
        }
    }
    out
}

fn bits(values: &[bf16]) -> Vec<u16> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn mma_multiplies_matrices_in_the_documented_layout() {
    let Some(session) = begin(Settings::default()) else { return };
    for seed in seeds() {
        session.reset(Settings { seed, ..Settings::default() });
        let rig = Rig::new();
        let (a, b) = (matrix(16, 16, 1), matrix(16, 8, 2));
        let c: Vec<f32> = (0..128u8).map(f32::from).collect();
        let (da, db) = (rig.stream.clone_htod(&bits(&a)).unwrap(), rig.stream.clone_htod(&bits(&b)).unwrap());
        for (kernel, start) in [("mma_once", c), ("mma_ldmatrix", vec![0.0; 128])] {
            let mut dc = rig.stream.clone_htod(&start).unwrap();
            let f = rig.function(kernel);
            // SAFETY: the matrices have the kernel's sizes.
            unsafe { rig.stream.launch_builder(&f).arg(&mut dc).arg(&da).arg(&db).launch(grid(1, 32, 0)) }
                .unwrap();
            assert_eq!(rig.stream.clone_dtoh(&dc).unwrap(), product(&a, &b, &start), "{kernel}, seed {seed}");
        }
    }
}

#[test]
fn products_in_a_group_have_the_bits_of_single_ones() {
    let Some(session) = begin(Settings::default()) else { return };
    for seed in seeds() {
        session.reset(Settings { seed, ..Settings::default() });
        let rig = Rig::new();
        let words = |n: usize, seed| {
            let halves = bits(&matrix(n, 2, seed));
            halves.chunks(2).map(|h| u32::from(h[0]) | u32::from(h[1]) << 16).collect::<Vec<_>>()
        };
        let a = rig.stream.clone_htod(&words(128, 3)).unwrap();
        let b = rig.stream.clone_htod(&words(64, 4)).unwrap();
        let f = rig.function("mma_group");
        let [single, group] = [0i32, 1].map(|group| {
            let mut out = rig.stream.alloc_zeros::<f32>(256).unwrap();
            // SAFETY: fragments for 32 lanes in, eight sums for each out.
            unsafe {
                let mut launch = rig.stream.launch_builder(&f);
                launch.arg(&mut out).arg(&a).arg(&b).arg(&group).launch(grid(1, 32, 0)).unwrap();
            }
            rig.stream.clone_dtoh(&out).unwrap()
        });
        assert!(single.iter().all(|x| x.is_finite()) && single[0] != single[1]);
        assert_eq!(group, single, "seed {seed}");
    }
}

#[test]
fn ldmatrix_gives_each_lane_its_pair_of_each_matrix() {
    let Some(_session) = begin(Settings::default()) else { return };
    let rig = Rig::new();
    let input: Vec<u16> = (0..256).collect();
    let source = rig.stream.clone_htod(&input).unwrap();
    let f = rig.function("ldmatrix_dump");
    for transposed in [false, true] {
        let mut out = rig.stream.alloc_zeros::<u32>(128).unwrap();
        // SAFETY: four 8 x 8 matrices in, four registers for 32 lanes out.
        unsafe {
            rig.stream
                .launch_builder(&f)
                .arg(&mut out)
                .arg(&source)
                .arg(&i32::from(transposed))
                .launch(grid(1, 32, 0))
        }
        .unwrap();
        let got = rig.stream.clone_dtoh(&out).unwrap();
        for m in 0..4 {
            for lane in 0..32 {
                let at = |row: usize, column: usize| u32::from(input[m * 64 + row * 8 + column]);
                let (row, column) = (lane / 4, lane % 4 * 2);
                let want = if transposed {
                    at(column, row) | at(column + 1, row) << 16
                } else {
                    at(row, column) | at(row, column + 1) << 16
                };
                assert_eq!(got[m * 32 + lane], want, "matrix {m}, lane {lane}, transposed {transposed}");
            }
        }
    }
}

#[test]
fn shuffles_and_votes_follow_their_definitions() {
    let Some(session) = begin(Settings::default()) else { return };
    for seed in seeds() {
        session.reset(Settings { seed, ..Settings::default() });
        let rig = Rig::new();
        let mut out = rig.stream.alloc_zeros::<u32>(32 * 12).unwrap();
        let f = rig.function("shuffle_dump");
        // SAFETY: twelve values per lane.
        unsafe { rig.stream.launch_builder(&f).arg(&mut out).launch(grid(1, 32, 0)) }.unwrap();
        let got = rig.stream.clone_dtoh(&out).unwrap();
        for lane in 0..32u32 {
            let thirds = (0..32).filter(|l| l % 3 == 0).fold(0, |bits, l| bits | 1 << l);
            let down = if lane % 16 + 3 < 16 { lane + 3 } else { lane };
            let want = [
                107,
                100 + lane / 8 * 8 + (lane + 3) % 8,
                100 + (lane ^ 5),
                100 + if lane >= 3 { lane - 3 } else { lane },
                100 + down,
                100 + (lane ^ 1),
                thirds,
                1,
                100 + (lane ^ 16),
                if lane < 16 { 0xffff } else { 1 << 20 },
                9,
                0,
            ];
            let lane = lane as usize;
            assert_eq!(got[lane * 12..lane * 12 + 12], want, "lane {lane}, seed {seed}");
        }
    }
}

/// Runs the conversion kernel over bit patterns.
fn convert(rig: &Rig, what: i32, input: &[u32]) -> Vec<u32> {
    let source = rig.stream.clone_htod(input).unwrap();
    let mut out: CudaSlice<u32> = rig.stream.alloc_zeros(input.len()).unwrap();
    let f = rig.function("convert");
    let n = i32::try_from(input.len()).unwrap();
    let blocks = u32::try_from(input.len().div_ceil(256)).unwrap();
    // SAFETY: n values in and out.
    unsafe {
        rig.stream
            .launch_builder(&f)
            .arg(&mut out)
            .arg(&source)
            .arg(&what)
            .arg(&n)
            .launch(grid(blocks, 256, 0))
    }
    .unwrap();
    rig.stream.clone_dtoh(&out).unwrap()
}

/// Equal bits, or both not a number: payloads are not part of the contract.
fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

#[test]
fn every_bf16_and_f16_pattern_widens_as_the_half_crate_says() {
    let Some(_session) = begin(Settings::default()) else { return };
    let rig = Rig::new();
    let patterns: Vec<u32> = (0..=0xffff).collect();
    for (what, widen) in
        [(0, (|b| bf16::from_bits(b).to_f32()) as fn(u16) -> f32), (2, |b| f16::from_bits(b).to_f32())]
    {
        for (pattern, got) in patterns.iter().zip(convert(&rig, what, &patterns)) {
            let want = widen(u16::try_from(*pattern).unwrap());
            assert!(same(f32::from_bits(got), want), "conversion {what} of {pattern:#06x}: {got:#010x}");
        }
    }
}

#[test]
fn floats_narrow_as_the_half_crate_says() {
    let Some(_session) = begin(Settings::default()) else { return };
    let rig = Rig::new();
    // A stride that meets every exponent and many fractions, and every tie and its neighbours.
    let mut floats: Vec<u32> = (0..=u32::MAX / 65_521).map(|i| i * 65_521).collect();
    for pattern in (0..=0xffffu32).step_by(7) {
        for offset in [0x7fff, 0x8000, 0x8001] {
            floats.push(pattern << 16 | offset);
        }
        let halfway = f16::from_bits(u16::try_from(pattern).unwrap()).to_f32().to_bits() | 0x1000;
        floats.extend([halfway - 1, halfway, halfway + 1]);
    }
    for (f, got) in floats.iter().zip(convert(&rig, 1, &floats)) {
        let value = f32::from_bits(*f);
        let want = if value.is_nan() { 0x7fff } else { bf16::from_f32(value).to_bits() };
        assert_eq!(got, u32::from(want), "bf16 of {f:#010x}");
    }
    for (f, got) in floats.iter().zip(convert(&rig, 3, &floats)) {
        let value = f32::from_bits(*f);
        let want = if value.is_nan() { 0x7fff } else { f16::from_f32(value).to_bits() };
        assert_eq!(got, u32::from(want), "f16 of {f:#010x}");
    }
}

#[test]
fn copies_with_zero_fill_end_in_zeros() {
    let Some(_session) = begin(Settings::default()) else { return };
    let rig = Rig::new();
    let input: Vec<u8> = (1..=16).collect();
    let source = rig.stream.clone_htod(&input).unwrap();
    let mut out = rig.stream.alloc_zeros::<u8>(17 * 16).unwrap();
    let f = rig.function("zero_fill");
    // SAFETY: 17 chunks of 16 bytes.
    unsafe { rig.stream.launch_builder(&f).arg(&mut out).arg(&source).launch(grid(1, 17, 17 * 16)) }.unwrap();
    let got = rig.stream.clone_dtoh(&out).unwrap();
    for (t, chunk) in got.chunks(16).enumerate() {
        let want: Vec<u8> = (0..16).map(|i| if i < t { input[i] } else { 0 }).collect();
        assert_eq!(chunk, want, "{t} source bytes");
    }
}

#[test]
fn atomics_count_every_thread_once() {
    let Some(session) = begin(Settings::default()) else { return };
    for seed in seeds() {
        session.reset(Settings { seed, ..Settings::default() });
        let rig = Rig::new();
        let mut out = rig.stream.alloc_zeros::<u32>(4).unwrap();
        let mut sum = rig.stream.alloc_zeros::<f32>(1).unwrap();
        let f = rig.function("counters");
        // SAFETY: the kernel counts into these.
        unsafe { rig.stream.launch_builder(&f).arg(&mut out).arg(&mut sum).launch(grid(5, 64, 0)) }.unwrap();
        // Five increments that wrap after 2: 1, 2, 0, 1, 2.
        assert_eq!(rig.stream.clone_dtoh(&out).unwrap(), [5 * 2016, 4063, 2, 77], "seed {seed}");
        assert_eq!(rig.stream.clone_dtoh(&sum).unwrap(), [160.0]);
    }
}
