//! Ahead-of-time bundles: cubins of many kernels and targets in one file, made without a GPU, used without NVRTC.
//!
//! A bundle carries the digest of the kernel sources it was made from. A program with other sources refuses it instead of launching old
//! code with new parameters.

#[cfg(test)]
mod tests;

use super::compile::{options, place, source_digest, Cubin};
use super::entry::Header;
use crate::engines::{KernelSpec, LaunchPlan, Step};
use crate::{Error, ErrorCode, Result};
use frostgraph_kernels::sha256::sha256;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

/// Eight bytes that no other file starts with; the last is the format's version.
const MAGIC: &[u8; 8] = b"FGBUNDL\x01";
/// Magic, header length, digest of everything after the prefix.
const PREFIX: usize = 8 + 8 + 32;

/// A file that does not end before is none: the kernels of one target take some ten megabytes.
const LARGEST: u64 = 1 << 30;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Index {
    /// Release of the crate that made the bundle.
    frostgraph: String,
    kernels: Vec<Entry>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    header: Header,
    /// Bytes of the image; images follow one another in this order.
    bytes: u64,
}

/// Cubins by kernel and target.
#[derive(Debug, Clone, Default)]
pub struct Bundle {
    /// Ordered by kernel and options.
    entries: Vec<(Header, Arc<Vec<u8>>)>,
    /// Where it came from, for messages.
    place: String,
}

/// Distinct kernels of these plans, in order of first use.
pub fn kernels_of(plans: &[&LaunchPlan]) -> Vec<KernelSpec> {
    let mut found: Vec<KernelSpec> = Vec::new();
    for step in plans.iter().flat_map(|p| &p.steps) {
        if let Step::Kernel(launch) = step {
            if !found.contains(&launch.kernel) {
                found.push(launch.kernel.clone());
            }
        }
    }
    found
}

/// Compiles every kernel of these plans for every target (`sm_90a`, …). Needs NVRTC, no GPU and no driver.
///
/// # Errors
/// FG6002 without NVRTC, FG6004 when a kernel does not compile.
pub fn compile_bundle(arches: &[&str], plans: &[&LaunchPlan]) -> Result<Bundle> {
    let specs = kernels_of(plans);
    let mut bundle = Bundle::default();
    for arch in arches {
        for (spec, cubin) in specs.iter().zip(super::program::compile_all(arch, &specs)?) {
            bundle.insert(spec, &cubin)?;
        }
    }
    Ok(bundle)
}

impl Bundle {
    /// Adds a kernel, replacing an equal one.
    ///
    /// # Errors
    /// FG6004 when the kernel's source is not embedded.
    pub fn insert(&mut self, spec: &KernelSpec, cubin: &Cubin) -> Result<()> {
        let sources = source_digest(spec, &cubin.arch)?;
        let mut header = Header::new(spec, &cubin.arch, &cubin.nvrtc, &sources, &options(spec, &cubin.arch));
        header.log = cubin.log.clone();
        self.entries.retain(|(h, _)| (&h.kernel, &h.options) != (&header.kernel, &header.options));
        self.entries.push((header, Arc::new(cubin.bytes.clone())));
        self.entries.sort_by(|(a, _), (b, _)| (&a.kernel, &a.options).cmp(&(&b.kernel, &b.options)));
        Ok(())
    }

    /// Identities of the kernels in it.
    pub fn kernels(&self) -> impl Iterator<Item = &Header> {
        self.entries.iter().map(|(h, _)| h)
    }

    /// The cubin of a kernel for a target; `None` when the bundle does not have it.
    ///
    /// # Errors
    /// FG5003 when the bundle has it from other kernel sources than this program's.
    pub fn get(&self, arch: &str, spec: &KernelSpec) -> Result<Option<Cubin>> {
        let (kernel, wanted) = (place(spec, arch), options(spec, arch));
        let Some((header, image)) = self.entries.iter().find(|(h, _)| h.kernel == kernel && h.options == wanted) else {
            return Ok(None);
        };
        if header.sources != source_digest(spec, arch)? {
            return Err(Error::new(
                ErrorCode::TensorFile,
                format!("a bundle with {kernel} from other kernel sources"),
                "a bundle made by this release",
            )
            .at(self.place.clone())
            .help("Make it again: frostgraph compile"));
        }
        Cubin::new(spec, arch, &header.nvrtc, image.to_vec(), &header.log).map(Some)
    }

