//! Capture rules and graphs.

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaGraph, DriverError, PushKernelArg, result};
use tokenrouter_emulate::Settings;

use crate::support::{Pinned, Rig, address, begin, grid, name};

/// A call that a capture forbids.
type Offence<'a> = &'a dyn Fn() -> Result<(), DriverError>;

const LOCAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
const GLOBAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;

fn end(rig: &Rig) -> Result<Option<CudaGraph>, DriverError> {
    rig.stream.end_capture(CUgraphInstantiate_flags(0))
}

fn failed(result: Result<Option<CudaGraph>, DriverError>) -> String {
    name(result.err().expect("the capture must fail"))
}

#[test]
fn a_graph_replays_with_changed_data() {
    let Some(session) = begin(Settings::default()) else { return };
    for seed in 0..3 {
        session.reset(Settings { seed, ..Settings::default() });
        let rig = Rig::new();
        let stream = &rig.stream;
        let (input, output) = (Pinned::<f32>::new(32), Pinned::<f32>::new(32));
        let a = stream.alloc_zeros::<f32>(32).unwrap();
        let b = stream.clone_htod(&[2.0f32; 32]).unwrap();
        let mut out = stream.alloc_zeros::<f32>(32).unwrap();
        let f = rig.function("test_axpy");
        stream.synchronize().unwrap();
        let before = session.launches();
        stream.begin_capture(LOCAL).unwrap();
        input.copy_to(address(&a, stream), stream).unwrap();
        let mut scale = 10.0f32;
        // SAFETY: the arguments are those of the kernel, and n fits the buffers.
        unsafe {
            stream
                .launch_builder(&f)
                .arg(&mut out)
                .arg(&a)
                .arg(&b)
                .arg(&scale)
                .arg(&32i32)
                .launch(grid(1, 32, 0))
        }
        .unwrap();
        scale += 1.0;
        output.copy_from(address(&out, stream), stream).unwrap();
        let graph = end(&rig).unwrap().expect("a graph");
        stream.synchronize().unwrap();
        assert_eq!(session.launches(), before, "capturing runs nothing");
        for round in 0..3 {
            for i in 0..32u16 {
                input.set(usize::from(i), f32::from(i * (round + 1)));
            }
            graph.launch().unwrap();
            stream.synchronize().unwrap();
            // The scale is the one of the capture: parameters are part of the graph.
            for i in 0..32u16 {
                assert_eq!(output.get(usize::from(i)), f32::from(i * (round + 1)) + 20.0);
            }
        }
        assert_eq!(scale, 11.0);
        assert_eq!(session.launches(), before + 3);
    }
}

