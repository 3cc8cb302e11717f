//! All matrix products of a Qwen3-0.6B step (28 layers and the tied head, 1,192 MB of bf16) beside a hand-written loop in C
//! (`products/cpu_limits.c`), in turns: the program asks the other process for a step, makes its own, and so on, so that
//! both meet the same neighbours. CPU time of the slowest thread is compared, and the ratio within each turn.
//!
//! `cargo bench -p tokenrouter-kernels --bench products -- [--repeats N] [--rows 1,2,4,8,16] [--threads 1,2]`; needs a C compiler.
//! With `--weights int8` the same matrices as 8-bit integers take the place of the loop in C: int8 beside bf16, and the
//! time of making them.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use memmap2::MmapMut;
use tokenrouter_kernels::DType;
use tokenrouter_kernels::cpu::{Ctx, Int8Ref, Isa, Matrix, Reduce, WeightRef, WorkerGroup, linear, quantise};

const HIDDEN: usize = 1024;
const INTER: usize = 3072;
const LAYERS: usize = 28;
const Q: usize = 2048;
const KV: usize = 1024;
const VOCAB: usize = 151_936;
const MOST_ROWS: usize = 16;

/// Rows, columns and reduction of a layer's products.
const LAYER: [(usize, usize, Reduce); 4] = [
    (Q + 2 * KV, HIDDEN, Reduce::Whole),
    (HIDDEN, Q, Reduce::Segments4),
    (2 * INTER, HIDDEN, Reduce::Whole),
    (HIDDEN, INTER, Reduce::Segments4),
];

