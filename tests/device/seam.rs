//! The driver seam: pinned copies, events, captures, graphs, priorities and memory, on the pretend driver.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use half::bf16;
use tokenrouter_emulate::{STUB_IMAGE, Session, Settings, seeds, session, skip};
use tokenrouter_kernels::cuda::{
    Buffer, Capture, CudaError, Device, Event, Kernels, PackArgs, Pinned, Ptr, copy_to_device_async,
    copy_to_host_async, stream_wait, zero_async,
};

/// A session on the kernels, or `None` after saying why not.
pub(crate) fn begin(settings: Settings) -> Option<Session> {
    session(settings).map_err(|why| skip(&why)).ok()
}

/// Runs `body` once per seed.
fn each_seed(body: impl Fn(&Session)) {
    let Some(emu) = begin(Settings::default()) else { return };
    for seed in seeds() {
        emu.reset(Settings { seed, ..Settings::default() });
        body(&emu);
    }
}

fn rig() -> (Device, Arc<CudaStream>) {
    let device = Device::open(0).unwrap();
    let stream = device.stream().unwrap();
    (device, stream)
}

fn refusal<T>(result: Result<T, CudaError>) -> String {
    result.err().expect("a refusal").to_string()
}

#[test]
fn pinned_blocks_travel_there_and_back_when_the_stream_gets_there() {
    each_seed(|_| {
        let (device, stream) = rig();
        let mut input = Pinned::<u32>::new(&device, 8, true).unwrap();
        let output = Pinned::<u32>::new(&device, 8, false).unwrap();
        assert_eq!(output.as_slice(), [0; 8], "fresh blocks are zero");
        let memory = Buffer::<u32>::from_slice(&device, &stream, &[9; 8]).unwrap();
        input.as_mut_slice().copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        // SAFETY: everything lives until the event, and nobody touches the blocks before it.
        unsafe {
            copy_to_device_async(&stream, memory.ptr(), &input, 2..5).unwrap();
            zero_async(&stream, memory.ptr().add(6), 2).unwrap();
            copy_to_host_async(&stream, &output, 0..8, memory.ptr()).unwrap();
        }
        let done = Event::new(&device).unwrap();
        assert!(done.query().unwrap(), "an event that was never recorded has happened");
        done.record(&stream).unwrap();
        assert!(!done.query().unwrap(), "the first question comes too early");
        let tries = (0..1000).take_while(|_| !done.query().unwrap()).count();
        assert!(tries < 1000);
        assert_eq!(output.as_slice(), [3, 4, 5, 9, 9, 9, 0, 0]);
    });
}

#[test]
fn parts_outside_a_pinned_block_are_refused() {
    let Some(_emu) = begin(Settings::default()) else { return };
    let (device, stream) = rig();
    let block = Pinned::<f32>::new(&device, 4, false).unwrap();
    let memory = Buffer::<f32>::zeroed(&device, &stream, 8).unwrap();
    // SAFETY: nothing is queued.
    let text = refusal(unsafe { copy_to_device_async(&stream, memory.ptr(), &block, 2..5) });
    assert!(text.contains("2 to 5 of a block of 4"), "{text}");
    // SAFETY: nothing is queued.
    assert!(unsafe { copy_to_host_async(&stream, &block, 0..5, memory.ptr()) }.is_err());
    assert!(refusal(Pinned::<f64>::new(&device, usize::MAX / 4, false)).contains("too large"));
}

#[test]
fn a_stream_waits_for_what_an_event_marks() {
    each_seed(|_| {
        let (device, first) = rig();
        let second = device.stream_with_priority(true).unwrap();
        let memory = Buffer::<u32>::from_slice(&device, &first, &[7]).unwrap();
        let ones = Pinned::<u32>::new(&device, 1, false).unwrap();
        let result = Pinned::<u32>::new(&device, 1, false).unwrap();
        let event = Event::new(&device).unwrap();
        // SAFETY: all blocks live until both streams are done.
        unsafe { copy_to_device_async(&first, memory.ptr(), &ones, 0..1).unwrap() };
        event.record(&first).unwrap();
        stream_wait(&second, &event).unwrap();
        // SAFETY: as above.
        unsafe { copy_to_host_async(&second, &result, 0..1, memory.ptr()).unwrap() };
        second.synchronize().unwrap();
        assert_eq!(result.as_slice(), [0], "the copy of the other stream came first");
        first.synchronize().unwrap();
    });
}