#[test]
fn waiting_and_allocating_break_a_capture() {
    let Some(_session) = begin(Settings::default()) else { return };
    let rig = Rig::new();
    let event = rig.stream.record_event(None).unwrap();
    rig.stream.synchronize().unwrap();
    let offences: [(&str, Offence); 5] = [
        ("synchronize", &|| rig.stream.synchronize()),
        ("context synchronize", &|| rig.ctx.synchronize()),
        ("event synchronize", &|| event.synchronize()),
        ("allocate", &|| rig.stream.alloc_zeros::<u8>(16).map(drop)),
        ("memory info", &|| rig.ctx.mem_get_info().map(drop)),
    ];
    for (what, offence) in offences {
        rig.stream.begin_capture(LOCAL).unwrap();
        let error = offence().err().unwrap_or_else(|| panic!("{what} must fail inside a capture"));
        assert_eq!(name(error), "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "{what}");
        assert_eq!(failed(end(&rig)), "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "{what}");
        rig.stream.synchronize().unwrap();
    }
}

#[test]
fn a_pageable_copy_is_refused_inside_a_capture() {
    let Some(_session) = begin(Settings::default()) else { return };
    let rig = Rig::new();
    let value = rig.stream.alloc_zeros::<i32>(4).unwrap();
    let at = address(&value, &rig.stream);
    rig.stream.begin_capture(LOCAL).unwrap();
    // SAFETY: the slice lives through the call.
    let copy = unsafe { result::memcpy_htod_async(at, &[1, 2], rig.stream.cu_stream()) };
    assert_eq!(copy.map_err(name), Err("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED".into()));
    assert!(end(&rig).is_err());
    rig.stream.begin_capture(LOCAL).unwrap();
    let mut back = [0];
    // SAFETY: the slice lives through the call.
    let copy = unsafe { result::memcpy_dtoh_async(&mut back, at, rig.stream.cu_stream()) };
    assert_eq!(copy.map_err(name), Err("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED".into()));
    assert!(end(&rig).is_err());
}

#[test]
fn an_event_from_outside_the_capture_is_refused() {
    let Some(_session) = begin(Settings::default()) else { return };
    let rig = Rig::new();
    let other = rig.ctx.new_stream().unwrap();
    let event = other.record_event(None).unwrap();
    rig.stream.begin_capture(LOCAL).unwrap();
    assert_eq!(rig.stream.wait(&event).map_err(name), Err("CUDA_ERROR_STREAM_CAPTURE_ISOLATION".into()));
    assert_eq!(failed(end(&rig)), "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED");
}

#[test]
fn branches_must_join_again() {
    let Some(session) = begin(Settings::default()) else { return };
    for join in [true, false] {
        session.reset(Settings::default());
        let rig = Rig::new();
        let branch = rig.ctx.new_stream().unwrap();
        let mut number = rig.stream.alloc_zeros::<i64>(1).unwrap();
        rig.stream.synchronize().unwrap();
        let f = rig.function("test_log");
        rig.stream.begin_capture(LOCAL).unwrap();
        let fork = rig.stream.record_event(None).unwrap();
        branch.wait(&fork).unwrap();
        // SAFETY: the kernel touches one number.
        unsafe { branch.launch_builder(&f).arg(&mut number).arg(&7i32).launch(grid(1, 1, 0)) }.unwrap();
        let joined = branch.record_event(None).unwrap();
        assert_eq!(name(joined.synchronize().unwrap_err()), "CUDA_ERROR_CAPTURED_EVENT");
        if join {
            rig.stream.wait(&joined).unwrap();
            let graph = end(&rig).unwrap().expect("a graph");
            graph.launch().unwrap();
            graph.launch().unwrap();
            assert_eq!(rig.stream.clone_dtoh(&number).unwrap(), [77]);
        } else {
            assert_eq!(failed(end(&rig)), "CUDA_ERROR_STREAM_CAPTURE_UNJOINED");
        }
    }
}

#[test]
fn other_threads_may_work_beside_a_thread_local_capture_only() {
    let Some(session) = begin(Settings::default()) else { return };
    for (mode, allowed) in [(LOCAL, true), (GLOBAL, false)] {
        session.reset(Settings::default());
        let rig = Rig::new();
        rig.stream.begin_capture(mode).unwrap();
        let elsewhere = std::thread::scope(|scope| {
            let work = || rig.ctx.new_stream().and_then(|s| s.alloc_zeros::<u8>(64).map(drop));
            scope.spawn(work).join().expect("no panic")
        });
        assert_eq!(elsewhere.is_ok(), allowed, "{mode:?}");
        assert_eq!(end(&rig).is_ok(), allowed, "{mode:?}");
    }
}

#[test]
fn an_uploaded_graph_takes_device_memory() {
    let Some(_session) = begin(Settings::default()) else { return };
    let rig = Rig::new();
    let mut number = rig.stream.alloc_zeros::<i64>(1).unwrap();
    let f = rig.function("test_log");
    rig.stream.synchronize().unwrap();
    rig.stream.begin_capture(LOCAL).unwrap();
    for digit in 0..5i32 {
        // SAFETY: the kernel touches one number.
        unsafe { rig.stream.launch_builder(&f).arg(&mut number).arg(&digit).launch(grid(1, 1, 0)) }.unwrap();
    }
    let graph = end(&rig).unwrap().expect("a graph");
    let before = rig.ctx.mem_get_info().unwrap().0;
    graph.upload().unwrap();
    let after = rig.ctx.mem_get_info().unwrap().0;
    assert!(after < before, "{after} of {before} bytes free");
    drop(graph);
    assert_eq!(rig.ctx.mem_get_info().unwrap().0, before);
}
