//! What the emulation costs: `TOKENROUTER_EMU=plain cargo bench -p tokenrouter-emulate`. CPU time of this process, so
//! that a busy machine does not show.

use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use tokenrouter_emulate::{Kernels, STUB_IMAGE, Settings, session_with};

/// CPU seconds of this process so far.
fn cpu_seconds() -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of this frame.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut t) };
    assert_eq!(failed, 0);
    t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
}

fn main() {
    let session = session_with(Kernels::SelfTest, Settings::default()).expect("the emulation");
    println!("{:?} build, CPU time", session.build());
    let rounds = 20_000i32;
    for seed in [0, 1, 2] {
        session.reset(Settings { seed, ..Settings::default() });
        let ctx = CudaContext::new(0).expect("a device");
        let stream = ctx.default_stream();
        let module = ctx.load_module(Ptx::from_binary(STUB_IMAGE.to_vec())).expect("the stub");
        let mut out = stream.alloc_zeros::<f32>(256).expect("memory");
        let input = stream.alloc_zeros::<f32>(1024).expect("memory");
        // Kernel, rounds, fiber runs per round and warp operations per round, with 256 threads.
        for (name, per_round, operations) in
            [("bench_barrier", 256, 1), ("bench_shuffle", 256, 8), ("bench_mma", 256, 8)]
        {
            let f = module.load_function(name).expect("a kernel");
            let cfg = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (256, 1, 1), shared_mem_bytes: 0 };
            let start = cpu_seconds();
            // SAFETY: the kernel writes one float per thread.
            unsafe { stream.launch_builder(&f).arg(&mut out).arg(&rounds).launch(cfg) }.expect("a launch");
            stream.synchronize().expect("no fault");
            let seconds = cpu_seconds() - start;
            println!(
                "seed {seed} {name}: {:.1} ns per fiber run, {:.3} us per operation",
                seconds * 1e9 / f64::from(rounds * per_round),
                seconds * 1e6 / f64::from(rounds * operations),
            );
        }
        let f = module.load_function("bench_loads").expect("a kernel");
        let cfg = LaunchConfig { grid_dim: (100, 1, 1), block_dim: (256, 1, 1), shared_mem_bytes: 0 };
        let start = cpu_seconds();
        // SAFETY: every block writes the same floats, in turn; the race build would object to more than one.
        let cfg = if session.build() == tokenrouter_emulate::Build::Race {
            LaunchConfig { grid_dim: (1, 1, 1), ..cfg }
        } else {
            cfg
        };
        // SAFETY: the kernel reads n floats and writes one per thread.
        unsafe { stream.launch_builder(&f).arg(&mut out).arg(&input).arg(&1024i32).launch(cfg) }
            .expect("a launch");
        stream.synchronize().expect("no fault");
        let loads = f64::from(cfg.grid_dim.0) * 256.0 * 1024.0;
        println!("seed {seed} bench_loads: {:.2} ns per load", (cpu_seconds() - start) * 1e9 / loads);
    }
}
