//! Streams, events and graphs owned by Rust: for tests, benchmarks and the command line. Libraries hand in streams of their own.

use super::driver::{check, elapsed_ms, relaxed, swallow};
use super::CudaDevice;
use crate::Result;
use cudarc::driver::sys;

/// A stream that does not synchronise with the legacy default stream.
#[derive(Debug)]
pub struct CudaStream {
    device: CudaDevice,
    raw: sys::CUstream,
}

// SAFETY: a stream handle is an opaque name; the driver synchronises its use by several threads.
unsafe impl Send for CudaStream {}
// SAFETY: as above.
unsafe impl Sync for CudaStream {}

impl CudaStream {
    /// A new stream.
    ///
    /// # Errors
    /// FG6003.
    pub fn new(device: &CudaDevice) -> Result<CudaStream> {
        let _current = device.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: a live out-pointer; 1 is CU_STREAM_NON_BLOCKING.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut raw, 1) })?;
        Ok(CudaStream { device: device.clone(), raw })
    }

    /// The `CUstream` as an address, as `execute` takes it.
    pub fn raw(&self) -> u64 {
        self.raw as u64
    }

    pub(crate) fn handle(&self) -> sys::CUstream {
        self.raw
    }

    /// Waits for everything queued; reports the first fault of it.
    ///
    /// # Errors
    /// FG6003.
    pub fn synchronize(&self) -> Result<()> {
        let _current = self.device.enter()?;
        // SAFETY: a live stream.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.raw) })
    }

    /// Later work waits for the event.
    ///
    /// # Errors
    /// FG6003.
    pub fn wait(&self, event: &CudaEvent) -> Result<()> {
        let _current = self.device.enter()?;
        // SAFETY: a live stream and a live event.
        check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(self.raw, event.raw, 0) })
    }

    /// Records what `work` queues on this stream into a graph instead of running it.
    ///
    /// # Errors
    /// Those of `work`, and FG6003 when the capture was broken; the stream is out of capture mode in any case.
    pub fn capture(&self, work: impl FnOnce() -> Result<()>) -> Result<CudaGraph> {
        let _current = self.device.enter()?;
        // Thread-local mode: what other threads do meanwhile is their business.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: a live stream.
        check("cuStreamBeginCapture", unsafe { sys::cuStreamBeginCapture_v2(self.raw, mode) })?;
        let worked = work();
        let mut graph = std::ptr::null_mut();
        // SAFETY: a live stream and a live out-pointer.
        let ended = check("cuStreamEndCapture", unsafe { sys::cuStreamEndCapture(self.raw, &mut graph) });
        let mut exec = std::ptr::null_mut();
        let made = worked.and(ended).and_then(|()| {
            // SAFETY: a captured graph and a live out-pointer.
            check("cuGraphInstantiate", unsafe { sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0) })
        });
        if !graph.is_null() {
            // SAFETY: made by the capture, destroyed once; an instantiated graph does not need it any more.
            swallow("cuGraphDestroy", unsafe { sys::cuGraphDestroy(graph) });
        }
        made?;
        Ok(CudaGraph { device: self.device.clone(), exec })
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        relaxed(self.device.context(), || {
            // SAFETY: created by `new`, destroyed once; queued work still completes.
            swallow("cuStreamDestroy", unsafe { sys::cuStreamDestroy_v2(self.raw) });
        });
    }
}

/// A recorded, replayable sequence of launches.
#[derive(Debug)]
pub struct CudaGraph {
    device: CudaDevice,
    exec: sys::CUgraphExec,
}

// SAFETY: an opaque name; the driver synchronises its use by several threads.
unsafe impl Send for CudaGraph {}

impl CudaGraph {
    /// Queues one replay.
    ///
    /// # Errors
    /// FG6003.
    pub fn launch(&self, stream: &CudaStream) -> Result<()> {
        let _current = self.device.enter()?;
        // SAFETY: a live graph and a live stream.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(self.exec, stream.raw) })
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        relaxed(self.device.context(), || {
            // SAFETY: instantiated once, destroyed once.
            swallow("cuGraphExecDestroy", unsafe { sys::cuGraphExecDestroy(self.exec) });
        });
    }
}

/// A point in a stream, with a time.
#[derive(Debug)]
pub struct CudaEvent {
    device: CudaDevice,
    raw: sys::CUevent,
}

// SAFETY: an opaque name; the driver synchronises its use by several threads.
unsafe impl Send for CudaEvent {}

impl CudaEvent {
    /// A new event.
    ///
    /// # Errors
    /// FG6003.
    pub fn new(device: &CudaDevice) -> Result<CudaEvent> {
        let _current = device.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: a live out-pointer; 0 asks for a timing event.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut raw, 0) })?;
        Ok(CudaEvent { device: device.clone(), raw })
    }

    /// Marks the end of what is queued on the stream.
    ///
    /// # Errors
    /// FG6003.
    pub fn record(&self, stream: &CudaStream) -> Result<()> {
        self.record_raw(stream.raw())
    }

    /// As [`CudaEvent::record`] on a stream of the caller, which is alive as for `execute`.
    pub(crate) fn record_raw(&self, stream: u64) -> Result<()> {
        let _current = self.device.enter()?;
        // SAFETY: a live event and a live stream.
        check("cuEventRecord", unsafe { sys::cuEventRecord(self.raw, stream as sys::CUstream) })
    }

    /// Waits until the marked work is done.
    ///
    /// # Errors
    /// FG6003.
    pub fn synchronize(&self) -> Result<()> {
        let _current = self.device.enter()?;
        // SAFETY: a live event.
        check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(self.raw) })
    }

    /// Milliseconds from `earlier` to this event; both must have passed.
    ///
    /// # Errors
    /// FG6003.
    pub fn ms_since(&self, earlier: &CudaEvent) -> Result<f32> {
        let _current = self.device.enter()?;
        elapsed_ms(earlier.raw, self.raw)
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        relaxed(self.device.context(), || {
            // SAFETY: created by `new`, destroyed once.
            swallow("cuEventDestroy", unsafe { sys::cuEventDestroy_v2(self.raw) });
        });
    }
}
