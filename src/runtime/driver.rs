//! The driver API, one level above raw calls: initialised once, every status checked, the right context made current and restored.

use super::probe::{driver_library, DriverLibrary, ElapsedTime};
use super::search::SearchPath;
use crate::{Error, ErrorCode, Result};
use cudarc::driver::sys::{self, CUresult};
use std::ffi::{c_char, CStr};
use std::sync::Mutex;

/// The driver's own version, such as 13000; below this the chain's launches are not available.
const OLDEST: i32 = 12000;

/// Loads and initialises the driver, once.
///
/// # Errors
/// FG6002 when it is missing or too old, FG6003 when it cannot be initialised. A failure is not kept.
pub(crate) fn ready() -> Result<i32> {
    static VERSION: Mutex<Option<i32>> = Mutex::new(None);
    let mut version = VERSION.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(v) = *version {
        return Ok(v);
    }
    // A library stays loaded, so it is looked for once even where initialising it goes on failing.
    static LIBRARY: std::sync::OnceLock<DriverLibrary> = std::sync::OnceLock::new();
    let library = match LIBRARY.get() {
        Some(found) => found,
        None => {
            let found = driver_library(&SearchPath::from_env())?;
            LIBRARY.get_or_init(|| found)
        }
    };
    let mut v = 0;
    // SAFETY: the library is loaded and has the symbol; the out-pointer is live.
    check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut v) })?;
    if v < OLDEST {
        let given = format!("the driver at {} supports CUDA {}.{}", library.place, v / 1000, v % 1000 / 10);
        return Err(Error::new(ErrorCode::CudaLibrary, given, "a driver for CUDA 12.0 or newer")
            .help("Update it: sudo apt-get install -y cuda-drivers"));
    }
    // SAFETY: no preconditions.
    check("cuInit", unsafe { sys::cuInit(0) })?;
    if let Some(function) = library.elapsed {
        ELAPSED.get_or_init(|| function);
    }
    *version = Some(v);
    Ok(v)
}

static ELAPSED: std::sync::OnceLock<ElapsedTime> = std::sync::OnceLock::new();

/// Milliseconds between two events.
pub(crate) fn elapsed_ms(from: sys::CUevent, to: sys::CUevent) -> Result<f32> {
    let mut ms = 0.0;
    let function = ELAPSED
        .get()
        .ok_or_else(|| Error::new(ErrorCode::CudaLibrary, "the driver lacks cuEventElapsedTime", "a driver that times events"))?;
    // SAFETY: live events of this driver, which the caller's objects own, and a live out-pointer.
    check("cuEventElapsedTime", unsafe { function(&mut ms, from, to) })?;
    Ok(ms)
}

/// Name and text of a status.
fn describe(status: CUresult) -> String {
    let text = |get: unsafe fn(CUresult, *mut *const c_char) -> CUresult| {
        let mut p = std::ptr::null();
        // SAFETY: an out-pointer to a live pointer; the driver answers with a static string or null.
        if unsafe { get(status, &mut p) } != CUresult::CUDA_SUCCESS || p.is_null() {
            return String::new();
        }
        // SAFETY: a static NUL-terminated string of the driver.
        unsafe { CStr::from_ptr(p) }.to_string_lossy().into_owned()
    };
    format!("{} ({})", text(sys::cuGetErrorName), text(sys::cuGetErrorString))
}

fn advice(status: CUresult) -> &'static str {
    use CUresult::*;
    match status {
        CUDA_ERROR_NO_DEVICE => "No device is visible to this process: see nvidia-smi and CUDA_VISIBLE_DEVICES",
        CUDA_ERROR_STUB_LIBRARY => "The loader found a toolkit's stub of libcuda: remove the stubs folder from LD_LIBRARY_PATH",
        CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => "The driver library and the kernel module differ: reboot after a driver update",
        CUDA_ERROR_OUT_OF_MEMORY => "The device is out of memory",
        CUDA_ERROR_INVALID_IMAGE | CUDA_ERROR_NO_BINARY_FOR_GPU | CUDA_ERROR_UNSUPPORTED_PTX_VERSION => {
            "The cubin does not suit this device or driver: NVRTC must not be of a newer major release than the driver, and the target must be the device's own"
        }
        CUDA_ERROR_ILLEGAL_ADDRESS | CUDA_ERROR_LAUNCH_FAILED => {
            "An earlier kernel of this process faulted and the context is lost: run the program under compute-sanitizer"
        }
        _ => "",
    }
}

/// Turns a status into a result that names the call.
///
/// # Errors
/// FG6003.
pub(crate) fn check(call: &'static str, status: CUresult) -> Result<()> {
    if status == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let given = format!("{call} failed: {}", describe(status));
    Err(Error::new(ErrorCode::CudaDriver, given, "CUDA_SUCCESS").help(advice(status)))
}

/// For destructors: a failure is logged and swallowed. A panic or an error here would hide the first fault (field report 146).
pub(crate) fn swallow(call: &'static str, status: CUresult) {
    // While the process ends the driver may already be gone; that is not worth a line.
    if status != CUresult::CUDA_SUCCESS && status != CUresult::CUDA_ERROR_DEINITIALIZED {
        tracing::warn!(call, status = describe(status), "ignored in a destructor");
    }
}

/// A primary context, which may be used from any thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Context(pub sys::CUcontext);

// SAFETY: a context handle is an opaque name; the driver synchronises its use by several threads.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// Makes a context current for a scope and gives the caller's back (field reports 113, 128).
pub(crate) struct Current {
    pushed: bool,
    // The current context belongs to a thread.
    _thread: std::marker::PhantomData<*const ()>,
}

impl Current {
    pub(crate) fn enter(context: Context) -> Result<Current> {
        let mut now = std::ptr::null_mut();
        // SAFETY: an out-pointer to a live pointer.
        check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut now) })?;
        let pushed = now != context.0;
        if pushed {
            // SAFETY: the context is retained by the device that the caller holds.
            check("cuCtxPushCurrent", unsafe { sys::cuCtxPushCurrent_v2(context.0) })?;
        }
        Ok(Current { pushed, _thread: std::marker::PhantomData })
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        if self.pushed {
            let mut popped = std::ptr::null_mut();
            // SAFETY: pushed by `enter` on this thread.
            swallow("cuCtxPopCurrent", unsafe { sys::cuCtxPopCurrent_v2(&mut popped) });
        }
    }
}

/// Runs a destructor's calls so that they cannot break a stream capture that another part of the program has open (field report 133).
pub(crate) fn relaxed(context: Context, work: impl FnOnce()) {
    let Ok(_current) = Current::enter(context) else { return };
    let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: an in-out pointer to a live value.
    let swapped = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) };
    work();
    if swapped == CUresult::CUDA_SUCCESS {
        // SAFETY: as above; `mode` now holds what was set before.
        swallow("cuThreadExchangeStreamCaptureMode", unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) });
    }
}
