//! NVRTC through an own binding of the few functions that are needed.
//!
//! cudarc's loader knows fixed names only and panics when none is found, and its compile path has neither in-memory headers nor cubins.
//! Binding by path also lets a copy outside the loader's reach work: NVRTC opens `libnvrtc-builtins` by bare name, so the builtins of the
//! same folder are loaded first and found by their soname.

mod program;

use super::search::{libraries_in, Candidate, SearchPath};
use crate::{Error, ErrorCode, Result};
use libloading::Library;
use std::ffi::{c_char, c_int, CStr};
use std::path::Path;
use std::sync::{Arc, Mutex, Once};

type Handle = *mut std::ffi::c_void;
type Status = c_int;

/// Oldest release whose cubins and options are used here.
const OLDEST: (i32, i32) = (12, 0);
/// The command our messages give.
pub(crate) const INSTALL: &str = "python3 -m pip install nvidia-cuda-nvrtc==13.0.88";

macro_rules! functions {
    ($($field:ident = $symbol:literal: fn($($arg:ty),*) -> $ret:ty;)*) => {
        struct Functions { $($field: unsafe extern "C" fn($($arg),*) -> $ret,)* }
        impl Functions {
            fn load(lib: &Library) -> std::result::Result<Functions, String> {
                Ok(Functions { $($field: {
                    // SAFETY: the type is that of the function in NVRTC's C header, unchanged since release 11.2; the pointer is kept
                    // beside the library that owns it.
                    let symbol = unsafe { lib.get::<unsafe extern "C" fn($($arg),*) -> $ret>(concat!($symbol, "\0").as_bytes()) };
                    *symbol.map_err(|_| format!("lacks {}", $symbol))?
                },)* })
            }
        }
    };
}

functions! {
    version = "nvrtcVersion": fn(*mut c_int, *mut c_int) -> Status;
    arch_count = "nvrtcGetNumSupportedArchs": fn(*mut c_int) -> Status;
    archs = "nvrtcGetSupportedArchs": fn(*mut c_int) -> Status;
    create = "nvrtcCreateProgram": fn(*mut Handle, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char) -> Status;
    destroy = "nvrtcDestroyProgram": fn(*mut Handle) -> Status;
    compile = "nvrtcCompileProgram": fn(Handle, c_int, *const *const c_char) -> Status;
    cubin_size = "nvrtcGetCUBINSize": fn(Handle, *mut usize) -> Status;
    cubin = "nvrtcGetCUBIN": fn(Handle, *mut c_char) -> Status;
    log_size = "nvrtcGetProgramLogSize": fn(Handle, *mut usize) -> Status;
    log = "nvrtcGetProgramLog": fn(Handle, *mut c_char) -> Status;
    error_text = "nvrtcGetErrorString": fn(Status) -> *const c_char;
}

/// A loaded NVRTC.
pub struct Nvrtc {
    functions: Functions,
    version: (i32, i32),
    archs: Vec<u32>,
    place: String,
    builtins: Once,
    _lib: Library,
}

impl std::fmt::Debug for Nvrtc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NVRTC {}.{} ({})", self.version.0, self.version.1, self.place)
    }
}

/// Why a compilation gave no cubin.
#[derive(Debug)]
pub(crate) struct Failure {
    /// NVRTC's name of the failure.
    pub what: String,
    /// NVRTC's log.
    pub log: String,
}

impl Nvrtc {
    fn open(candidate: &Candidate) -> std::result::Result<Nvrtc, String> {
        let name: &std::ffi::OsStr = match candidate {
            Candidate::Name(n) => n.as_ref(),
            Candidate::File(p) if p.is_file() => p.as_os_str(),
            Candidate::File(_) => return Err("no such file".into()),
        };
        // SAFETY: loading runs the library's initialisers; the candidates are NVIDIA's NVRTC by name, or what the user pointed at.
        let lib = unsafe { Library::new(name) }.map_err(|e| match candidate {
            Candidate::Name(_) => "not found by the loader".to_owned(),
            Candidate::File(_) => format!("cannot be loaded ({e})"),
        })?;
        let functions = Functions::load(&lib)?;
        let (mut major, mut minor, mut count) = (0, 0, 0);
        // SAFETY: out-pointers to live integers.
        let status = unsafe { (functions.version)(&mut major, &mut minor) };
        if status != 0 || (major, minor) < OLDEST {
            return Err(format!("release {major}.{minor} is too old"));
        }
        // SAFETY: an out-pointer to a live integer.
        let counted = unsafe { (functions.arch_count)(&mut count) };
        let mut archs = vec![0 as c_int; usize::try_from(count).unwrap_or(0)];
        // SAFETY: the array has as many elements as NVRTC said it would write.
        if counted != 0 || unsafe { (functions.archs)(archs.as_mut_ptr()) } != 0 {
            return Err("does not list its targets".into());
        }
        Ok(Nvrtc {
            functions,
            version: (major, minor),
            archs: archs.into_iter().filter_map(|a| u32::try_from(a).ok()).collect(),
            place: candidate.to_string(),
            builtins: Once::new(),
            _lib: lib,
        })
    }