    /// The file's bytes; equal bundles have equal bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let kernels = self.entries.iter().map(|(h, i)| Entry { header: h.clone(), bytes: i.len() as u64 }).collect();
        let index = Index { frostgraph: env!("CARGO_PKG_VERSION").to_owned(), kernels };
        let json = serde_json::to_vec(&index).unwrap_or_default();
        let mut body = json.clone();
        for (_, image) in &self.entries {
            body.extend_from_slice(image);
        }
        let mut out = Vec::with_capacity(PREFIX + body.len());
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&(json.len() as u64).to_le_bytes());
        out.extend_from_slice(&sha256(&body));
        out.extend_from_slice(&body);
        out
    }

    /// Reads a file's bytes.
    ///
    /// # Errors
    /// FG5001 when they are no bundle, truncated or damaged.
    pub fn from_bytes(bytes: &[u8]) -> Result<Bundle> {
        let refuse = |what: &str| Error::new(ErrorCode::FileRead, what.to_owned(), "a bundle as `frostgraph compile` writes it");
        let prefix = bytes.get(..PREFIX).ok_or_else(|| refuse("a truncated file"))?;
        if &prefix[..8] != MAGIC {
            return Err(refuse("a file that is no bundle of this version"));
        }
        let body = &bytes[PREFIX..];
        if prefix[16..] != sha256(body) {
            return Err(refuse("a damaged file: the checksum differs"));
        }
        let mut length = [0; 8];
        length.copy_from_slice(&prefix[8..16]);
        let json = usize::try_from(u64::from_le_bytes(length)).ok().and_then(|n| body.get(..n));
        let json = json.ok_or_else(|| refuse("a file shorter than its header says"))?;
        let index: Index = serde_json::from_slice(json).map_err(|e| refuse(&format!("a header that cannot be read ({e})")))?;
        let mut rest = &body[json.len()..];
        let mut entries = Vec::new();
        for entry in index.kernels {
            let split = usize::try_from(entry.bytes).ok().filter(|n| *n <= rest.len());
            let (image, tail) = rest.split_at(split.ok_or_else(|| refuse("a file shorter than its kernels"))?);
            entries.push((entry.header, Arc::new(image.to_vec())));
            rest = tail;
        }
        if !rest.is_empty() {
            return Err(refuse("bytes after the last kernel"));
        }
        Ok(Bundle { entries, place: String::new() })
    }

    /// Reads a file.
    ///
    /// # Errors
    /// FG5001.
    pub fn load(path: &Path) -> Result<Bundle> {
        let at = path.display().to_string();
        let bytes = std::fs::File::open(path)
            .and_then(|file| crate::files::read_within(file, LARGEST))
            .map_err(|e| Error::new(ErrorCode::FileRead, e.to_string(), "a bundle that can be read").at(at.clone()))?;
        let bundle = Bundle::from_bytes(&bytes).map_err(|e| e.at(at.clone()))?;
        Ok(Bundle { place: at, ..bundle })
    }

    /// Writes a file in a folder that exists: beside, then renamed.
    ///
    /// # Errors
    /// FG5002.
    pub fn save(&self, path: &Path) -> Result<()> {
        crate::files::write_beside(path, &self.to_bytes())
    }

    /// Makes this process take kernels from the bundle before it asks the cache or NVRTC.
    pub fn install(self) {
        installed().write().unwrap_or_else(PoisonError::into_inner).push(self);
    }
}

/// Bundles of this process: those that `FROSTGRAPH_BUNDLE` names (separated as in `PATH`), then what was installed.
fn installed() -> &'static RwLock<Vec<Bundle>> {
    static BUNDLES: OnceLock<RwLock<Vec<Bundle>>> = OnceLock::new();
    BUNDLES.get_or_init(|| {
        let paths = std::env::var_os("FROSTGRAPH_BUNDLE").unwrap_or_default();
        let load = |path: std::path::PathBuf| match Bundle::load(&path) {
            Ok(bundle) => Some(bundle),
            Err(e) => {
                tracing::error!(error = %e, "FROSTGRAPH_BUNDLE names a file that cannot be used");
                None
            }
        };
        RwLock::new(std::env::split_paths(&paths).filter(|p| !p.as_os_str().is_empty()).filter_map(load).collect())
    })
}

/// The kernel from an installed bundle.
pub(crate) fn lookup(arch: &str, spec: &KernelSpec) -> Result<Option<Cubin>> {
    for bundle in installed().read().unwrap_or_else(PoisonError::into_inner).iter() {
        if let Some(cubin) = bundle.get(arch, spec)? {
            return Ok(Some(cubin));
        }
    }
    Ok(None)
}
