//! Cubins in memory and on disk.
//!
//! No lock files: a process that dies holding nothing can block nobody (field report 115). An entry is written beside its place, synced and
//! renamed, so a reader sees a whole entry or none; when several processes compile the same kernel the last rename wins, with equal bytes.
//! Inside a process every key has one cell, so 64 threads compile a kernel once (report 118). The key holds contents only (report 116).

use super::compile::{compile_with, options, source_digest, Cubin};
use super::entry::{self, Header};
use super::nvrtc::Nvrtc;
use crate::engines::KernelSpec;
use crate::{Error, ErrorCode, Result};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Default size cap of the disk cache.
pub const DEFAULT_MAX_BYTES: u64 = 1 << 30;
/// A file that a killed writer left behind is removed after this long.
const STALE_TEMP: std::time::Duration = std::time::Duration::from_secs(3600);

type Cell = Arc<OnceLock<Result<Arc<Cubin>>>>;

/// A cubin cache: a folder, or memory alone.
#[derive(Debug)]
pub struct CubinCache {
    dir: Option<PathBuf>,
    max_bytes: u64,
    cells: Mutex<BTreeMap<String, Cell>>,
    unwritable: OnceLock<()>,
}

/// One file of the cache as [`CubinCache::list`] shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// File name.
    pub file: String,
    /// Bytes on disk.
    pub bytes: u64,
    /// Last use.
    pub used: std::time::SystemTime,
    /// What it holds; the reason when it cannot be used.
    pub contents: std::result::Result<Header, String>,
}

/// Where the cache lies by the environment: `FROSTGRAPH_CACHE_DIR`, else `XDG_CACHE_HOME`, else `~/.cache`; `None` without any of them.
pub fn default_dir() -> Option<PathBuf> {
    dir_by(|name| std::env::var_os(name))
}

