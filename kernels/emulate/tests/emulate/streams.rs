//! Streams are lazy and interleaved by the seed; events order them; errors stick.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use cudarc::driver::{CudaSlice, CudaStream, PushKernelArg, result, sys};
use tokenrouter_emulate::Settings;

use crate::support::{Pinned, Rig, address, begin, grid, name, words};

fn log(rig: &Rig, stream: &Arc<CudaStream>, to: &mut CudaSlice<i64>, digit: i32) {
    let f = rig.function("test_log");
    // SAFETY: the kernel touches one number.
    unsafe { stream.launch_builder(&f).arg(to).arg(&digit).launch(grid(1, 1, 0)) }.unwrap();
}

#[test]
fn results_in_pinned_memory_are_old_until_somebody_waits() {
    let Some(_session) = begin(Settings::default()) else { return };
    let rig = Rig::new();
    let pinned = Pinned::<i32>::new(1);
    let mut value = rig.stream.alloc_zeros::<i32>(1).unwrap();
    let f = rig.function("test_set");
    // SAFETY: the kernel writes one number.
    unsafe { rig.stream.launch_builder(&f).arg(&mut value).arg(&42i32).launch(grid(1, 1, 0)) }.unwrap();
    pinned.copy_from(address(&value, &rig.stream), &rig.stream).unwrap();
    assert_eq!(pinned.get(0), -1, "a copy must not be done before anybody waits");
    rig.stream.synchronize().unwrap();
    assert_eq!(pinned.get(0), 42);
}

#[test]
fn pinned_sources_are_read_late_and_pageable_ones_at_the_call() {
    let Some(_session) = begin(Settings::default()) else { return };
    let rig = Rig::new();
    let value = rig.stream.alloc_zeros::<i32>(2).unwrap();
    let at = address(&value, &rig.stream);
    let pinned = Pinned::<i32>::new(1);
    pinned.set(0, 1);
    pinned.copy_to(at, &rig.stream).unwrap();
    pinned.set(0, 2);
    let mut pageable = [3];
    // SAFETY: the slice lives through the call, which copies it.
    unsafe { result::memcpy_htod_async(at + 4, &pageable, rig.stream.cu_stream()) }.unwrap();
    pageable[0] = 4;
    assert_eq!(rig.stream.clone_dtoh(&value).unwrap(), [2, 3]);
    assert_eq!(pageable, [4]);
}

#[test]
fn without_an_event_the_seed_decides_and_with_one_it_does_not() {
    let Some(session) = begin(Settings::default()) else { return };
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..8 {
        session.reset(Settings { seed, ..Settings::default() });
        for ordered in [false, true] {
            let rig = Rig::new();
            let other = rig.ctx.new_stream().unwrap();
            let mut number = rig.stream.alloc_zeros::<i64>(1).unwrap();
            rig.stream.synchronize().unwrap();
            log(&rig, &rig.stream, &mut number, 1);
            let event = rig.stream.record_event(None).unwrap();
            if ordered {
                other.wait(&event).unwrap();
            }
            log(&rig, &other, &mut number, 2);
            rig.ctx.synchronize().unwrap();
            let got = rig.stream.clone_dtoh(&number).unwrap()[0];
            if ordered {
                assert_eq!(got, 12, "seed {seed}: the wait was not honoured");
            } else {
                seen.insert(got);
            }
        }
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [12, 21], "unordered streams must meet in both orders");
}

#[test]
fn queries_say_not_ready_first_and_ready_in_the_end() {
    let Some(session) = begin(Settings::default()) else { return };
    for seed in 0..5 {
        session.reset(Settings { seed, ..Settings::default() });
        let rig = Rig::new();
        let mut number = rig.stream.alloc_zeros::<i64>(1).unwrap();
        for digit in 1..5 {
            log(&rig, &rig.stream, &mut number, digit);
        }
        let event = rig.stream.record_event(None).unwrap();
        // SAFETY: the event is alive.
        let query = || unsafe { result::event::query(event.cu_event()) };
        assert_eq!(query().map_err(name), Err("CUDA_ERROR_NOT_READY".into()), "seed {seed}");
        let tries = (0..200).take_while(|_| query().is_err()).count();
        assert!(tries < 100, "seed {seed}: still not ready after {tries} queries");
        assert_eq!(rig.stream.clone_dtoh(&number).unwrap(), [1234]);
        // SAFETY: the stream is alive.
        unsafe { sys::cuStreamQuery(rig.stream.cu_stream()) }.result().unwrap();
    }
}

#[test]
fn elapsed_time_needs_both_events_done() {
    let Some(_session) = begin(Settings::default()) else { return };
    let rig = Rig::new();
    let timed = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
    let first = rig.stream.record_event(timed).unwrap();
    let second = rig.stream.record_event(timed).unwrap();
    // SAFETY: both events are alive.
    let elapsed = || unsafe { result::event::elapsed(first.cu_event(), second.cu_event()) };
    assert_eq!(elapsed().map_err(name), Err("CUDA_ERROR_NOT_READY".into()));
    rig.stream.synchronize().unwrap();
    assert!(elapsed().unwrap() >= 0.0);
}

