//! What a GPU does with the kernels, beside what the same GPU can do at all, measured in the same run. `tests/device.sh`
//! runs it; by itself: `cargo bench --features cuda --bench device`.
//!
//! Copy bandwidth is a device-to-device copy, bytes read and written. A step is the chain of all products of a model
//! with random weights (no attention, no norms); its floor is the bytes of the weights at the copy bandwidth. The part
//! `engine` runs whole models through the engine. Every part that cannot run says why in one line. Without a GPU
//! everything runs on the emulation with toy sizes, so that the code itself is tested; those times mean nothing.
//!
//! Names of parts on the command line choose among them (`copy`, `products`, `steps`, `models`, `engine`); the copy
//! always runs, since floors are made of it.

#[path = "device/checkpoint.rs"]
mod checkpoint;
#[path = "device/engine.rs"]
mod engine;
#[path = "device/model.rs"]
mod model;
#[path = "device/window.rs"]
mod window;

use std::sync::Arc;
use std::time::Instant;

use tokenrouter_emulate::{STUB_IMAGE, Session, Settings, session};
use tokenrouter_kernels::cuda::{
    Buffer, Capture, CudaError, CudaStream, Device, GraphExec, Kernels, Ptr, images,
};

use checkpoint::Decoder;
use model::{Shape, Weights};

/// A device with everything that the parts need. The emulation's session, if there is one, ends last.
struct Bench {
    kernels: Kernels,
    stream: Arc<CudaStream>,
    device: Device,
    /// Bytes per second of a copy on the device, read and written; 0 before it was measured.
    bandwidth: f64,
    toy: bool,
    _emulation: Option<Session>,
}

