//! Pretend NCCL: one thread per rank, through cudarc.

use std::sync::Barrier;
use std::time::Duration;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaStream};
use cudarc::nccl::safe::ReduceOp;
use cudarc::nccl::{Comm, Id};
use half::bf16;
use std::sync::Arc;
use tokenrouter_emulate::Settings;

use crate::support::{begin, name, words};

/// Runs `rank` in a thread per device, with a stream and a communicator of its own.
fn ranks<R: Send>(n: usize, work: impl Fn(usize, &Arc<CudaStream>, &Comm) -> R + Sync) -> Vec<R> {
    let id = Id::new().expect("an id");
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..n)
            .map(|rank| {
                let work = &work;
                scope.spawn(move || {
                    let ctx = CudaContext::new(rank).expect("a device per rank");
                    // SAFETY: a rank orders its one stream itself.
                    unsafe { ctx.disable_event_tracking() };
                    let stream = ctx.new_stream().expect("a stream");
                    let comm = Comm::from_rank(stream.clone(), rank, n, id).expect("all ranks join");
                    work(rank, &stream, &comm)
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().expect("no panic")).collect()
    })
}

fn devices(n: usize, seed: u64) -> Settings {
    Settings { devices: n, seed, ..Settings::default() }
}

#[test]
fn an_all_reduce_sums_in_rank_order_and_rounds_once() {
    let Some(session) = begin(devices(4, 0)) else { return };
    let value = |rank: usize, i: usize| bf16::from_f32((i as f32 * 0.37 + rank as f32).sin() * 100.0);
    for (n, seed) in [(2, 0), (4, 1), (4, 5)] {
        session.reset(devices(n, seed));
        let all = Barrier::new(n);
        let got = ranks(n, |rank, stream, comm| {
            let input: Vec<bf16> = (0..50).map(|i| value(rank, i)).collect();
            let mut buffer = stream.clone_htod(&input).unwrap();
            comm.all_reduce_in_place(&mut buffer, &ReduceOp::Sum).unwrap();
            let result = stream.clone_dtoh(&buffer).unwrap();
            // A communicator that goes away while others still wait would abort them.
            all.wait();
            result
        });
        let want: Vec<bf16> = (0..50)
            .map(|i| bf16::from_f32((1..n).fold(value(0, i).to_f32(), |sum, r| sum + value(r, i).to_f32())))
            .collect();
        for (rank, result) in got.iter().enumerate() {
            assert_eq!(*result, want, "rank {rank} of {n}, seed {seed}");
        }
    }
}

#[test]
fn a_captured_all_reduce_replays_on_every_rank() {
    let Some(session) = begin(devices(2, 0)) else { return };
    for seed in 0..3 {
        session.reset(devices(2, seed));
        let all = Barrier::new(2);
        let got = ranks(2, |rank, stream, comm| {
            let mut buffer = stream.clone_htod(&[rank as f32 + 1.0; 8]).unwrap();
            stream.synchronize().unwrap();
            all.wait();
            stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
            comm.all_reduce_in_place(&mut buffer, &ReduceOp::Sum).unwrap();
            let graph = stream.end_capture(CUgraphInstantiate_flags(0)).unwrap().expect("a graph");
            all.wait();
            graph.launch().unwrap();
            graph.launch().unwrap();
            let result = stream.clone_dtoh(&buffer).unwrap();
            all.wait();
            result
        });
        // 1 + 2 on both, then 3 + 3.
        assert_eq!(got, vec![vec![6.0; 8]; 2], "seed {seed}");
    }
}

#[test]
fn an_all_gather_lies_in_rank_order() {
    let Some(_session) = begin(devices(3, 2)) else { return };
    let all = Barrier::new(3);
    let got = ranks(3, |rank, stream, comm| {
        let mine = stream.clone_htod(&[rank as i32 * 10, rank as i32 * 10 + 1]).unwrap();
        let mut whole = stream.alloc_zeros::<i32>(6).unwrap();
        comm.all_gather(&mine, &mut whole).unwrap();
        let result = stream.clone_dtoh(&whole).unwrap();
        all.wait();
        result
    });
    assert_eq!(got, vec![vec![0, 1, 10, 11, 20, 21]; 3]);
}

#[test]
fn ranks_that_disagree_are_told_so() {
    let Some(session) = begin(devices(2, 0)) else { return };
    let got = ranks(2, |rank, stream, comm| {
        let mut buffer = stream.alloc_zeros::<f32>(if rank == 0 { 8 } else { 6 }).unwrap();
        comm.all_reduce_in_place(&mut buffer, &ReduceOp::Sum).unwrap();
        stream.synchronize().map_err(|e| (name(e), words(e)))
    });
    for result in got {
        let (error, text) = result.expect_err("both ranks fail");
        assert_eq!(error, "CUDA_ERROR_LAUNCH_FAILED");
        assert!(text.contains("ranks disagree: rank 0: all-reduce (sum) of 8 f32"), "{text}");
    }
    assert!(session.message().contains("of 6 f32"));
}

#[test]
fn a_collective_that_not_all_ranks_have_met_is_not_ready_and_times_out() {
    let Some(session) = begin(devices(2, 3)) else { return };
    session.set_timeout(Duration::from_millis(200));
    let all = Barrier::new(2);
    let got = ranks(2, |rank, stream, comm| {
        let mut buffer = stream.alloc_zeros::<f32>(4).unwrap();
        stream.synchronize().unwrap();
        if rank == 0 {
            comm.all_reduce_in_place(&mut buffer, &ReduceOp::Sum).unwrap();
        }
        // SAFETY: the stream is alive.
        let query = || unsafe { cudarc::driver::sys::cuStreamQuery(stream.cu_stream()) }.result();
        let ready = (0..50).filter(|_| query().is_ok()).count();
        let end = stream.synchronize().map_err(name);
        all.wait();
        (ready, end)
    });
    assert_eq!(got[0], (0, Err("CUDA_ERROR_LAUNCH_TIMEOUT".into())));
    assert_eq!(got[1], (50, Ok(())));
}