#[test]
fn a_captured_step_replays_with_new_inputs_and_takes_memory_until_it_is_dropped() {
    each_seed(|emu| {
        let (device, stream) = rig();
        let mut input = Pinned::<u32>::new(&device, 4, true).unwrap();
        let output = Pinned::<u32>::new(&device, 4, false).unwrap();
        let memory = Buffer::<u32>::zeroed(&device, &stream, 4).unwrap();
        stream.synchronize().unwrap();
        let before = emu.operations();
        let capture = Capture::begin(&stream).unwrap();
        // SAFETY: all blocks live longer than the graph, and every run is waited for.
        unsafe {
            copy_to_device_async(&stream, memory.ptr(), &input, 0..4).unwrap();
            zero_async(&stream, memory.ptr(), 1).unwrap();
            copy_to_host_async(&stream, &output, 0..4, memory.ptr()).unwrap();
        }
        let graph = capture.end().unwrap();
        assert_eq!((graph.nodes().unwrap(), emu.operations()), (3, before), "capturing runs nothing");
        let (free, total) = device.memory().unwrap();
        assert!(free < total);
        let exec = graph.instantiate().unwrap();
        exec.upload(&stream).unwrap();
        assert!(device.memory().unwrap().0 < free, "a graph takes device memory");
        drop(graph);
        for round in 1..4u32 {
            input.as_mut_slice().fill(round);
            // SAFETY: as above.
            unsafe { exec.launch(&stream) }.unwrap();
            stream.synchronize().unwrap();
            assert_eq!(output.as_slice(), [0, round, round, round]);
        }
        drop(exec);
        assert_eq!(device.memory().unwrap().0, free);
    });
}

#[test]
fn kernels_are_captured_with_their_arguments() {
    let Some(_emu) = begin(Settings::default()) else { return };
    let (device, stream) = rig();
    let kernels = Kernels::load(&device, &[&STUB_IMAGE]).unwrap();
    let source = Buffer::<f32>::zeroed(&device, &stream, 16 * 32).unwrap();
    let pack = |to: &Buffer<bf16>| {
        let (src, dst) = (source.ptr().cast(), to.ptr());
        let args = PackArgs { src, dst, n: 16, k: 32, first_tile: 0, tile_step: 1, kind: 2 };
        // SAFETY: the buffers have these shapes and live longer than the graph.
        unsafe { kernels.pack_weight(&stream, &args) }.unwrap();
    };
    let [captured, direct] = [(); 2].map(|()| Buffer::<bf16>::zeroed(&device, &stream, 16 * 32).unwrap());
    let capture = Capture::begin(&stream).unwrap();
    pack(&captured);
    let exec = capture.end().unwrap().instantiate().unwrap();
    for round in 1..3u16 {
        let values: Vec<f32> = (0..16 * 32).map(|i| f32::from(i * round)).collect();
        source.write(&stream, &values).unwrap();
        pack(&direct);
        // SAFETY: the buffers live, and every run is waited for.
        unsafe { exec.launch(&stream) }.unwrap();
        let (a, b) = (captured.read(&stream).unwrap(), direct.read(&stream).unwrap());
        assert!(a == b && a.contains(&bf16::from_f32(256.0)), "round {round}");
    }
}

