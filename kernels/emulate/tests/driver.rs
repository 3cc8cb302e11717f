//! The pretend driver through the real cudarc.

use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use tokenrouter_emulate::{Kernels, STUB_IMAGE, Settings, session_with, skip};

#[test]
fn a_kernel_runs_through_cudarc() {
    let session = match session_with(Kernels::SelfTest, Settings::default()) {
        Ok(s) => s,
        Err(why) => return skip(&why),
    };
    let ctx = CudaContext::new(0).unwrap();
    assert!(ctx.name().unwrap().contains("emulation"));
    let stream = ctx.new_stream().unwrap();
    let module = ctx.load_module(Ptx::from_binary(STUB_IMAGE.to_vec())).unwrap();
    let f = module.load_function("test_axpy").unwrap();
    let a = stream.clone_htod(&[1.0f32; 100]).unwrap();
    let b = stream.clone_htod(&[2.0f32; 100]).unwrap();
    let mut out = stream.alloc_zeros::<f32>(100).unwrap();
    let cfg = LaunchConfig { grid_dim: (4, 1, 1), block_dim: (32, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: the arguments are those of the kernel, and n fits the buffers.
    unsafe { stream.launch_builder(&f).arg(&mut out).arg(&a).arg(&b).arg(&3.0f32).arg(&100i32).launch(cfg) }
        .unwrap();
    assert_eq!(stream.clone_dtoh(&out).unwrap(), vec![7.0f32; 100]);
    assert_eq!(session.launches(), 1);
}