/// The same through a lookup. Bases that are no absolute paths are passed over: the cache must not move with the working directory.
fn dir_by(lookup: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let var = |name: &str| lookup(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let base = |name: &str| var(name).filter(|p| p.is_absolute());
    var("FROSTGRAPH_CACHE_DIR").or_else(|| {
        let base = base("XDG_CACHE_HOME").or_else(|| base("HOME").map(|h| h.join(".cache")))?;
        Some(base.join("frostgraph"))
    })
}

/// Size cap by the environment: `FROSTGRAPH_CACHE_MAX_BYTES`, else [`DEFAULT_MAX_BYTES`].
pub fn default_max_bytes() -> u64 {
    let Ok(given) = std::env::var("FROSTGRAPH_CACHE_MAX_BYTES") else { return DEFAULT_MAX_BYTES };
    given.trim().parse().unwrap_or_else(|_| {
        tracing::warn!(value = given, "FROSTGRAPH_CACHE_MAX_BYTES is no number of bytes; the default stands");
        DEFAULT_MAX_BYTES
    })
}

impl CubinCache {
    /// A cache in `dir` (made on first write), or in memory alone. `max_bytes` caps the disk; 0 keeps nothing there.
    pub fn new(dir: Option<PathBuf>, max_bytes: u64) -> CubinCache {
        let dir = if max_bytes == 0 { None } else { dir };
        CubinCache { dir, max_bytes, cells: Mutex::default(), unwritable: OnceLock::new() }
    }

    /// The process's cache, configured by the environment at first use.
    pub fn global() -> &'static CubinCache {
        static GLOBAL: OnceLock<CubinCache> = OnceLock::new();
        GLOBAL.get_or_init(|| CubinCache::new(default_dir(), default_max_bytes()))
    }

    /// The cubin of a kernel: from memory, from disk, or compiled and kept.
    ///
    /// # Errors
    /// FG6004 when it does not compile. A cache that cannot be read or written is no error: it is logged once and done without.
    pub fn kernel(&self, nvrtc: &Nvrtc, arch: &str, spec: &KernelSpec) -> Result<Arc<Cubin>> {
        let header = Header::new(spec, arch, &nvrtc.build(), &source_digest(spec, arch)?, &options(spec, arch));
        self.get_or_compile(header, spec, || compile_with(nvrtc, spec, arch))
    }

    /// As [`CubinCache::kernel`] with the compiler given by the caller.
    ///
    /// # Errors
    /// The compiler's. Callers that wait for the same kernel share its error; later callers try again.
    pub(crate) fn get_or_compile(
        &self,
        header: Header,
        spec: &KernelSpec,
        compile: impl FnOnce() -> Result<Cubin>,
    ) -> Result<Arc<Cubin>> {
        let key = header.key();
        let cell = self.cells.lock().unwrap_or_else(PoisonError::into_inner).entry(key.clone()).or_default().clone();
        let result = cell.get_or_init(|| {
            if let Some(found) = self.read(&key, &header, spec) {
                return Ok(Arc::new(found));
            }
            let cubin = compile()?;
            self.write(&key, &header, &cubin);
            Ok(Arc::new(cubin))
        });
        if result.is_err() {
            let mut cells = self.cells.lock().unwrap_or_else(PoisonError::into_inner);
            if cells.get(&key).is_some_and(|now| Arc::ptr_eq(now, &cell)) {
                cells.remove(&key);
            }
        }
        result.clone()
    }

    fn path(&self, key: &str) -> Option<PathBuf> {
        Some(self.dir.as_ref()?.join(format!("{key}.{}", entry::EXTENSION)))
    }

    /// A whole, undamaged entry with this identity; anything else is a miss.
    fn read(&self, key: &str, header: &Header, spec: &KernelSpec) -> Option<Cubin> {
        let path = self.path(key)?;
        let bytes = std::fs::read(&path).ok()?;
        match entry::decode(&bytes).and_then(|(found, image)| {
            if !found.same_kernel(header) {
                return Err("holds another kernel".to_owned());
            }
            Cubin::new(spec, &header.arch, &header.nvrtc, image.to_vec(), &found.log).map_err(|e| e.to_string())
        }) {
            Ok(cubin) => {
                // The time of last use decides what a full cache drops first. A read-only cache still serves.
                let now = std::time::SystemTime::now();
                let _ = std::fs::File::options().append(true).open(&path).and_then(|f| f.set_modified(now));
                Some(cubin)
            }
            Err(why) => {
                tracing::warn!(file = %path.display(), why, "cubin cache entry is ignored and made again");
                None
            }
        }
    }

    fn write(&self, key: &str, header: &Header, cubin: &Cubin) {
        let (Some(path), Some(dir)) = (self.path(key), self.dir.as_ref()) else { return };
        let header = Header { log: cubin.log.clone(), ..header.clone() };
        let bytes = entry::encode(&header, &cubin.bytes);
        if bytes.len() as u64 > self.max_bytes {
            return;
        }
        match std::fs::create_dir_all(dir).and_then(|()| crate::files::replace(&path, &bytes)) {
            Ok(()) => self.prune(dir, &path),
            Err(e) => {
                self.unwritable.get_or_init(|| {
                    tracing::warn!(dir = %dir.display(), error = %e, "the cubin cache cannot be written; kernels are compiled anew in each process");
                });
            }
        }
    }

    /// Removes the least recently used entries until the folder is under its cap, and what killed writers left.
    fn prune(&self, dir: &Path, keep: &Path) {
        let mut files: Vec<(std::time::SystemTime, u64, PathBuf)> = Vec::new();
        for (path, meta) in files_of(dir) {
            let used = meta.modified().unwrap_or(std::time::UNIX_EPOCH);
            if is_temp(&path) {
                if used.elapsed().is_ok_and(|age| age > STALE_TEMP) {
                    let _ = std::fs::remove_file(&path);
                }
            } else if is_entry(&path) {
                files.push((used, meta.len(), path));
            }
        }
        files.sort();
        let mut total: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
        for (_, bytes, path) in files {
            if total <= self.max_bytes {
                break;
            }
            // Another process may have removed it first: the bytes are gone either way.
            if path != keep && (std::fs::remove_file(&path).is_ok() || !path.exists()) {
                total -= bytes;
            }
        }
    }

    /// Entries, ordered by file name.
    ///
    /// # Errors
    /// FG6005 when the folder cannot be read; a folder that does not exist is an empty cache.
    pub fn list(&self) -> Result<Vec<Entry>> {
        let Some(dir) = &self.dir else { return Ok(Vec::new()) };
        match std::fs::read_dir(dir) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(folder_error(dir, &e)),
            Ok(_) => {}
        }
        let mut entries = Vec::new();
        for (path, meta) in files_of(dir).into_iter().filter(|(p, _)| is_entry(p)) {
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let contents = match std::fs::read(&path) {
                Ok(bytes) => entry::decode(&bytes).map(|(header, _)| header).and_then(|header| {
                    if file.strip_suffix(&format!(".{}", entry::EXTENSION)) == Some(header.key().as_str()) {
                        Ok(header)
                    } else {
                        Err("the name is not the key of the contents".into())
                    }
                }),
                Err(e) => Err(e.to_string()),
            };
            entries.push(Entry { file, bytes: meta.len(), used: meta.modified().unwrap_or(std::time::UNIX_EPOCH), contents });
        }
        entries.sort_by(|a, b| a.file.cmp(&b.file));
        Ok(entries)
    }

    /// Checks every entry and removes the unusable ones; gives the kept and the removed.
    ///
    /// # Errors
    /// FG6005 when the folder cannot be read or a damaged entry cannot be removed.
    pub fn verify(&self) -> Result<(Vec<Entry>, Vec<Entry>)> {
        let (good, bad): (Vec<Entry>, Vec<Entry>) = self.list()?.into_iter().partition(|e| e.contents.is_ok());
        self.remove(&bad)?;
        Ok((good, bad))
    }

    /// Removes every entry and every leftover of killed writers; gives the removed entries. Files of other kinds stay.
    ///
    /// # Errors
    /// FG6005 when the folder cannot be read or an entry cannot be removed.
    pub fn clear(&self) -> Result<Vec<Entry>> {
        let all = self.list()?;
        self.remove(&all)?;
        for (path, _) in self.dir.iter().flat_map(|d| files_of(d)).filter(|(p, _)| is_temp(p)) {
            let _ = std::fs::remove_file(path);
        }
        self.cells.lock().unwrap_or_else(PoisonError::into_inner).clear();
        Ok(all)
    }

    fn remove(&self, entries: &[Entry]) -> Result<()> {
        let Some(dir) = &self.dir else { return Ok(()) };
        for e in entries {
            match std::fs::remove_file(dir.join(&e.file)) {
                Err(err) if err.kind() != std::io::ErrorKind::NotFound => return Err(folder_error(&dir.join(&e.file), &err)),
                _ => {}
            }
        }
        Ok(())
    }

    /// The folder, when there is one.
    pub fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    /// The size cap of the folder in bytes.
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes
    }
}

fn folder_error(path: &Path, e: &std::io::Error) -> Error {
    Error::new(ErrorCode::CubinCache, e.to_string(), "a cubin cache that can be read and written")
        .at(path.display().to_string())
        .help("Set FROSTGRAPH_CACHE_DIR to another folder")
}

fn is_entry(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == entry::EXTENSION)
}

fn is_temp(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "tmp") && path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("fg-"))
}

/// Plain files of a folder with their metadata; links are not followed.
fn files_of(dir: &Path) -> Vec<(PathBuf, std::fs::Metadata)> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|e| Some((e.path(), e.metadata().ok()?))).filter(|(_, m)| m.is_file()).collect()
}

#[cfg(test)]
mod tests;
