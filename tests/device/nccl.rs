//! Communicators on the pretend NCCL: sums and gathers, captured and not, and everything that must not hang.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use cudarc::driver::CudaStream;
use tokenrouter_emulate::{Settings, seeds};
use tokenrouter_kernels::cuda::{Buffer, Capture, Communicator, CudaError, Device, Event};

use crate::seam::begin;

const LIMIT: Duration = Duration::from_secs(20);
const SOON: Duration = Duration::from_millis(50);

fn devices(devices: usize, seed: u64) -> Settings {
    Settings { devices, seed, ..Settings::default() }
}

/// Runs `work` on a thread per rank, each with its device, a stream and a communicator.
fn ranks<R: Send>(
    n: usize,
    work: impl Fn(usize, &Device, &Arc<CudaStream>, Communicator) -> R + Sync,
) -> Vec<R> {
    let id = Communicator::unique_id().unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..n)
            .map(|rank| {
                let work = &work;
                scope.spawn(move || {
                    let device = Device::open(rank).unwrap();
                    let stream = device.stream().unwrap();
                    let comm = Communicator::join(&device, id, rank, n, LIMIT).unwrap();
                    assert_eq!((comm.rank(), comm.ranks()), (rank, n));
                    work(rank, &device, &stream, comm)
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().expect("no panic")).collect()
    })
}

#[test]
fn sums_and_gathers_agree_on_every_rank() {
    let Some(emu) = begin(devices(4, 0)) else { return };
    for seed in seeds() {
        for n in [1, 2, 4] {
            emu.reset(devices(n, seed));
            let all = Barrier::new(n);
            let got = ranks(n, |rank, device, stream, comm| {
                let part = Buffer::from_slice(device, stream, &[rank as f32, 1.0, 0.5]).unwrap();
                let whole = Buffer::<f32>::zeroed(device, stream, 3 * n).unwrap();
                // SAFETY: the buffers hold the values and are read below; all ranks do the same.
                unsafe {
                    comm.all_gather_f32(stream, part.ptr(), whole.ptr(), 3).unwrap();
                    comm.all_reduce_sum_f32(stream, part.ptr(), 3).unwrap();
                }
                let result = (part.read(stream).unwrap(), whole.read(stream).unwrap());
                comm.async_error().unwrap();
                all.wait();
                result
            });
            let sum = vec![(0..n).sum::<usize>() as f32, n as f32, 0.5 * n as f32];
            let whole: Vec<f32> = (0..n).flat_map(|r| [r as f32, 1.0, 0.5]).collect();
            assert_eq!(got, vec![(sum, whole); n], "seed {seed}, {n} ranks");
        }
    }
}

#[test]
fn captured_collectives_replay_and_die_before_their_communicator() {
    let Some(emu) = begin(devices(2, 0)) else { return };
    for seed in seeds() {
        emu.reset(devices(2, seed));
        let all = Barrier::new(2);
        let got = ranks(2, |rank, device, stream, comm| {
            let part = Buffer::from_slice(device, stream, &[rank as f32 + 1.0]).unwrap();
            let whole = Buffer::<f32>::zeroed(device, stream, 2).unwrap();
            // The first collective connects the ranks, which no capture may contain.
            // SAFETY: the buffers live until the ranks are done; all ranks do the same.
            unsafe { comm.all_reduce_sum_f32(stream, part.ptr(), 1).unwrap() };
            stream.synchronize().unwrap();
            all.wait();
            let capture = Capture::begin(stream).unwrap();
            // SAFETY: as above.
            unsafe {
                comm.all_reduce_sum_f32(stream, part.ptr(), 1).unwrap();
                comm.all_gather_f32(stream, part.ptr(), whole.ptr(), 1).unwrap();
            }
            let graph = capture.end().unwrap();
            all.wait();
            let exec = graph.instantiate().unwrap();
            for _ in 0..2 {
                // SAFETY: as above.
                unsafe { exec.launch(stream) }.unwrap();
            }
            let result = whole.read(stream).unwrap();
            all.wait();
            drop((exec, graph, comm));
            result
        });
        // 1 + 2 on both, then 3 + 3, then 6 + 6.
        assert_eq!(got, vec![vec![12.0; 2]; 2], "seed {seed}");
        assert_eq!(emu.message(), "", "the order of the drops");
    }
}

