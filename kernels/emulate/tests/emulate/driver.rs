//! Devices, memory and launches.

use cudarc::driver::{CudaContext, DeviceRepr, PushKernelArg, result, sys};
use cudarc::nvrtc::Ptx;
use tokenrouter_emulate::{Build, Settings};

use crate::support::{Rig, address, begin, grid, name, words};

#[test]
fn a_kernel_runs_through_cudarc() {
    let Some(session) = begin(Settings::default()) else { return };
    let rig = Rig::new();
    assert!(rig.ctx.name().unwrap().contains("emulation"));
    let (stream, f) = (&rig.stream, rig.function("test_axpy"));
    let a = stream.clone_htod(&[1.0f32; 100]).unwrap();
    let b = stream.clone_htod(&[2.0f32; 100]).unwrap();
    let mut out = stream.alloc_zeros::<f32>(100).unwrap();
    // SAFETY: the arguments are those of the kernel, and n fits the buffers.
    unsafe {
        stream
            .launch_builder(&f)
            .arg(&mut out)
            .arg(&a)
            .arg(&b)
            .arg(&3.0f32)
            .arg(&100i32)
            .launch(grid(4, 32, 0))
    }
    .unwrap();
    assert_eq!(stream.clone_dtoh(&out).unwrap(), vec![7.0f32; 100]);
    assert_eq!(session.launches(), 1);
}

#[test]
fn an_image_or_a_kernel_that_is_not_there_is_an_error() {
    let Some(session) = begin(Settings::default()) else { return };
    let rig = Rig::new();
    let missing = rig.module.load_function("no_such_kernel").expect_err("an error");
    assert_eq!(name(missing), "CUDA_ERROR_NOT_FOUND");
    let text = rig.ctx.load_module(Ptx::from_binary(b"not an image at all".to_vec())).expect_err("an error");
    assert_eq!(name(text), "CUDA_ERROR_INVALID_IMAGE");
    assert!(session.kernel_names().contains(&"test_axpy".to_string()));
}

#[test]
fn without_devices_there_is_no_context() {
    let Some(_session) = begin(Settings { devices: 0, ..Settings::default() }) else { return };
    assert_eq!(name(CudaContext::new(0).expect_err("an error")), "CUDA_ERROR_NO_DEVICE");
}

#[test]
fn the_memory_limit_holds_and_queued_frees_make_room() {
    let Some(_session) = begin(Settings { memory: 1 << 20, ..Settings::default() }) else { return };
    let rig = Rig::new();
    assert_eq!(rig.ctx.mem_get_info().unwrap(), (1 << 20, 1 << 20));
    let most = rig.stream.alloc_zeros::<u8>(900 << 10).unwrap();
    let error = rig.stream.alloc_zeros::<u8>(200 << 10).unwrap_err();
    assert_eq!(name(error), "CUDA_ERROR_OUT_OF_MEMORY");
    // The free waits in the stream, and the next allocation waits for it.
    drop(most);
    let _other = rig.stream.alloc_zeros::<u8>(1000 << 10).unwrap();
    assert_eq!(rig.ctx.mem_get_info().unwrap().0, 24 << 10);
}