/// The loop in C, one step at a time.
struct Limit {
    child: Child,
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Limit {
    fn start(threads: usize) -> Self {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../benches/products/cpu_limits.c");
        let program = std::env::temp_dir().join(format!("tokenrouter-cpu-limits-{}", std::process::id()));
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
        let flags = ["-O3", "-mavx2", "-mfma", "-mf16c", "-pthread", source, "-o"];
        let status = Command::new(compiler).args(flags).arg(&program).status().expect("a C compiler");
        assert!(status.success(), "the C compiler failed");
        let mut child = Command::new(&program)
            .args(["ask", &threads.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the loop in C");
        std::fs::remove_file(&program).expect("the file that was just made");
        let ask = child.stdin.take().expect("piped");
        let answers = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, ask, answers }
    }

    /// One step. Between steps the process is stopped: its threads wait by spinning, on a core that ours need.
    fn step(&mut self, threads: usize, rows: usize) -> Times {
        self.signal("-CONT");
        writeln!(self.ask, "{threads} {rows}").expect("the loop in C lives");
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("an answer");
        self.signal("-STOP");
        let mut numbers = line.split_whitespace().map(|x| x.parse().expect("a number"));
        Times { wall: numbers.next().expect("wall"), cpu: numbers.next().expect("CPU") }
    }

    fn signal(&self, signal: &str) {
        let done = Command::new("kill").args([signal, &self.child.id().to_string()]).status().expect("kill");
        assert!(done.success(), "kill {signal}");
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Milliseconds of a step.
#[derive(Clone, Copy)]
struct Times {
    wall: f64,
    /// Of the slowest thread.
    cpu: f64,
}

/// The same products by our kernels.
struct Ours {
    weights: MmapMut,
    /// The same as 8-bit integers, once they are made.
    int8: Option<MmapMut>,
    x: Vec<f32>,
    out: Vec<f32>,
    isa: Isa,
}

/// All matrices of a step.
fn matrices() -> impl Iterator<Item = (usize, usize, Reduce)> {
    LAYER.into_iter().cycle().take(LAYERS * LAYER.len()).chain([(VOCAB, HIDDEN, Reduce::Whole)])
}

/// Zeros, in large pages where the system has them.
fn memory(bytes: usize) -> MmapMut {
    let memory = MmapMut::map_anon(bytes).expect("memory");
    #[cfg(target_os = "linux")]
    let _ = memory.advise(memmap2::Advice::HugePage);
    memory
}

/// Bytes of an 8-bit matrix.
fn int8_bytes(n: usize, k: usize) -> usize {
    Int8Ref::bytes(n, k).expect("a matrix of a model")
}

impl Ours {
    fn new() -> Self {
        let mut weights = memory(matrices().map(|(n, k, _)| 2 * n * k).sum());
        // Small bf16 values of both signs: no denormals, no overflow.
        for (i, word) in weights.chunks_exact_mut(8).enumerate() {
            let bits = (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) & 0x807f_807f_807f_807f;
            word.copy_from_slice(&(0x3c00_3c00_3c00_3c00 | bits).to_le_bytes());
        }
        let x = (0..MOST_ROWS * INTER).map(|i| ((i % 13) as f32 - 6.0) * 0.1).collect();
        let isa = Isa::detect().expect("an instruction set");
        Self { weights, int8: None, x, out: vec![0.0; MOST_ROWS * VOCAB], isa }
    }

    /// Makes the 8-bit weights; tells the time.
    fn quantise(&mut self, workers: &WorkerGroup) -> Times {
        let ctx = Ctx { isa: self.isa, workers };
        let weights = &self.weights;
        let (int8, times) = timed(|| {
            let mut int8 = memory(matrices().map(|(n, k, _)| int8_bytes(n, k)).sum());
            let (mut from, mut to) = (0, 0);
            for (n, k, _) in matrices() {
                let bytes = int8_bytes(n, k);
                quantise(ctx, bf16(weights, from, n, k), &mut int8[to..to + bytes]).expect("numbers");
                (from, to) = (from + 2 * n * k, to + bytes);
            }
            int8
        });
        self.int8 = Some(int8);
        times
    }

    /// One step, with the 8-bit weights or the others.
    fn step(&mut self, workers: &WorkerGroup, rows: usize, int8: bool) -> Times {
        let ctx = Ctx { isa: self.isa, workers };
        let Self { weights, int8: made, x, out, .. } = self;
        let made = made.as_ref().filter(|_| int8);
        timed(|| {
            let mut at = 0;
            for (n, k, reduce) in matrices() {
                let (w, bytes) = match made {
                    None => (Matrix::from(bf16(weights, at, n, k)), 2 * n * k),
                    Some(made) => {
                        let bytes = int8_bytes(n, k);
                        (Int8Ref::new(n, k, &made[at..at + bytes]).expect("lengths").into(), bytes)
                    }
                };
                linear(ctx, &x[..rows * k], w, None, reduce, &mut out[..rows * n]);
                at += bytes;
            }
        })
        .1
    }
}

/// The matrix of `n` by `k` whose bytes begin at `at`.
fn bf16(weights: &[u8], at: usize, n: usize, k: usize) -> WeightRef<'_> {
    WeightRef::new(DType::Bf16, n, k, &weights[at..at + 2 * n * k]).expect("lengths")
}

/// What a piece of work takes.
fn timed<T>(work: impl FnOnce() -> T) -> (T, Times) {
    let (wall, before) = (Instant::now(), thread_times());
    let done = work();
    let wall = wall.elapsed().as_secs_f64() * 1e3;
    let ran =
        |id: &String, ns: u64| ns - before.iter().find(|(other, _)| other == id).map_or(0, |(_, ns)| *ns);
    let cpu = thread_times().iter().map(|(id, ns)| ran(id, *ns)).max();
    (done, Times { wall, cpu: cpu.unwrap_or(0) as f64 / 1e6 })
}

/// Nanoseconds that each thread of this process has run.
fn thread_times() -> Vec<(String, u64)> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux");
    let time = |id: &str| -> Option<u64> {
        let text = std::fs::read_to_string(format!("/proc/self/task/{id}/schedstat")).ok()?;
        text.split_whitespace().next()?.parse().ok()
    };
    tasks
        .filter_map(|task| {
            let id = task.ok()?.file_name().into_string().ok()?;
            let ns = time(&id)?;
            Some((id, ns))
        })
        .collect()
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The value behind a flag, as numbers.
fn numbers(flag: &str, default: &[usize]) -> Vec<usize> {
    let mut args = std::env::args().skip_while(|arg| arg != flag);
    let Some(list) = args.nth(1) else { return default.to_vec() };
    list.split(',')
        .map(|x| x.parse().unwrap_or_else(|_| panic!("{flag} {list}: numbers are needed")))
        .collect()
}

fn main() {
    // `cargo test --benches` runs every target; there is nothing to test here.
    if std::env::args().any(|arg| arg == "--test") {
        return;
    }
    let (repeats, rows) = (numbers("--repeats", &[9])[0], numbers("--rows", &[1, 2, 4, 8, 16]));
    let threads = numbers("--threads", &[1, 2]);
    let most = threads.iter().copied().max().unwrap_or(1);
    let mut ours = Ours::new();
    let int8 = match std::env::args().skip_while(|arg| arg != "--weights").nth(1).as_deref() {
        None | Some("bf16") => false,
        Some("int8") => true,
        Some(other) => panic!("--weights {other}: bf16 or int8"),
    };
    let mut limit = (!int8).then(|| Limit::start(most));
    let names = if int8 { ["bf16", "int8"] } else { ["C loop", "ours"] };
    println!("CPU ms of the slowest thread (wall ms): medians of {repeats} turns, {} path", ours.isa.name());
    println!(
        "threads rows   {:<17} {:<17} {} / {}, median (lowest to highest)",
        names[0], names[1], names[1], names[0]
    );
    for &threads in &threads {
        let workers = WorkerGroup::new("products", threads).expect("threads");
        if int8 {
            let times = ours.quantise(&workers);
            println!("{threads:7} made int8 in {:.0} ms ({:.0})", times.cpu, times.wall);
        }
        for &rows in &rows {
            assert!(rows <= MOST_ROWS && (rows <= 2 || rows.is_multiple_of(4)), "rows: 1, 2, 4, 8, 12 or 16");
            let (mut base, mut own) = (Vec::new(), Vec::new());
            for turn in 0..=repeats {
                let pair = match &mut limit {
                    Some(limit) => (limit.step(threads, rows), ours.step(&workers, rows, false)),
                    None => (ours.step(&workers, rows, false), ours.step(&workers, rows, true)),
                };
                // The first turn warms up.
                if turn > 0 {
                    base.push(pair.0);
                    own.push(pair.1);
                }
            }
            let mut ratios: Vec<f64> = own.iter().zip(&base).map(|(own, base)| own.cpu / base.cpu).collect();
            let of = |times: &[Times], get: fn(&Times) -> f64| {
                median(&mut times.iter().map(get).collect::<Vec<_>>())
            };
            println!(
                "{threads:7} {rows:4}   {:6.1} ({:6.1})   {:6.1} ({:6.1})   {:.2} ({:.2} to {:.2})",
                of(&base, |t| t.cpu),
                of(&base, |t| t.wall),
                of(&own, |t| t.cpu),
                of(&own, |t| t.wall),
                median(&mut ratios),
                ratios[0],
                ratios[ratios.len() - 1]
            );
        }
    }
}
