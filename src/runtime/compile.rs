//! One kernel to one cubin: sources and headers in memory, exact target, resource figures, budget.

use super::elf::{self, KernelInfo};
use super::nvrtc::Nvrtc;
use super::usage::{stable_log, usage_of, warnings, Usage};
use crate::engines::{KernelSpec, Target};
use crate::{Error, ErrorCode, Result};
use std::sync::Arc;

/// Options that every kernel is compiled with, beside its target and defines. Part of the cache key.
pub(crate) const OPTIONS: [&str; 2] = ["--std=c++17", "--ptxas-options=-v"];

/// A compiled kernel with what is known about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cubin {
    /// ELF image for the driver.
    pub bytes: Vec<u8>,
    /// Exact target, such as `sm_90a`.
    pub arch: String,
    /// Entry point.
    pub entry: String,
    /// The NVRTC that made it: release and library length.
    pub nvrtc: String,
    /// Registers, spills, stack and static shared memory.
    pub usage: Usage,
    /// Parameters and limits as compiled.
    pub info: KernelInfo,
    /// Compiler and assembler warnings, the numbered notes among them.
    pub warnings: Vec<String>,
    /// The whole log, without timings.
    pub log: String,
}

/// What a kernel may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Registers per thread.
    pub registers: u32,
    /// Bytes of spill stores and loads together.
    pub spill_bytes: u32,
    /// Dynamic and static shared memory of a block in bytes.
    pub smem: u32,
    /// Whether warnings pass.
    pub warnings: bool,
}

impl Budget {
    /// The rule for default configurations: no spills, no warnings, and what a block can have on the target.
    pub fn strict(target: &Target) -> Budget {
        let smem = match target {
            Target::Cpu => 0,
            Target::Cuda { smem_optin, .. } => *smem_optin,
        };
        Budget { registers: 255, spill_bytes: 0, smem, warnings: false }
    }
}

impl Cubin {
    /// Assembles the record from an image and its log.
    ///
    /// # Errors
    /// FG6004 when the image lacks the entry point or is no cubin.
    pub(crate) fn new(spec: &KernelSpec, arch: &str, nvrtc: &str, bytes: Vec<u8>, log: &str) -> Result<Cubin> {
        let info = elf::kernel_info(&bytes, spec.entry).ok_or_else(|| {
            Error::new(
                ErrorCode::Nvrtc,
                format!("the cubin of {} bytes has no kernel '{}'", bytes.len(), spec.entry),
                "an extern \"C\" entry point of that name",
            )
            .at(place(spec, arch))
        })?;
        let usage = usage_of(log, spec.entry).unwrap_or(Usage {
            registers: info.registers,
            static_smem: info.static_smem,
            ..Usage::default()
        });
        Ok(Cubin {
            bytes,
            arch: arch.to_owned(),
            entry: spec.entry.to_owned(),
            nvrtc: nvrtc.to_owned(),
            usage,
            info,
            warnings: warnings(log),
            log: stable_log(log),
        })
    }

    /// Initial value of a 32-bit device constant of the image, such as a kernel's own shared-memory total.
    pub fn constant_u32(&self, name: &str) -> Option<u32> {
        elf::constant_u32(&self.bytes, name)
    }

    /// The kernel's instructions as the device reads them; `None` when the image is no well-formed cubin.
    pub fn machine_code(&self) -> Option<&[u8]> {
        elf::machine_code(&self.bytes, &self.entry)
    }

    /// Compares the kernel with a budget; `dynamic_smem` is what the launch adds to the static shared memory.
    ///
    /// # Errors
    /// FG6006 naming every figure above its budget.
    pub fn check(&self, budget: &Budget, dynamic_smem: u32) -> Result<()> {
        let spills = self.usage.spill_stores + self.usage.spill_loads;
        let smem = self.usage.static_smem.saturating_add(dynamic_smem);
        let mut over = Vec::new();
        let mut compare = |what: &str, is: u32, may: u32| {
            if is > may {
                over.push(format!("{what}: {is} of at most {may}"));
            }
        };
        compare("registers", self.usage.registers, budget.registers);
        compare("spilled bytes", spills, budget.spill_bytes);
        compare("shared memory bytes", smem, budget.smem);
        if !budget.warnings {
            over.extend(self.warnings.iter().map(|w| format!("warning: {w}")));
        }
        if over.is_empty() {
            return Ok(());
        }
        Err(Error::new(ErrorCode::KernelBudget, format!("{} figures above the budget", over.len()), "a kernel within its budget")
            .at(format!("{} for {}", self.entry, self.arch))
            .details(over))
    }
}