#[test]
fn the_order_of_the_drops_is_looked_at() {
    let Some(emu) = begin(devices(1, 0)) else { return };
    ranks(1, |_, device, stream, comm| {
        let part = Buffer::<f32>::zeroed(device, stream, 1).unwrap();
        // SAFETY: nothing runs.
        unsafe { comm.all_reduce_sum_f32(stream, part.ptr(), 1).unwrap() };
        stream.synchronize().unwrap();
        let capture = Capture::begin(stream).unwrap();
        // SAFETY: as above.
        unsafe { comm.all_reduce_sum_f32(stream, part.ptr(), 1).unwrap() };
        let exec = capture.end().unwrap().instantiate().unwrap();
        drop(comm);
        drop(exec);
    });
    assert!(emu.message().contains("while a graph held"), "{}", emu.message());
}

#[test]
fn a_rank_that_never_comes_is_a_named_error_at_the_deadline() {
    let Some(_emu) = begin(devices(2, 0)) else { return };
    let device = Device::open(1).unwrap();
    let id = Communicator::unique_id().unwrap();
    let error = Communicator::join(&device, id, 1, 2, SOON).err().expect("nobody else joins");
    assert!(matches!(error, CudaError::NcclTimeout { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("rank 1 of 2") && text.contains("within 0.05 s"), "{text}");
}

#[test]
fn a_library_that_hangs_is_left_behind_at_the_deadline() {
    let Some(emu) = begin(devices(2, 0)) else { return };
    emu.hang_nccl(true);
    let device = Device::open(0).unwrap();
    let id = Communicator::unique_id().unwrap();
    let start = Instant::now();
    let error = Communicator::join(&device, id, 0, 2, SOON).err().expect("the library hangs");
    assert!(matches!(error, CudaError::NcclTimeout { .. }), "{error:?}");
    assert!(start.elapsed() < LIMIT, "the caller came back");
    emu.hang_nccl(false);
}

#[test]
fn a_collective_whose_peer_is_lost_never_ends_until_it_is_aborted() {
    let Some(emu) = begin(devices(2, 0)) else { return };
    for seed in seeds() {
        emu.reset(devices(2, seed));
        let all = Barrier::new(2);
        let got = ranks(2, |rank, device, stream, mut comm| {
            let part = Buffer::<f32>::zeroed(device, stream, 4).unwrap();
            let done = Event::new(device).unwrap();
            stream.synchronize().unwrap();
            all.wait();
            if rank == 1 {
                // The next thing that this device does is its last.
                emu.inject(1, 0, 719);
            }
            all.wait();
            // SAFETY: the buffer lives until the rank is done.
            unsafe { comm.all_reduce_sum_f32(stream, part.ptr(), 4).unwrap() };
            done.record(stream).unwrap();
            all.wait();
            let before: Vec<_> = (0..60).map(|_| done.query()).collect();
            all.wait();
            let lost = comm.async_error().is_err();
            comm.abort();
            // SAFETY: nothing is queued.
            let later = unsafe { comm.all_reduce_sum_f32(stream, part.ptr(), 4) }.unwrap_err().to_string();
            let after = (0..60).map(|_| done.query()).find(|q| !matches!(q, Ok(false)));
            all.wait();
            (before.last().unwrap().clone(), lost, later, after)
        });
        let (before, lost, later, after) = &got[0];
        assert_eq!(*before, Ok(false), "seed {seed}: the peer is gone");
        assert!(!lost && later.contains("aborted"), "seed {seed}: {later}");
        assert_eq!(*after, Some(Ok(true)), "seed {seed}: the abort ends the collective");
        let (before, lost, ..) = &got[1];
        assert!(before.is_err() && *lost, "seed {seed}: {before:?}");
    }
}

#[test]
fn an_old_library_is_refused_with_both_versions() {
    let Some(emu) = begin(devices(1, 0)) else { return };
    for (version, words) in [(21_705, "NCCL 2.17.5"), (2_804, "NCCL 2.8.4")] {
        emu.set_nccl_version(version);
        let text = Communicator::unique_id().err().expect("too old").to_string();
        assert!(text.contains(words) && text.contains("2.18.0 or newer"), "{text}");
    }
}
