//! A context, a stream and the test kernels, in one line.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction, CudaModule, CudaStream, DriverError, LaunchConfig};
use cudarc::nvrtc::Ptx;
use tokenrouter_emulate::{Kernels, STUB_IMAGE, Session, Settings, session_with, skip};

/// A session on the self-test kernels, or `None` after saying why not.
pub(crate) fn begin(settings: Settings) -> Option<Session> {
    session_with(Kernels::SelfTest, settings).map_err(|why| skip(&why)).ok()
}

/// What most tests need. Fields drop in order: everything of cudarc before the context.
pub(crate) struct Rig {
    pub(crate) module: Arc<CudaModule>,
    pub(crate) stream: Arc<CudaStream>,
    pub(crate) ctx: Arc<CudaContext>,
}

impl Rig {
    pub(crate) fn new() -> Self {
        let ctx = CudaContext::new(0).expect("the emulation has a device");
        // SAFETY: the tests order their streams themselves.
        unsafe { ctx.disable_event_tracking() };
        let stream = ctx.new_stream().expect("a stream");
        let module = ctx.load_module(Ptx::from_binary(STUB_IMAGE.to_vec())).expect("the stub is accepted");
        Self { module, stream, ctx }
    }

    pub(crate) fn function(&self, name: &str) -> CudaFunction {
        self.module.load_function(name).unwrap_or_else(|e| panic!("{name}: {e}"))
    }
}

/// A grid of one-dimensional blocks.
pub(crate) fn grid(blocks: u32, threads: u32, shared: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: shared }
}

/// The driver's name of an error.
pub(crate) fn name(error: DriverError) -> String {
    error.error_name().map_or_else(|_| "?".into(), |n| n.to_string_lossy().into_owned())
}

/// The driver's text of an error.
pub(crate) fn words(error: DriverError) -> String {
    error.error_string().map_or_else(|_| "?".into(), |n| n.to_string_lossy().into_owned())
}