/// `kernels/<source>:<entry> for <arch>`: how messages name a kernel.
pub(crate) fn place(spec: &KernelSpec, arch: &str) -> String {
    format!("kernels/{}:{} for {arch}", spec.source, spec.entry)
}

/// Compute capability of an exact target: 90 for `sm_90a`.
///
/// # Errors
/// FG6004 for anything but `sm_<number>` with an optional `a` or `f`: virtual targets give empty cubins.
pub fn compute_capability(arch: &str) -> Result<u32> {
    let digits = arch.strip_prefix("sm_").map(|d| d.strip_suffix(['a', 'f']).unwrap_or(d));
    digits.and_then(|d| d.parse().ok()).filter(|cc| (75..=999).contains(cc)).ok_or_else(|| {
        Error::new(ErrorCode::Nvrtc, format!("target '{arch}'"), "a real target such as sm_90a")
            .help("compute_XX targets make no cubin")
    })
}

/// Options of one kernel in order: target, fixed ones, then the defines sorted by name.
pub(crate) fn options(spec: &KernelSpec, arch: &str) -> Vec<String> {
    let mut defines = spec.defines.clone();
    defines.sort_unstable();
    let mut all = vec![format!("--gpu-architecture={arch}")];
    all.extend(OPTIONS.iter().map(|o| (*o).to_owned()));
    all.extend(defines.iter().map(|(name, value)| format!("-D{name}={value}")));
    all
}

/// Compiles with this NVRTC, no cache.
///
/// # Errors
/// FG6004 with the source path, the options and the compiler's log.
pub(crate) fn compile_with(nvrtc: &Nvrtc, spec: &KernelSpec, arch: &str) -> Result<Cubin> {
    let closure = closure(spec, arch)?;
    let Some(root) = closure.iter().find(|s| s.path == spec.source) else { return Err(no_source(spec, arch, "no such source")) };
    let headers: Vec<(&str, &str)> = closure.iter().filter(|s| s.path != spec.source).map(|s| (s.path, s.text)).collect();
    let options = options(spec, arch);
    let start = std::time::Instant::now();
    let (bytes, log) = nvrtc.compile(spec.source, root.text, &headers, &options).map_err(|failure| {
        Error::new(ErrorCode::Nvrtc, format!("NVRTC {}: {}", nvrtc.release(), failure.what), "a kernel that compiles")
            .at(place(spec, arch))
            .help("A kernel of this crate that does not compile is a bug: please report it with these lines")
            .details([format!("options: {}", options.join(" ")), format!("nvrtc: {}", nvrtc.place())])
            .details(stable_log(&failure.log).lines().map(str::to_owned))
    })?;
    tracing::debug!(source = spec.source, entry = spec.entry, arch, ms = start.elapsed().as_millis() as u64, "compiled");
    Cubin::new(spec, arch, &nvrtc.build(), bytes, &log)
}

fn no_source(spec: &KernelSpec, arch: &str, why: &str) -> Error {
    Error::new(ErrorCode::Nvrtc, why.to_owned(), "a source embedded in frostgraph-kernels").at(place(spec, arch))
}

/// The sources of a kernel.
fn closure(spec: &KernelSpec, arch: &str) -> Result<Vec<&'static frostgraph_kernels::Source>> {
    frostgraph_kernels::closure(&[spec.source]).map_err(|e| no_source(spec, arch, &e.to_string()))
}

/// Digest of the sources of a kernel.
///
/// # Errors
/// FG6004 when the source or one of its includes is not embedded.
pub(crate) fn source_digest(spec: &KernelSpec, arch: &str) -> Result<String> {
    frostgraph_kernels::digest(&[spec.source]).map_err(|e| no_source(spec, arch, &e.to_string()))
}

/// The cubin of one kernel for an exact target (`sm_90a`): from a bundle, from the cubin cache, or compiled. Needs no GPU and no driver,
/// and NVRTC only when no bundle has the kernel.
///
/// # Errors
/// FG6002 when no NVRTC serves; FG6004 when the kernel does not compile; FG5003 for a bundle of other kernel sources.
pub fn compile_kernel(arch: &str, spec: &KernelSpec) -> Result<Arc<Cubin>> {
    let cc = compute_capability(arch)?;
    if let Some(cubin) = super::bundle::lookup(arch, spec)? {
        return Ok(Arc::new(cubin));
    }
    super::cubin_cache::CubinCache::global().kernel(&*Nvrtc::get(cc)?, arch, spec)
}