    /// First library of `path` that is new enough and can target compute capability `cc`.
    ///
    /// # Errors
    /// FG6002 with every place that was tried and why it did not serve, and the command that installs NVRTC.
    pub fn find(path: &SearchPath, cc: u32) -> Result<Nvrtc> {
        let mut tried = Vec::new();
        for candidate in path.nvrtc_candidates() {
            match Nvrtc::open(&candidate) {
                Ok(found) if found.archs.contains(&cc) => return Ok(found),
                Ok(found) => tried.push(format!("{candidate}: release {} cannot target sm_{cc}", found.release())),
                Err(why) => tried.push(format!("{candidate}: {why}")),
            }
        }
        tried.extend(path.nvrtc_dirs().into_iter().filter(|d| !d.exists()).map(|d| format!("{}: no such folder", d.display())));
        tried.extend(
            path.nvrtc_override
                .iter()
                .filter(|p| p.is_dir() && tried.is_empty())
                .map(|p| format!("{}: no libnvrtc.so* in this folder", p.display()))
                .collect::<Vec<_>>(),
        );
        let given = match &path.nvrtc_override {
            Some(p) => format!("FROSTGRAPH_NVRTC={} gives no usable libnvrtc", p.display()),
            None => "no usable libnvrtc was found".into(),
        };
        Err(Error::new(ErrorCode::CudaLibrary, given, format!("NVRTC {}.{} or newer that targets sm_{cc}", OLDEST.0, OLDEST.1))
            .help(format!("Install it with: {INSTALL}; or set FROSTGRAPH_NVRTC to its file or folder"))
            .details(tried))
    }

    /// The process's NVRTC for a compute capability, found once along [`SearchPath::from_env`] and kept.
    ///
    /// # Errors
    /// As [`Nvrtc::find`]; a failure is not kept, so installing NVRTC while the process runs helps.
    pub fn get(cc: u32) -> Result<Arc<Nvrtc>> {
        static LOADED: Mutex<Vec<Arc<Nvrtc>>> = Mutex::new(Vec::new());
        let mut loaded = LOADED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(found) = loaded.iter().find(|n| n.archs.contains(&cc)) {
            return Ok(found.clone());
        }
        let found = Arc::new(Nvrtc::find(&SearchPath::from_env(), cc)?);
        tracing::debug!(nvrtc = ?found, "loaded");
        loaded.push(found.clone());
        Ok(found)
    }

    /// Release such as `13.0`.
    pub fn release(&self) -> String {
        format!("{}.{}", self.version.0, self.version.1)
    }

    /// Release and the library file's length, such as `13.0-109338064`: what cached cubins are keyed by. NVRTC does not tell its patch
    /// level, and a patch may fix what it generates.
    pub fn build(&self) -> String {
        let file = mapped_file(self.functions.version as usize);
        let length = file.and_then(|f| std::fs::metadata(f).ok()).map_or(0, |m| m.len());
        format!("{}-{length}", self.release())
    }

    /// Where it was found.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Compute capabilities it can target.
    pub fn targets(&self) -> &[u32] {
        &self.archs
    }

    /// Loads the builtins that lie beside NVRTC's file, once, and leaves them loaded. Not done on opening: a warm cache compiles nothing.
    ///
    /// The file is asked of the process map, not of the candidate: a bare name also finds a copy that someone else (another part of the
    /// program, PyTorch) loaded from a folder of its own, where the loader would not find the builtins.
    fn load_builtins(&self) {
        self.builtins.call_once(|| {
            let file = mapped_file(self.functions.version as usize);
            let Some(dir) = file.as_deref().and_then(Path::parent) else { return };
            for file in libraries_in(dir, "libnvrtc-builtins") {
                // SAFETY: as for NVRTC itself; a data library of the same release.
                match unsafe { Library::new(&file) } {
                    Ok(lib) => std::mem::forget(lib),
                    Err(e) => tracing::warn!(file = %file.display(), error = %e, "NVRTC's builtins cannot be loaded"),
                }
            }
        });
    }

    fn status_text(&self, status: Status) -> String {
        // SAFETY: NVRTC returns a static string for every status.
        let text = unsafe { (self.functions.error_text)(status) };
        if text.is_null() {
            return format!("NVRTC status {status}");
        }
        // SAFETY: not null, NUL-terminated, static.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

/// The file that this address of our process is mapped from; `None` where `/proc` does not tell.
fn mapped_file(address: usize) -> Option<std::path::PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| {
        let (low, high) = line.split_whitespace().next()?.split_once('-')?;
        let range = usize::from_str_radix(low, 16).ok()?..usize::from_str_radix(high, 16).ok()?;
        range.contains(&address).then(|| line.find('/').map(|at| std::path::PathBuf::from(&line[at..])))?
    })
}

#[cfg(test)]
mod tests;