#[test]
fn parameters_are_copied_at_the_launch() {
    let Some(_session) = begin(Settings::default()) else { return };
    let rig = Rig::new();
    let mut value = rig.stream.alloc_zeros::<i32>(1).unwrap();
    let f = rig.function("test_set");
    let mut number = 5i32;
    // SAFETY: the kernel writes one number.
    unsafe { rig.stream.launch_builder(&f).arg(&mut value).arg(&number).launch(grid(1, 1, 0)) }.unwrap();
    number = 6;
    assert_eq!((rig.stream.clone_dtoh(&value).unwrap()[0], number), (5, 6));
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Shape {
    rows: i32,
    columns: i32,
    scale: f32,
    flags: [u8; 3],
}

// SAFETY: plain data with the layout of the kernel's struct.
unsafe impl DeviceRepr for Shape {}

#[test]
fn structs_travel_by_value_and_the_table_knows_every_offset() {
    let Some(_session) = begin(Settings::default()) else { return };
    let rig = Rig::new();
    let f = rig.function("parameters");
    let mut out = rig.stream.alloc_zeros::<f64>(7).unwrap();
    let p = rig.stream.clone_htod(&[2.5f32]).unwrap();
    let shape = Shape { rows: 3, columns: -4, scale: 0.5, flags: [7, 8, 9] };
    // SAFETY: the arguments are those of the kernel.
    unsafe {
        rig.stream
            .launch_builder(&f)
            .arg(&mut out)
            .arg(&11i8)
            .arg(&shape)
            .arg(&(1i64 << 40))
            .arg(&p)
            .launch(grid(1, 1, 0))
    }
    .unwrap();
    let want = [11.0, 3.0, -4.0, 0.5, 9.0, (1i64 << 40) as f64, 2.5];
    assert_eq!(rig.stream.clone_dtoh(&out).unwrap(), want);
    let info = |i| {
        let (mut offset, mut size) = (0, 0);
        // SAFETY: the function is alive, and both numbers are written.
        unsafe { sys::cuFuncGetParamInfo(f.cu_function(), i, &raw mut offset, &raw mut size) }
            .result()
            .map(|()| (offset, size))
    };
    let table: Vec<_> = (0..5).map(|i| info(i).unwrap()).collect();
    assert_eq!(table, [(0, 8), (8, 1), (12, 16), (32, 8), (40, 8)]);
    assert_eq!(name(info(5).unwrap_err()), "CUDA_ERROR_INVALID_VALUE");
}

#[test]
fn large_shared_memory_needs_the_attribute() {
    let Some(session) = begin(Settings::default()) else { return };
    let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    for (capability, most) in [(80, 163 << 10), (90, 227 << 10)] {
        session.reset(Settings { capability, ..Settings::default() });
        let rig = Rig::new();
        let f = rig.function("test_dynamic");
        let mut out = rig.stream.alloc_zeros::<f32>(1).unwrap();
        let mut run = |bytes: u32| {
            let n = i32::try_from(bytes / 4).unwrap();
            // SAFETY: the kernel fills n floats of its dynamic shared memory.
            unsafe { rig.stream.launch_builder(&f).arg(&mut out).arg(&n).launch(grid(1, 64, bytes)) }
                .map(drop)
                .and_then(|()| rig.stream.clone_dtoh(&out))
        };
        assert_eq!(run(48 << 10).unwrap(), [12288.0]);
        assert_eq!(name(run((48 << 10) + 4).unwrap_err()), "CUDA_ERROR_INVALID_VALUE");
        let error = f.set_attribute(attribute, most + 1).unwrap_err();
        assert_eq!(name(error), "CUDA_ERROR_INVALID_VALUE");
        f.set_attribute(attribute, most).unwrap();
        assert_eq!(run(most.unsigned_abs()).unwrap(), [(most / 4) as f32]);
    }
}

#[test]
fn a_kernel_that_outlives_its_memory_is_caught() {
    let Some(_session) = begin(Settings::default()) else { return };
    let rig = Rig::new();
    let mut value = rig.stream.alloc_zeros::<i32>(1).unwrap();
    rig.stream.synchronize().unwrap();
    let f = rig.function("test_set");
    // SAFETY: none: the memory is freed before the kernel runs, which is what the test is about.
    unsafe { rig.stream.launch_builder(&f).arg(&mut value).arg(&5i32).launch(grid(1, 1, 0)) }.unwrap();
    // SAFETY: the address came from the driver; the slice gives up its claim.
    unsafe { result::free_sync(value.leak()) }.unwrap();
    let error = rig.stream.synchronize().unwrap_err();
    assert!(words(error).contains("in memory that was freed"), "{}", words(error));
}

#[test]
fn copies_outside_an_allocation_are_refused_at_the_call() {
    let Some(_session) = begin(Settings::default()) else { return };
    let rig = Rig::new();
    let value = rig.stream.alloc_zeros::<i32>(4).unwrap();
    let at = address(&value, &rig.stream);
    // SAFETY: the driver checks the range before it touches anything.
    let error = unsafe { result::memcpy_htod_async(at + 4, &[1i32; 4], rig.stream.cu_stream()) }.unwrap_err();
    assert_eq!(name(error), "CUDA_ERROR_INVALID_VALUE");
}

#[test]
fn a_kernel_on_one_device_may_not_touch_the_other() {
    let Some(session) = begin(Settings { devices: 2, ..Settings::default() }) else { return };
    if session.build() != Build::Race {
        // Only that build looks at every access.
        return;
    }
    let rig = Rig::new();
    let second = CudaContext::new(1).unwrap();
    let theirs = second.default_stream().alloc_zeros::<i32>(1).unwrap();
    let at = address(&theirs, &second.default_stream());
    rig.ctx.bind_to_thread().unwrap();
    let f = rig.function("test_set");
    // SAFETY: the driver refuses the access.
    unsafe { rig.stream.launch_builder(&f).arg(&at).arg(&5i32).launch(grid(1, 1, 0)) }.unwrap();
    let error = rig.stream.synchronize().unwrap_err();
    assert!(words(error).contains("without peer access"), "{}", words(error));
}

#[test]
fn the_seed_orders_threads_and_blocks() {
    let Some(session) = begin(Settings::default()) else { return };
    let mut orders = Vec::new();
    for seed in [0, 1, 2, 3, 2] {
        session.reset(Settings { seed, ..Settings::default() });
        let rig = Rig::new();
        let mut order = rig.stream.alloc_zeros::<u32>(64).unwrap();
        let mut next = rig.stream.alloc_zeros::<u32>(1).unwrap();
        let f = rig.function("test_order");
        // SAFETY: the counter gives each of the 64 threads a slot of its own.
        unsafe { rig.stream.launch_builder(&f).arg(&mut order).arg(&mut next).launch(grid(4, 16, 0)) }
            .unwrap();
        orders.push(rig.stream.clone_dtoh(&order).unwrap());
    }
    let forward: Vec<u32> = (0..64).collect();
    let reverse: Vec<u32> = (0..64).rev().collect();
    assert_eq!(orders[0], forward);
    assert_eq!(orders[1], reverse);
    assert!(orders[2] != forward && orders[2] != orders[3], "random orders differ");
    assert_eq!(orders[2], orders[4], "and repeat with their seed");
    orders[2].sort_unstable();
    assert_eq!(orders[2], forward);
}