#[test]
fn what_a_capture_may_not_hold_breaks_it_by_name() {
    let Some(_emu) = begin(Settings::default()) else { return };
    let (device, stream) = rig();
    type Offence<'a> = &'a dyn Fn() -> Option<CudaError>;
    let offences: [(&str, Offence); 3] = [
        ("memory info", &|| device.memory().err()),
        ("allocation", &|| Buffer::<u8>::zeroed(&device, &stream, 4).err()),
        ("page-locked memory", &|| Pinned::<u8>::new(&device, 4, false).err()),
    ];
    for (what, offence) in offences {
        let capture = Capture::begin(&stream).unwrap();
        let error = offence().unwrap_or_else(|| panic!("{what} inside a capture"));
        assert!(error.to_string().contains("STREAM_CAPTURE_UNSUPPORTED"), "{what}: {error}");
        let error = refusal(capture.end());
        assert!(error.contains("ending a capture") && error.contains("INVALIDATED"), "{what}: {error}");
    }
    // A capture that is given up leaves the stream as it was.
    drop(Capture::begin(&stream).unwrap());
    stream.synchronize().unwrap();
}

#[test]
fn graphs_that_do_not_fit_are_refused_with_the_drivers_words() {
    let Some(emu) = begin(Settings::default()) else { return };
    emu.reset(Settings { memory: 1 << 16, ..Settings::default() });
    let (device, stream) = rig();
    let memory = Buffer::<u8>::zeroed(&device, &stream, 100).unwrap();
    stream.synchronize().unwrap();
    let capture = Capture::begin(&stream).unwrap();
    for _ in 0..20 {
        // SAFETY: the buffer outlives the graph.
        unsafe { zero_async(&stream, memory.ptr(), 100) }.unwrap();
    }
    let exec = capture.end().unwrap().instantiate();
    let error = exec.and_then(|exec| exec.upload(&stream)).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    let error = Buffer::<u8>::zeroed(&device, &stream, 1 << 20).err().unwrap();
    assert!(error.is_out_of_memory() && error.to_string().contains("1048576 bytes"), "{error}");
}

#[test]
fn devices_may_differ_in_memory_and_capability() {
    let Some(emu) = begin(Settings { devices: 3, ..Settings::default() }) else { return };
    emu.set_device(1, 64 << 20, 90);
    emu.set_processors(3);
    let sizes: Vec<_> = (0..3)
        .map(|i| {
            let device = Device::open(i).unwrap();
            (device.memory().unwrap().1 >> 20, device.capability())
        })
        .collect();
    assert_eq!(Device::open(0).unwrap().processors(), 3);
    assert_eq!(sizes, [(512, (8, 0)), (64, (9, 0)), (512, (8, 0))]);
}

#[test]
fn a_device_that_is_lost_in_the_middle_of_a_step_is_seen_by_the_query() {
    each_seed(|emu| {
        let (device, stream) = rig();
        let memory = Buffer::<u32>::zeroed(&device, &stream, 4).unwrap();
        let done = Event::new(&device).unwrap();
        let capture = Capture::begin(&stream).unwrap();
        for _ in 0..10 {
            // SAFETY: the buffer outlives the graph.
            unsafe { zero_async(&stream, memory.ptr(), 4) }.unwrap();
        }
        let exec = capture.end().unwrap().instantiate().unwrap();
        stream.synchronize().unwrap();
        // CUDA_ERROR_ILLEGAL_ADDRESS after five more operations.
        emu.inject(0, 5, 700);
        // SAFETY: the buffer lives.
        unsafe { exec.launch(&stream) }.unwrap();
        done.record(&stream).unwrap();
        let end = (0..1000).find_map(|_| match done.query() {
            Ok(ready) => ready.then(|| "ready".to_owned()),
            Err(e) => Some(e.to_string()),
        });
        let text = end.expect("the query comes to an end");
        assert!(text.contains("waiting for the device: CUDA_ERROR_ILLEGAL_ADDRESS"), "{text}");
        assert!(text.contains("injected fault"), "{text}");
        assert!(device.memory().is_err(), "the device stays lost");
    });
}

#[test]
fn priorities_and_null_pointers_do_not_surprise() {
    let Some(_emu) = begin(Settings::default()) else { return };
    let (device, stream) = rig();
    device.stream_with_priority(false).unwrap().synchronize().unwrap();
    // SAFETY: no byte is written.
    unsafe { zero_async::<u8>(&stream, Ptr::NULL, 0) }.unwrap();
}
