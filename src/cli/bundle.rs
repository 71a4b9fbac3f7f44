//! `frostgraph compile` and `frostgraph cache`: what needs the CUDA part of the build, though neither needs a GPU.

use super::choose::ChoiceArgs;
use super::report::Report;
use frostgraph::Result;
use std::path::PathBuf;

/// Options of `compile`.
#[derive(Debug, Clone, clap::Args)]
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "parsed, then refused"))]
pub struct CompileArgs {
    /// Graph file, as for `plans`.
    graph: PathBuf,
    /// Architectures, separated by commas, such as sm_90a,sm_120a.
    #[arg(long, value_delimiter = ',', required = true)]
    arch: Vec<String>,
    #[command(flatten)]
    choice: ChoiceArgs,
    /// Write the kernels of all architectures to this bundle; a program finds them there through FROSTGRAPH_BUNDLE.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Refuse keys that the file format does not define.
    #[arg(long)]
    strict: bool,
    /// Offer opt-in engines, as FROSTGRAPH_ENABLE_FROST_ENGINES=1 does.
    #[arg(long)]
    opt_in: bool,
}

/// Options of `cache`.
#[derive(Debug, Clone, clap::Args)]
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "parsed, then refused"))]
pub struct CacheArgs {
    /// What to do.
    #[arg(value_enum, default_value_t = CacheVerb::List)]
    verb: CacheVerb,
}

/// What to do with the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum CacheVerb {
    /// Show every entry.
    List,
    /// Check every entry and remove the unusable ones.
    Verify,
    /// Remove every entry.
    Clear,
}

#[cfg(not(feature = "cuda"))]
mod verbs {
    use super::{CacheArgs, CompileArgs, Report, Result};
    use frostgraph::{Error, ErrorCode};

    fn refuse(verb: &str) -> Error {
        Error::new(ErrorCode::NoCudaFeature, format!("`{verb}` in a build without CUDA"), "a build with the feature `cuda`")
    }

    pub fn compile(_args: &CompileArgs) -> Result<Report> {
        Err(refuse("compile"))
    }

    pub fn cache(_args: &CacheArgs) -> Result<Report> {
        Err(refuse("cache"))
    }
}

#[cfg(feature = "cuda")]
mod verbs {
    use super::super::load::GraphArgs;
    use super::super::{plans, progress, text};
    use super::{CacheArgs, CacheVerb, CompileArgs, Report, Result};
    use frostgraph::engines::Target;
    use frostgraph::runtime::cubin_cache::Entry;
    use frostgraph::runtime::{compile_kernel, Bundle, CubinCache};
    use frostgraph::tensor_file::check_writable;
    use frostgraph::{Error, ErrorCode};
    use serde_json::{json, Value};
    use std::collections::BTreeSet;
    use std::fmt::Write;

    pub fn compile(args: &CompileArgs) -> Result<Report> {
        if let Some(path) = &args.out {
            check_writable(path)?;
        }
        let (mut bundle, mut rows, mut list) = (Bundle::default(), Vec::new(), Vec::new());
        let (mut notes, mut seen) = (Vec::new(), BTreeSet::new());
        for arch in &args.arch {
            let graph = GraphArgs { graph: args.graph.clone(), device: arch.clone(), strict: args.strict, opt_in: args.opt_in };
            let source = graph.read()?;
            let built = graph.build(&source)?;
            let Target::Cuda { cc, .. } = built.device().target else {
                return Err(Error::new(
                    ErrorCode::BadDevice,
                    format!("architecture '{arch}'"),
                    "a CUDA architecture such as sm_90a",
                ));
            };
            let target = Target::nvrtc_arch(cc);
            if !seen.insert(target.clone()) {
                continue;
            }
            let plan = args.choice.choose(&built)?;
            notes = plans::notes(&source);
            let kernels = plan.kernels()?;
            let bar = progress::bar(kernels.len() as u64, &target);
            for spec in &kernels {
                let cubin = compile_kernel(&target, spec)?;
                bundle.insert(spec, &cubin)?;
                let u = &cubin.usage;
                let defines: Vec<String> = spec.defines.iter().map(|(k, v)| format!("{k}={v}")).collect();
                rows.push(vec![
                    target.clone(),
                    spec.entry.to_string(),
                    u.registers.to_string(),
                    (u.spill_stores + u.spill_loads).to_string(),
                    u.static_smem.to_string(),
                    cubin.bytes.len().to_string(),
                ]);
                list.push(json!({
                    "arch": target, "source": spec.source, "entry": spec.entry, "defines": defines, "nvrtc": cubin.nvrtc,
                    "registers": u.registers, "spill_stores": u.spill_stores, "spill_loads": u.spill_loads, "stack": u.stack,
                    "static_shared": u.static_smem, "bytes": cubin.bytes.len(), "warnings": cubin.warnings,
                }));
                bar.inc(1);
            }
            bar.finish_and_clear();
        }
        let mut human = String::new();
        text::table(&mut human, "", &["arch", "kernel", "registers", "spill bytes", "static shared", "bytes"], &rows);
        if let Some(path) = &args.out {
            bundle.save(path)?;
            let _ = writeln!(human, "wrote {}", path.display());
        }
        let json = json!({ "kernels": list, "bundle": args.out.as_ref().map(|p| p.display().to_string()) });
        Ok(Report { notes, ..Report::success(human, json) })
    }

    pub fn cache(args: &CacheArgs) -> Result<Report> {
        let cache = CubinCache::global();
        let (kept, removed) = match args.verb {
            CacheVerb::List => (cache.list()?, Vec::new()),
            CacheVerb::Verify => cache.verify()?,
            CacheVerb::Clear => (Vec::new(), cache.clear()?),
        };
        let dir = cache.dir().map_or("no folder: kernels are kept in memory only".into(), |d| d.display().to_string());
        let total: u64 = kept.iter().map(|e| e.bytes).sum();
        let mut human = format!("{dir}\n");
        let row = |e: &Entry| {
            let what = match &e.contents {
                Ok(h) => format!("{} (NVRTC {})", h.kernel, h.nvrtc),
                Err(why) => format!("unusable: {why}"),
            };
            vec![e.file.clone(), e.bytes.to_string(), what]
        };
        if !kept.is_empty() {
            text::table(&mut human, "  ", &["file", "bytes", "kernel"], &kept.iter().map(row).collect::<Vec<_>>());
        }
        let _ = writeln!(human, "{}, {total} of at most {} bytes", entries(kept.len()), cache.max_bytes());
        if args.verb != CacheVerb::List {
            let _ = writeln!(human, "removed {}", entries(removed.len()));
        }
        let list = |v: &[Entry]| {
            v.iter()
                .map(|e| {
                    json!({
                        "file": e.file, "bytes": e.bytes,
                        "kernel": e.contents.as_ref().ok().map(|h| h.kernel.clone()),
                        "unusable": e.contents.as_ref().err(),
                    })
                })
                .collect::<Vec<Value>>()
        };
        let json = json!({
            "dir": cache.dir().map(|d| d.display().to_string()),
            "bytes": total, "max_bytes": cache.max_bytes(), "entries": list(&kept), "removed": list(&removed),
        });
        Ok(Report::success(human, json))
    }

    fn entries(n: usize) -> String {
        if n == 1 {
            "1 entry".into()
        } else {
            format!("{n} entries")
        }
    }
}

pub use verbs::{cache, compile};
