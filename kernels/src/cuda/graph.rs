//! Captured steps: what is queued on a stream between begin and end becomes a graph that one call replays.
//!
//! The capture is local to its thread: other ranks may allocate and wait beside it. Graphs that hold collectives must be
//! dropped before their communicator (DESIGN section 5).

use std::ptr;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, result, sys};

use super::error::CudaError;

/// A stream that records what is queued on it. Dropped without [`Capture::end`], the work is forgotten.
pub struct Capture {
    stream: Arc<CudaStream>,
    open: bool,
}

impl Capture {
    /// From here on work that this thread queues on the stream is recorded and not run.
    ///
    /// # Errors
    /// What the driver says.
    pub fn begin(stream: &Arc<CudaStream>) -> Result<Self, CudaError> {
        let refused = |e| CudaError::driver("beginning a capture", e);
        stream.context().bind_to_thread().map_err(refused)?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive.
        unsafe { result::stream::begin_capture(stream.cu_stream(), mode) }.map_err(refused)?;
        Ok(Self { stream: stream.clone(), open: true })
    }

    /// The graph of everything since the beginning.
    ///
    /// # Errors
    /// What the driver says: a call that no capture may hold, or a stream that was not joined again, breaks it.
    pub fn end(mut self) -> Result<Graph, CudaError> {
        let handle = self.finish()?;
        Ok(Graph { handle, context: self.stream.context().clone() })
    }

    fn finish(&mut self) -> Result<sys::CUgraph, CudaError> {
        let refused = |e| CudaError::driver("ending a capture", e);
        self.open = false;
        self.stream.context().bind_to_thread().map_err(refused)?;
        // SAFETY: the stream is alive and captured by this thread.
        unsafe { result::stream::end_capture(self.stream.cu_stream()) }.map_err(refused)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if self.open
            && let Ok(handle) = self.finish()
        {
            drop(Graph { handle, context: self.stream.context().clone() });
        }
    }
}

/// A recorded sequence of work.
pub struct Graph {
    handle: sys::CUgraph,
    context: Arc<CudaContext>,
}

// SAFETY: a handle is a number of the driver; a graph may be used by one thread at a time, and `&mut` is not shared.
unsafe impl Send for Graph {}

impl Graph {
    /// Its copies, kernels, fills and collectives.
    ///
    /// # Errors
    /// What the driver says.
    pub fn nodes(&self) -> Result<usize, CudaError> {
        let mut count = 0;
        // SAFETY: without a list the driver only counts.
        unsafe { sys::cuGraphGetNodes(self.handle, ptr::null_mut(), &mut count) }
            .result()
            .map_err(|e| CudaError::driver("counting the nodes of a graph", e))?;
        Ok(count)
    }

    /// Makes it ready to launch. This and the upload take device memory.
    ///
    /// # Errors
    /// What the driver says.
    pub fn instantiate(&self) -> Result<GraphExec, CudaError> {
        let refused = |e| CudaError::driver("instantiating a graph", e);
        self.context.bind_to_thread().map_err(refused)?;
        // SAFETY: the graph is alive; no flag is set.
        let handle = unsafe { result::graph::instantiate(self.handle, sys::CUgraphInstantiate_flags(0)) }
            .map_err(refused)?;
        Ok(GraphExec { handle, context: self.context.clone() })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: made by a capture, destroyed once; what was instantiated from it has copies of its own.
            let _ = unsafe { result::graph::destroy(self.handle) };
        }
    }
}

/// A graph that can be launched.
pub struct GraphExec {
    handle: sys::CUgraphExec,
    context: Arc<CudaContext>,
}

// SAFETY: as for `Graph`.
unsafe impl Send for GraphExec {}

impl GraphExec {
    /// Sends it to the device, so that the first launch is as fast as the others.
    ///
    /// # Errors
    /// What the driver says.
    pub fn upload(&self, stream: &CudaStream) -> Result<(), CudaError> {
        let refused = |e| CudaError::driver("uploading a graph", e);
        self.context.bind_to_thread().map_err(refused)?;
        // SAFETY: both handles are alive.
        unsafe { result::graph::upload(self.handle, stream.cu_stream()) }.map_err(refused)
    }

    /// Queues everything that it holds. A second launch waits for the first.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// What the captured calls asked for must hold for this run as well: the memory lives, and the host leaves pinned
    /// blocks alone until the stream has run it. The communicators of captured collectives are alive and not aborted.
    pub unsafe fn launch(&self, stream: &CudaStream) -> Result<(), CudaError> {
        let refused = |e| CudaError::driver("launching a graph", e);
        self.context.bind_to_thread().map_err(refused)?;
        // SAFETY: both handles are alive; the caller answers for the memory.
        unsafe { result::graph::launch(self.handle, stream.cu_stream()) }.map_err(refused)
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: made by `instantiate`, destroyed once; the driver keeps it until launches under way are done.
            let _ = unsafe { result::graph::exec_destroy(self.handle) };
        }
    }
}
