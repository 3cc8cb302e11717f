//! Every planted fault must be caught in the builds where it can be, and the right versions must pass in all.

use cudarc::driver::PushKernelArg;
use tokenrouter_emulate::{Build, Session, Settings};

use crate::support::{Rig, begin, grid};

const SEEDS: [u64; 5] = [0, 1, 2, 3, 4];

/// What a build must make of a kernel.
enum Expect {
    /// Right results under every seed.
    Right,
    /// A wrong result under at least one seed, and no error.
    Wrong,
    /// A launch error with these words, under every seed.
    Says(&'static str),
}
use Expect::{Right, Says, Wrong};

/// Kernel, then what plain, race and asan must make of it.
type Row = (&'static str, Expect, Expect, Expect);

/// What each test kernel computes when it is right: 128 floats from 1024, by the kernel's name.
fn expected(kernel: &str, input: &[f32]) -> Vec<f32> {
    let t = |f: &dyn Fn(usize) -> f32| (0..threads(kernel)).map(f).collect();
    match kernel.split('_').next().unwrap_or("") {
        "sum" => t(&|_| input[..128].iter().sum()),
        "pipe" => t(&|i| (0..4).map(|tile| input[(tile * 64 + (i ^ 33)) * 4]).sum()),
        "gather" => t(&|i| input[(i * 7) % 64]),
        "last" => t(&|i| (1..=3).map(|b| input[i ^ 1] * b as f32).sum()),
        "warp" | "uninitialised" => t(&|i| input[i ^ 1]),
        "past" if kernel == "past_dynamic" => t(&|i| input[i] + 1.0),
        "same" => t(&|_| input[5]),
        "overflow" => t(&|i| input[i] + 1.0),
        _ => t(&|i| input[i]),
    }
}

fn threads(kernel: &str) -> usize {
    if kernel.starts_with("sum") { 128 } else { 64 }
}

/// Runs a kernel of bugs.cu on fresh memory.
fn run(kernel: &str, input: &[f32]) -> Result<Vec<f32>, cudarc::driver::DriverError> {
    let rig = Rig::new();
    let stream = &rig.stream;
    let f = rig.function(kernel);
    let table: Vec<i32> = (0..64).map(|i| (i * 7) % 64).collect();
    let source = stream.clone_htod(input)?;
    let table = stream.clone_htod(&table)?;
    let mut out = stream.alloc_zeros::<f32>(threads(kernel))?;
    let mut partial = stream.alloc_zeros::<f32>(3 * 64)?;
    let mut counter = stream.alloc_zeros::<u32>(1)?;
    let four = 4i32;
    let floats = 256i32;
    let past = i32::try_from(input.len()).expect("small");
    let blocks = match kernel {
        "blocks_collide" => 2,
        k if k.starts_with("last") => 3,
        _ => 1,
    };
    let shared = match kernel {
        k if k.starts_with("pipe") => 2048,
        "past_dynamic" | "copy_misaligned" => 1024,
        _ => 0,
    };
    let mut launch = stream.launch_builder(&f);
    launch.arg(&mut out).arg(&source);
    match kernel {
        k if k.starts_with("pipe") => {
            launch.arg(&four);
        }
        k if k.starts_with("gather") => {
            launch.arg(&table);
        }
        k if k.starts_with("last") => {
            launch.arg(&mut partial).arg(&mut counter);
        }
        "past_dynamic" => {
            launch.arg(&floats);
        }
        "read_outside" => {
            launch.arg(&past);
        }
        _ => {}
    }
    let threads = u32::try_from(threads(kernel)).expect("small");
    // SAFETY: the arguments are those of the kernel; what it does wrong is the point of the test.
    unsafe { launch.launch(grid(blocks, threads, shared)) }?;
    stream.clone_dtoh(&out)
}

fn check(session: &Session, kernel: &str, expect: &Expect) -> Result<(), String> {
    let input: Vec<f32> = (0..1024u16).map(|i| f32::from(i % 97) + 1.0).collect();
    let want = expected(kernel, &input);
    let mut wrong = 0;
    for seed in SEEDS {
        session.reset(Settings { seed, ..Settings::default() });
        let got = run(kernel, &input);
        let message = session.message();
        match (&got, expect) {
            (Ok(values), Right) if *values == want => {}
            (Ok(values), Wrong) => wrong += usize::from(*values != want),
            (Err(_), Says(part)) if message.contains(part) => {}
            (Ok(values), _) => {
                return Err(format!("{kernel}, seed {seed}: no error; results right: {}", *values == want));
            }
            (Err(e), _) => return Err(format!("{kernel}, seed {seed}: {e}: {message}")),
        }
    }
    match expect {
        Wrong if wrong == 0 => Err(format!("{kernel}: the results are right under every seed")),
        _ => Ok(()),
    }
}

/// The table of the study, and more. `Right` on a faulty kernel means that this build is known to miss the fault.
fn table() -> Vec<Row> {
    vec![
        ("sum_right", Right, Right, Right),
        ("pipe_right", Right, Right, Right),
        ("gather_right", Right, Right, Right),
        ("warp_sync_right", Right, Right, Right),
        ("last_block_right", Right, Right, Right),
        ("sum_no_barrier", Wrong, Says("uninitialised shared memory at bugs.cu:"), Wrong),
        (
            "pipe_no_wait",
            Says("never waited for"),
            Says("uninitialised shared memory"),
            Says("never waited for"),
        ),
        (
            "pipe_wrong_count",
            Says("never waited for"),
            Says("uninitialised shared"),
            Says("never waited for"),
        ),
        ("pipe_no_commit", Says("never waited for"), Says("uninitialised shared"), Says("never waited for")),
        ("pipe_no_barrier", Wrong, Says("shared memory"), Wrong),
        ("pipe_early_refill", Wrong, Says("shared memory"), Wrong),
        (
            "gather_overrun",
            Wrong,
            Says("outside every device allocation at bugs.cu:"),
            Says("outside every device allocation at bugs.cu:"),
        ),
        ("same_word", Right, Says("race in shared memory: write of 4 bytes at bugs.cu:"), Right),
        ("some_lanes_shuffle", Says("shuffle"), Says("shuffle"), Says("shuffle")),
        (
            "divergent_barrier",
            Says("barrier divergence"),
            Says("barrier divergence"),
            Says("barrier divergence"),
        ),
        (
            "past_dynamic",
            Says("'dynamic' was overrun"),
            Says("outside every shared array"),
            Says("outside every shared array at bugs.cu:"),
        ),
        (
            "past_static",
            Says("'small' was overrun"),
            Says("outside every shared array"),
            Says("use-after-poison"),
        ),
        (
            "read_outside",
            Says("outside every device allocation"),
            Says("read of 4 bytes outside every device allocation"),
            Says("use-after-poison"),
        ),
        ("uninitialised", Wrong, Says("uninitialised shared memory at bugs.cu:"), Wrong),
        ("warp_no_sync", Right, Says("race in shared memory"), Right),
        ("last_block_no_fence", Right, Says("race in device memory"), Right),
        ("blocks_collide", Right, Says("race in device memory"), Right),
        ("shuffle_from_outside", Says("not in mask"), Says("not in mask"), Says("not in mask")),
        (
            "copy_misaligned",
            Says("not 16-byte aligned"),
            Says("not 16-byte aligned"),
            Says("not 16-byte aligned"),
        ),
        ("misaligned_vector", Wrong, Wrong, Says("misaligned access at bugs.cu:")),
        ("spins_for_ever", Says("spin_hint"), Says("spin_hint"), Says("spin_hint")),
        ("overflow_stack", Says("stack of 64 KiB"), Says("stack of 64 KiB"), Right),
        (
            "far_outside",
            Says("outside every device"),
            Says("outside every device"),
            Says("outside every device"),
        ),
        ("group_read_early", Wrong, Wrong, Wrong),
        (
            "group_divergent",
            Says("different products"),
            Says("different products"),
            Says("different products"),
        ),
        ("divide_by_zero", Says("division by zero"), Says("division by zero"), Says("division by zero")),
    ]
}

#[test]
fn planted_faults_are_caught() {
    let Some(session) = begin(Settings::default()) else { return };
    let failures: Vec<String> = table()
        .iter()
        .filter_map(|(kernel, plain, race, asan)| {
            let expect = match session.build() {
                Build::Plain => plain,
                Build::Race => race,
                Build::Asan => asan,
            };
            check(&session, kernel, expect).err()
        })
        .collect();
    assert!(failures.is_empty(), "{:?} build:\n{}", session.build(), failures.join("\n"));
}

#[test]
fn every_barrier_and_wait_of_the_right_kernels_is_needed() {
    let Some(session) = begin(Settings::default()) else { return };
    session.watch_sites();
    // Only the race build sees a missing order within a warp or between blocks.
    let right: &[&str] = match session.build() {
        Build::Race => &["sum_right", "pipe_right", "warp_sync_right", "last_block_right"],
        _ => &["sum_right", "pipe_right"],
    };
    for kernel in right {
        check(&session, kernel, &Right).unwrap();
    }
    let sites: Vec<String> = session.sites().into_iter().filter(|s| s.starts_with("bugs.cu:")).collect();
    assert_eq!(sites.len(), if session.build() == Build::Race { 8 } else { 4 }, "{sites:?}");
    for site in &sites {
        session.remove_site(site.split(' ').next());
        let survived = right.iter().all(|kernel| check(&session, kernel, &Right).is_ok());
        session.remove_site(None);
        assert!(!survived, "{:?} build: everything passes without {site}", session.build());
    }
}
