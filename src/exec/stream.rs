//! Where work is put.

/// The queue a plan's work is put on: the calling thread for CPU plans, a CUDA stream for CUDA plans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// The calling thread and its worker pool; `execute` returns when the work is done.
    Cpu,
    /// A `CUstream` of the device that the plan was compiled for, as an address; 0 is the default stream. `execute` returns
    /// when the work is queued.
    Cuda(u64),
}

impl Stream {
    /// The calling thread.
    pub fn cpu() -> Stream {
        Stream::Cpu
    }

    /// A raw `CUstream` (or `cudaStream_t`) as an address. The stream must stay alive until the queued work is done.
    pub fn cuda(raw: u64) -> Stream {
        Stream::Cuda(raw)
    }
}
