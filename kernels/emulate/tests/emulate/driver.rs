//! Devices, memory and launches.

use cudarc::driver::PushKernelArg;
use tokenrouter_emulate::Settings;

use crate::support::{Rig, begin, grid};

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