#[test]
fn a_kernel_error_sticks_and_says_where() {
    let Some(session) = begin(Settings::default()) else { return };
    let rig = Rig::new();
    let source = rig.stream.alloc_zeros::<f32>(64).unwrap();
    let mut out = rig.stream.alloc_zeros::<f32>(64).unwrap();
    let f = rig.function("divergent_barrier");
    // SAFETY: the kernel reads and writes 64 numbers; its fault is in its barriers.
    unsafe { rig.stream.launch_builder(&f).arg(&mut out).arg(&source).launch(grid(1, 64, 0)) }.unwrap();
    let error = rig.stream.synchronize().unwrap_err();
    assert_eq!(name(error), "CUDA_ERROR_LAUNCH_FAILED");
    let text = words(error);
    for part in ["divergent_barrier: barrier divergence", "bugs.cu:", "block (0,0,0) thread ("] {
        assert!(text.contains(part), "{text}");
    }
    assert!(text.contains(&session.message()));
    // Everything else of this context fails the same way, for good.
    let again = rig.stream.alloc_zeros::<f32>(1).unwrap_err();
    assert_eq!(name(again), "CUDA_ERROR_LAUNCH_FAILED");
    assert!(rig.stream.synchronize().is_err());
    drop((source, out, f, rig));
    session.reset(Settings::default());
    let rig = Rig::new();
    assert_eq!(rig.stream.clone_dtoh(&rig.stream.alloc_zeros::<f32>(1).unwrap()).unwrap(), [0.0]);
}

#[test]
fn one_broken_device_leaves_the_other_alone() {
    let Some(session) = begin(Settings { devices: 2, ..Settings::default() }) else { return };
    let first = Rig::new();
    let second = cudarc::driver::CudaContext::new(1).unwrap();
    session.inject(0, 0, sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS as u32);
    let stream = second.default_stream();
    let ones = stream.clone_htod(&[1.0f32; 4]).unwrap();
    first.ctx.bind_to_thread().unwrap();
    let _zeros = first.stream.alloc_zeros::<f32>(4).unwrap();
    assert_eq!(first.stream.synchronize().map_err(name), Err("CUDA_ERROR_ILLEGAL_ADDRESS".into()));
    assert!(session.message().contains("injected fault"));
    assert_eq!(stream.clone_dtoh(&ones).unwrap(), [1.0; 4]);
}

#[test]
fn the_default_stream_and_blocking_streams_wait_for_each_other() {
    let Some(session) = begin(Settings::default()) else { return };
    for seed in 0..6 {
        session.reset(Settings { seed, ..Settings::default() });
        let rig = Rig::new();
        let default = rig.ctx.default_stream();
        let mut number = default.alloc_zeros::<i64>(1).unwrap();
        let f = rig.function("test_log");
        let blocking = result::stream::create(result::stream::StreamKind::Default).unwrap();
        let mut at = address(&number, &default);
        for digit in 2..4i32 {
            let mut digit = digit;
            let mut parameters = [(&raw mut at).cast(), (&raw mut digit).cast()];
            log(&rig, &default, &mut number, 1);
            // SAFETY: the parameters are those of test_log and are copied by the call.
            unsafe {
                let launch = result::launch_kernel;
                launch(f.cu_function(), (1, 1, 1), (1, 1, 1), 0, blocking, &mut parameters)
            }
            .unwrap();
        }
        rig.ctx.synchronize().unwrap();
        assert_eq!(default.clone_dtoh(&number).unwrap(), [1213], "seed {seed}");
        // SAFETY: created above, and nothing is queued.
        unsafe { result::stream::destroy(blocking) }.unwrap();
    }
}

/// What a host function of the next test saw.
static SEEN: AtomicI32 = AtomicI32::new(0);

extern "C" fn look(value: *mut c_void) {
    // A host function must not call the driver.
    let (mut free, mut total) = (0, 0);
    // SAFETY: both numbers are written or left alone.
    let inside = unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) };
    assert_eq!(inside, sys::CUresult::CUDA_ERROR_NOT_PERMITTED);
    // SAFETY: the test passes the address of a pinned number that outlives the stream's work.
    SEEN.store(unsafe { *value.cast::<i32>() }, Ordering::SeqCst);
}

#[test]
fn host_functions_run_in_their_place() {
    let Some(_session) = begin(Settings::default()) else { return };
    let rig = Rig::new();
    let pinned = Pinned::<i32>::new(1);
    let ones = rig.stream.clone_htod(&[17i32]).unwrap();
    let twos = rig.stream.clone_htod(&[18i32]).unwrap();
    pinned.copy_from(address(&ones, &rig.stream), &rig.stream).unwrap();
    // SAFETY: the function and its argument outlive the stream's work.
    unsafe { result::stream::launch_host_function(rig.stream.cu_stream(), look, pinned.device()) }.unwrap();
    pinned.copy_from(address(&twos, &rig.stream), &rig.stream).unwrap();
    assert_eq!(SEEN.load(Ordering::SeqCst), 0);
    rig.stream.synchronize().unwrap();
    assert_eq!((SEEN.load(Ordering::SeqCst), pinned.get(0)), (17, 18));
}

#[test]
fn a_kernel_writes_pinned_memory_directly() {
    let Some(_session) = begin(Settings::default()) else { return };
    let rig = Rig::new();
    let pinned = Pinned::<i32>::new(1);
    let f = rig.function("test_set");
    let at = pinned.device() as u64;
    // SAFETY: the kernel writes one number.
    unsafe { rig.stream.launch_builder(&f).arg(&at).arg(&9i32).launch(grid(1, 1, 0)) }.unwrap();
    assert_eq!(pinned.get(0), -1);
    rig.stream.synchronize().unwrap();
    assert_eq!(pinned.get(0), 9);
}
