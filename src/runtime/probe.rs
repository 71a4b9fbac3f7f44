//! Is there a usable driver? Asked before the first cudarc call, because cudarc panics when the library or a symbol is missing.

use super::search::{Candidate, SearchPath};
use crate::{Error, ErrorCode, Result};
use cudarc::driver::sys;
use libloading::Library;

/// Every driver function this crate calls. All exist since CUDA 12.0; an older driver is refused here rather than by a panic later.
const SYMBOLS: &[&str] = &[
    "cuCtxGetCurrent",
    "cuCtxPopCurrent_v2",
    "cuCtxPushCurrent_v2",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem_v2",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuFuncGetAttribute",
    "cuFuncSetAttribute",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuInit",
    "cuLaunchKernelEx",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyHtoD_v2",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuStreamBeginCapture_v2",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamEndCapture",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuTensorMapEncodeTiled",
    "cuThreadExchangeStreamCaptureMode",
];

/// `cuEventElapsedTime`, by hand: cudarc binds its successor alone, which drivers before CUDA 12.8 lack.
pub(crate) type ElapsedTime = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> sys::CUresult;

/// A loaded, usable driver library. It is never unloaded.
#[derive(Debug, Clone)]
pub(crate) struct DriverLibrary {
    /// Where it was found.
    pub place: String,
    /// See [`ElapsedTime`].
    pub elapsed: Option<ElapsedTime>,
}

const INSTALL: &str = "Install an NVIDIA driver of release 525 or newer: sudo apt-get install -y cuda-drivers (in a container: run it with --gpus all)";

/// Opens the first usable driver library of `path` and leaves it loaded, so that cudarc's own lookup by name finds the same copy.
///
/// # Errors
/// FG6002 with the places that were tried and the command that installs a driver.
pub(crate) fn driver_library(path: &SearchPath) -> Result<DriverLibrary> {
    let mut tried = Vec::new();
    for candidate in path.driver_candidates() {
        let name: &std::ffi::OsStr = match &candidate {
            Candidate::Name(n) => n.as_ref(),
            Candidate::File(p) => p.as_os_str(),
        };
        // SAFETY: loading runs the library's initialisers; the candidates are NVIDIA's driver library by name or in its usual folders.
        let lib = match unsafe { Library::new(name) } {
            Ok(lib) => lib,
            Err(e) => {
                tried.push(match &candidate {
                    Candidate::Name(_) => format!("{candidate}: not found by the loader"),
                    Candidate::File(_) => format!("{candidate}: cannot be loaded ({e})"),
                });
                continue;
            }
        };
        let missing = SYMBOLS.iter().find(|s| {
            // SAFETY: the symbol is only looked up, never called through this type.
            unsafe { lib.get::<*const std::ffi::c_void>(s.as_bytes()) }.is_err()
        });
        match missing {
            Some(symbol) => tried.push(format!("{candidate}: too old, it lacks {symbol}")),
            None => {
                let lib: &'static Library = Box::leak(Box::new(lib));
                // SAFETY: the type is that of the function in the driver's C header since CUDA 2.0.
                let elapsed = unsafe { lib.get::<ElapsedTime>(b"cuEventElapsedTime\0") };
                let elapsed = elapsed.map(|f| *f).ok();
                return Ok(DriverLibrary { place: candidate.to_string(), elapsed });
            }
        }
    }
    let dirs = path.driver_dirs.iter().filter(|d| !d.exists()).map(|d| format!("{}: no such folder", d.display()));
    tried.extend(dirs);
    Err(Error::new(ErrorCode::CudaLibrary, "no usable libcuda was found", "the NVIDIA driver library, for CUDA 12.0 or newer")
        .help(INSTALL)
        .details(tried))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Report 143: a machine without a driver gets an error with the places and the command, never a panic.
    #[test]
    fn no_driver_says_where_and_how_143() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("libcuda.so.1"), b"not a library").unwrap();
        let path = SearchPath { driver_dirs: vec![dir.path().to_path_buf(), "/no/driver".into()], ..SearchPath::default() };
        let e = driver_library(&path).unwrap_err();
        assert_eq!(e.code, ErrorCode::CudaLibrary);
        let text = e.to_string();
        assert!(text.contains("libcuda.so.1: cannot be loaded"), "{text}");
        assert!(text.contains("/no/driver: no such folder"), "{text}");
        assert!(text.contains("sudo apt-get install -y cuda-drivers"), "{text}");
    }

    /// A library that loads but is something else lacks the symbols: NVRTC under the driver's name.
    #[test]
    fn a_library_without_the_symbols_is_too_old() {
        let Some(Candidate::File(nvrtc)) =
            SearchPath { loader: false, ..SearchPath::from_env() }.nvrtc_candidates().into_iter().next()
        else {
            eprintln!("SKIPPED, NOT TESTED: no library at hand to stand in for an old driver");
            return;
        };
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(nvrtc, dir.path().join("libcuda.so.1")).unwrap();
        let path = SearchPath { driver_dirs: vec![dir.path().to_path_buf()], ..SearchPath::default() };
        let text = driver_library(&path).unwrap_err().to_string();
        assert!(text.contains("libcuda.so.1: too old, it lacks cuCtxGetCurrent"), "{text}");
    }

    /// Every `sys::cu…` call of this module's sources is in the list: a call that is not would panic on an older driver.
    #[test]
    fn the_symbol_list_is_complete() {
        let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/runtime");
        let mut called = std::collections::BTreeSet::new();
        for file in std::fs::read_dir(dir).unwrap() {
            let path = file.unwrap().path();
            let text = if path.is_file() { std::fs::read_to_string(path).unwrap() } else { String::new() };
            for part in text.split("sys::cu").skip(1) {
                let name: String = part.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
                if name.starts_with(|c: char| c.is_ascii_uppercase()) {
                    called.insert(format!("cu{name}"));
                }
            }
        }
        let listed: std::collections::BTreeSet<String> = SYMBOLS.iter().map(|s| s.to_string()).collect();
        assert_eq!(called, listed);
    }
}
