//! All matrix products of a Qwen3-0.6B step (28 layers and the tied head, 1,192 MB of bf16) beside a hand-written loop in C
//! (`products/cpu_limits.c`), in turns: the program asks the other process for a step, makes its own, and so on, so that
//! both meet the same neighbours. CPU time of the slowest thread is compared, and the ratio within each turn.
//!
//! `cargo bench -p tokenrouter-kernels --bench products -- [--repeats N] [--rows 1,2,4,8,16] [--threads 1,2]`; needs a C compiler.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use memmap2::MmapMut;
use tokenrouter_kernels::DType;
use tokenrouter_kernels::cpu::{Ctx, Isa, Reduce, WeightRef, WorkerGroup, linear};

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
    x: Vec<f32>,
    out: Vec<f32>,
    isa: Isa,
}

impl Ours {
    fn new() -> Self {
        let layer: usize = LAYER.iter().map(|(n, k, _)| n * k).sum();
        let mut weights = MmapMut::map_anon(2 * (layer * LAYERS + VOCAB * HIDDEN)).expect("memory");
        #[cfg(target_os = "linux")]
        let _ = weights.advise(memmap2::Advice::HugePage);
        // Small bf16 values of both signs: no denormals, no overflow.
        for (i, word) in weights.chunks_exact_mut(8).enumerate() {
            let bits = (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) & 0x807f_807f_807f_807f;
            word.copy_from_slice(&(0x3c00_3c00_3c00_3c00 | bits).to_le_bytes());
        }
        let x = (0..MOST_ROWS * INTER).map(|i| ((i % 13) as f32 - 6.0) * 0.1).collect();
        let isa = Isa::detect().expect("an instruction set");
        Self { weights, x, out: vec![0.0; MOST_ROWS * VOCAB], isa }
    }

    fn step(&mut self, workers: &WorkerGroup, rows: usize) -> Times {
        let ctx = Ctx { isa: self.isa, workers };
        let (wall, before) = (Instant::now(), thread_times());
        let mut at = 0;
        let head = [(VOCAB, HIDDEN, Reduce::Whole)];
        for &(n, k, reduce) in LAYER.iter().cycle().take(LAYERS * LAYER.len()).chain(&head) {
            let w =
                WeightRef::new(DType::Bf16, n, k, &self.weights[2 * at..2 * (at + n * k)]).expect("lengths");
            linear(ctx, &self.x[..rows * k], w, None, reduce, &mut self.out[..rows * n]);
            at += n * k;
        }
        let wall = wall.elapsed().as_secs_f64() * 1e3;
        let after = thread_times();
        let cpu = after
            .iter()
            .map(|(id, ns)| ns - before.iter().find(|(other, _)| other == id).map_or(0, |(_, ns)| *ns));
        Times { wall, cpu: cpu.max().unwrap_or(0) as f64 / 1e6 }
    }
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
    let (mut limit, mut ours) = (Limit::start(most), Ours::new());
    println!("CPU ms of the slowest thread (wall ms): medians of {repeats} turns, {} path", ours.isa.name());
    println!("threads rows   C loop            ours              ours / C, median (lowest to highest)");
    for &threads in &threads {
        let workers = WorkerGroup::new("products", threads).expect("threads");
        for &rows in &rows {
            assert!(rows <= MOST_ROWS && (rows <= 2 || rows.is_multiple_of(4)), "rows: 1, 2, 4, 8, 12 or 16");
            let (mut theirs, mut own) = (Vec::new(), Vec::new());
            for turn in 0..=repeats {
                let pair = (limit.step(threads, rows), ours.step(&workers, rows));
                // The first turn warms up.
                if turn > 0 {
                    theirs.push(pair.0);
                    own.push(pair.1);
                }
            }
            let mut ratios: Vec<f64> =
                own.iter().zip(&theirs).map(|(own, theirs)| own.cpu / theirs.cpu).collect();
            let of = |times: &[Times], get: fn(&Times) -> f64| {
                median(&mut times.iter().map(get).collect::<Vec<_>>())
            };
            println!(
                "{threads:7} {rows:4}   {:6.1} ({:6.1})   {:6.1} ({:6.1})   {:.2} ({:.2} to {:.2})",
                of(&theirs, |t| t.cpu),
                of(&theirs, |t| t.wall),
                of(&own, |t| t.cpu),
                of(&own, |t| t.wall),
                median(&mut ratios),
                ratios[0],
                ratios[ratios.len() - 1]
            );
        }
    }
}