fn main() {
    // `cargo bench -- --test` and plain runs do the same.
    let mut bench = match Bench::open() {
        Ok(bench) => bench,
        Err(why) => {
            println!("device bench: cannot run: {why}");
            return;
        }
    };
    let chosen: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    type Part = (&'static str, fn(&mut Bench) -> Result<(), CudaError>);
    let parts: [Part; 5] = [
        ("copy", copy),
        ("products", products),
        ("steps", steps),
        ("models", two_models),
        ("engine", whole_steps),
    ];
    for (name, part) in parts {
        let wanted = chosen.is_empty() || name == "copy" || chosen.iter().any(|c| c == name);
        if wanted && let Err(why) = part(&mut bench) {
            println!("{name}: cannot run: {why}");
        }
    }
}

impl Bench {
    fn open() -> Result<Self, String> {
        let words = |e: CudaError| e.to_string();
        let real = !images().is_empty() && Device::count().is_ok_and(|n| n > 0);
        let emulation = if real { None } else { Some(session(Settings::default())?) };
        let device = Device::open(0).map_err(words)?;
        let stream = device.stream().map_err(words)?;
        let stub: &[&[u8]] = &[&STUB_IMAGE];
        let kernels = Kernels::load(&device, if real { images() } else { stub }).map_err(words)?;
        let (free, total) = device.memory().map_err(words)?;
        println!(
            "device: {}, {} multiprocessors, {} of {} MiB free{}",
            device.name(),
            device.processors(),
            free >> 20,
            total >> 20,
            if real { "" } else { " (EMULATED, toy sizes: the times mean nothing)" }
        );
        Ok(Self { kernels, stream, device, bandwidth: 0.0, toy: !real, _emulation: emulation })
    }

    /// Seconds of one call of `work`, which queues something: the best of a few groups of calls.
    fn time(&self, work: impl Fn() -> Result<(), CudaError>) -> Result<f64, CudaError> {
        let (groups, calls) = if self.toy { (1, 1) } else { (3, 10) };
        let wait = || self.device.wait(&self.stream);
        work()?;
        wait()?;
        let mut best = f64::INFINITY;
        for _ in 0..groups {
            let start = Instant::now();
            for _ in 0..calls {
                work()?;
            }
            wait()?;
            best = best.min(start.elapsed().as_secs_f64() / f64::from(calls));
        }
        Ok(best)
    }

    fn captured(&self, work: impl Fn() -> Result<(), CudaError>) -> Result<GraphExec, CudaError> {
        let capture = Capture::begin(&self.stream)?;
        work()?;
        let exec = capture.end()?.instantiate()?;
        exec.upload(&self.stream)?;
        Ok(exec)
    }
}

/// What the card can do: every byte is read once and written once.
fn copy(bench: &mut Bench) -> Result<(), CudaError> {
    let bytes: usize = if bench.toy { 1 << 16 } else { 1 << 30 };
    let [from, to] = [(), ()].map(|()| Buffer::<u8>::zeroed(&bench.device, &bench.stream, bytes));
    let (from, to) = (from?, to?);
    let seconds = bench.time(|| model::copy(&bench.stream, to.ptr(), from.ptr(), bytes))?;
    bench.bandwidth = 2.0 * bytes as f64 / seconds;
    println!("copy: {:.0} GB/s read and written", bench.bandwidth / 1e9);
    Ok(())
}

fn shapes(toy: bool) -> Vec<Shape> {
    let decoders: &[Decoder] =
        if toy { &[Decoder::TOY, Decoder::LARGE_TOY] } else { &[Decoder::QWEN3_0_6B, Decoder::QWEN3_8B] };
    decoders.iter().map(Shape::of).collect()
}

/// Each product of a layer by itself, over fresh weights every time.
fn products(bench: &mut Bench) -> Result<(), CudaError> {
    println!(
        "{:<12} {:<10} {:>5} {:>10} {:>8} {:>10}",
        "model", "product", "rows", "us", "of copy", "TFLOP/s"
    );
    for shape in shapes(bench.toy) {
        let weights = Weights::random(&bench.device, &bench.stream, &shape)?;
        for product in 0..shape.products().len() {
            let (name, n, k) = shape.products()[product];
            for rows in [1u32, 4, 16, 64] {
                let inputs = weights.inputs(&bench.device, &bench.stream, rows)?;
                let all = || weights.launch_one(&bench.kernels, &bench.stream, product, rows, &inputs);
                let seconds = bench.time(all)? / weights.copies(product) as f64;
                let bytes = (n * k * 2) as f64;
                let share = bytes / bench.bandwidth / seconds * 100.0;
                let rate = 2.0 * f64::from(rows) * (n * k) as f64 / seconds / 1e12;
                let us = seconds * 1e6;
                println!("{:<12} {name:<10} {rows:>5} {us:>10.1} {share:>7.0}% {rate:>10.1}", shape.name);
            }
        }
    }
    Ok(())
}

/// All products of a step: one by one, and from a graph.
fn steps(bench: &mut Bench) -> Result<(), CudaError> {
    println!(
        "{:<12} {:>5} {:>10} {:>10} {:>10} {:>8} {:>12}",
        "model", "rows", "eager us", "graph us", "floor us", "reached", "gap ns/call"
    );
    for shape in shapes(bench.toy) {
        let weights = Weights::random(&bench.device, &bench.stream, &shape)?;
        for rows in [1u32, 4, 16, 64] {
            let inputs = weights.inputs(&bench.device, &bench.stream, rows)?;
            let step = || weights.launch(&bench.kernels, &bench.stream, rows, &inputs);
            let eager = bench.time(step)?;
            let graph = bench.captured(step)?;
            // SAFETY: the weights and inputs live, and every run is waited for.
            let captured = bench.time(|| unsafe { graph.launch(&bench.stream) })?;
            let floor = weights.bytes() as f64 / bench.bandwidth;
            let gap = (eager - captured) / weights.launches() as f64 * 1e9;
            println!(
                "{:<12} {rows:>5} {:>10.1} {:>10.1} {:>10.1} {:>7.0}% {gap:>12.0}",
                shape.name,
                eager * 1e6,
                captured * 1e6,
                floor * 1e6,
                floor / captured * 100.0
            );
        }
    }
    Ok(())
}

/// A small and a large model on one card: what each loses while the other one runs.
fn two_models(bench: &mut Bench) -> Result<(), CudaError> {
    let shapes = shapes(bench.toy);
    let (small, large) = (&shapes[0], &shapes[shapes.len() - 1]);
    let other = bench.device.stream_with_priority(true)?;
    let load = |shape: &Shape| Weights::random(&bench.device, &bench.stream, shape);
    let (slm, llm) = (load(small)?, load(large)?);
    let (slm_in, llm_in) =
        (slm.inputs(&bench.device, &bench.stream, 4)?, llm.inputs(&bench.device, &bench.stream, 4)?);
    let llm_step = bench.captured(|| llm.launch(&bench.kernels, &bench.stream, 4, &llm_in))?;
    let slm_step = bench.captured(|| slm.launch(&bench.kernels, &bench.stream, 4, &slm_in))?;
    // SAFETY: the weights and inputs live until both streams have been waited for, as in all launches below.
    let large_alone = bench.time(|| unsafe { llm_step.launch(&bench.stream) })?;
    // SAFETY: as above.
    let small_alone = bench.time(|| unsafe { slm_step.launch(&bench.stream) })?;
    // As many small steps as fit beside one large step.
    let beside = (large_alone / small_alone).ceil().clamp(1.0, 64.0) as u32;
    let calls = if bench.toy { 1 } else { 10 };
    let start = Instant::now();
    for _ in 0..calls {
        // SAFETY: as above.
        unsafe { llm_step.launch(&bench.stream) }?;
        for _ in 0..beside {
            // SAFETY: as above; this graph runs on the other stream alone.
            unsafe { slm_step.launch(&other) }?;
        }
    }
    bench.device.wait(&other)?;
    let small_time = start.elapsed().as_secs_f64() / f64::from(calls * beside);
    bench.device.wait(&bench.stream)?;
    let large_time = start.elapsed().as_secs_f64() / f64::from(calls);
    println!(
        "two models: {} step {:.1} us alone, {:.1} us beside the other ({:.2}x); {} step {:.1} us alone, {:.1} us ({:.2}x)",
        small.name,
        small_alone * 1e6,
        small_time * 1e6,
        small_time / small_alone,
        large.name,
        large_alone * 1e6,
        large_time * 1e6,
        large_time / large_alone
    );
    Ok(())
}

/// Models in the engine.
fn whole_steps(bench: &mut Bench) -> Result<(), CudaError> {
    engine::run(bench.toy, bench.bandwidth);
    Ok(())
}

/// An address without elements, where a kernel allows one.
const NONE: Ptr<half::bf16> = Ptr::NULL;
