//! The CUDA C++ sources of frostgraph, embedded as text. No dependencies, no build step: NVRTC compiles them at run time.
//!
//! Sources include each other by path from this folder (`#include "common/ptx.cuh"`) and nothing from outside it (I10).
#![forbid(unsafe_code)]

pub mod closure;
pub mod sha256;

pub use closure::{closure, digest, ClosureError};

/// One embedded source file: its path below `kernels/` (the spelling used by `#include`) and its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    /// Path below `kernels/`, with forward slashes.
    pub path: &'static str,
    /// The whole text.
    pub text: &'static str,
}

macro_rules! sources {
    ($($path:literal,)*) => { &[$(Source { path: $path, text: include_str!($path) },)*] };
}

/// Every embedded source, ordered by path. A new `.cu` or `.cuh` file gets a line here; a test compares the list with the folder.
pub static SOURCES: &[Source] = sources![
    "common/cp_async.cuh",
    "common/hopper.cuh",
    "common/mma_tile.cuh",
    "common/nvfp4.cuh",
    "common/ptx.cuh",
    "common/wgmma.cuh",
    "grouped_gemm/epilogue/columns.cuh",
    "grouped_gemm/epilogue/config.cuh",
    "grouped_gemm/epilogue/rows.cuh",
    "grouped_gemm/epilogue/srelu.cuh",
    "grouped_gemm/epilogue/values.cuh",
    "grouped_gemm/mma/config.cuh",
    "grouped_gemm/mma/load.cuh",
    "grouped_gemm/mma/main.cu",
    "grouped_gemm/mma/math.cuh",
    "grouped_gemm/mma/scaled_mma.cuh",
    "grouped_gemm/mma/table.cu",
    "grouped_gemm/sm90/config.cuh",
    "grouped_gemm/sm90/dequant.cuh",
    "grouped_gemm/sm90/epilogue.cuh",
    "grouped_gemm/sm90/expand.cuh",
    "grouped_gemm/sm90/expand_role.cuh",
    "grouped_gemm/sm90/expert_map.cuh",
    "grouped_gemm/sm90/finish.cu",
    "grouped_gemm/sm90/k_major.cuh",
    "grouped_gemm/sm90/main.cu",
    "grouped_gemm/sm90/main_config.cuh",
    "grouped_gemm/sm90/math.cuh",
    "grouped_gemm/sm90/n_major.cuh",
    "grouped_gemm/sm90/pair/config.cuh",
    "grouped_gemm/sm90/pair/copy.cuh",
    "grouped_gemm/sm90/pair/epilogue.cuh",
    "grouped_gemm/sm90/pair/expand_role.cuh",
    "grouped_gemm/sm90/pair/main.cu",
    "grouped_gemm/sm90/pair/math.cuh",
    "grouped_gemm/sm90/pair/schedule.cuh",
    "grouped_gemm/sm90/params.cuh",
    "grouped_gemm/sm90/prep.cu",
    "grouped_gemm/sm90/ring.cuh",
    "grouped_gemm/sm90/roles.cuh",
    "grouped_gemm/table.cuh",
    "grouped_gemm/weights.cuh",
    "moe/sm90/config.cuh",
    "moe/sm90/expand.cu",
    "moe/sm90/main.cu",
    "moe/sm90/status.cu",
    "qat/bwd/mma/main.cu",
    "qat/bwd/mma/p_fake.cuh",
    "qat/bwd/mma/prep.cu",
    "qat/bwd/sm90/main.cu",
    "qat/bwd/sm90/p_fake.cuh",
    "qat/fwd/blocks.cuh",
    "qat/fwd/mma/fake_p.cuh",
    "qat/fwd/mma/quantize.cu",
    "qat/fwd/mma/quantized_pv.cu",
    "qat/fwd/sm90/quantized_pv.cu",
    "qat/fwd/sm90/walk.cuh",
    "sdpa/bwd/mma/chain.cuh",
    "sdpa/bwd/mma/cvt.cu",
    "sdpa/bwd/mma/dbias_cvt.cu",
    "sdpa/bwd/mma/dot.cu",
    "sdpa/bwd/mma/dq2k.cu",
    "sdpa/bwd/mma/dsink.cu",
    "sdpa/bwd/mma/main.cu",
    "sdpa/bwd/mma/main_config.cuh",
    "sdpa/bwd/mma/main_load.cuh",
    "sdpa/bwd/mma/main_mask.cuh",
    "sdpa/bwd/mma/main_math.cuh",
    "sdpa/bwd/mma/main_ops.cuh",
    "sdpa/bwd/mma/main_store.cuh",
    "sdpa/bwd/mma/reduce.cu",
    "sdpa/bwd/mma/zero.cu",
    "sdpa/bwd/sm90/ahead.cuh",
    "sdpa/bwd/sm90/bias.cuh",
    "sdpa/bwd/sm90/config.cuh",
    "sdpa/bwd/sm90/cvt_t.cu",
    "sdpa/bwd/sm90/items.cuh",
    "sdpa/bwd/sm90/late.cuh",
    "sdpa/bwd/sm90/load.cuh",
    "sdpa/bwd/sm90/main.cu",
    "sdpa/bwd/sm90/math.cuh",
    "sdpa/bwd/sm90/pair.cuh",
    "sdpa/bwd/sm90/pieces.cuh",
    "sdpa/bwd/sm90/rows.cuh",
    "sdpa/bwd/sm90/stats.cuh",
    "sdpa/bwd/sm90/store.cuh",
    "sdpa/bwd/sm90/turns.cuh",
    "sdpa/bwd/sm90/wide.cuh",
    "sdpa/fwd/mma/combine.cu",
    "sdpa/fwd/mma/decode.cu",
    "sdpa/fwd/mma/decode_config.cuh",
    "sdpa/fwd/mma/decode_load.cuh",
    "sdpa/fwd/mma/decode_math.cuh",
    "sdpa/fwd/mma/geometry.cuh",
    "sdpa/fwd/mma/prefill.cu",
    "sdpa/fwd/mma/prefill_config.cuh",
    "sdpa/fwd/mma/prefill_math.cuh",
    "sdpa/fwd/mma/prefill_store.cuh",
    "sdpa/fwd/mma/softmax.cuh",
    "sdpa/fwd/sm90/bias.cuh",
    "sdpa/fwd/sm90/bias_tile.cuh",
    "sdpa/fwd/sm90/cluster.cuh",
    "sdpa/fwd/sm90/config.cuh",
    "sdpa/fwd/sm90/frame.cuh",
    "sdpa/fwd/sm90/load.cuh",
    "sdpa/fwd/sm90/math.cuh",
    "sdpa/fwd/sm90/prefill.cu",
    "sdpa/fwd/sm90/softmax.cuh",
    "sdpa/fwd/sm90/split.cuh",
    "sdpa/fwd/sm90/store.cuh",
    "test/nvfp4.cu",
    "test/spin.cu",
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn on_disk(dir: &Path, below: &str, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(dir).expect("the kernels folder is readable") {
            let path = entry.expect("a directory entry").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            let full = if below.is_empty() { name } else { format!("{below}/{name}") };
            if path.is_dir() {
                on_disk(&path, &full, found);
            } else if full.ends_with(".cu") || full.ends_with(".cuh") {
                found.push(full);
            }
        }
    }

    #[test]
    fn the_list_is_the_folder() {
        let mut found = Vec::new();
        on_disk(Path::new(env!("CARGO_MANIFEST_DIR")), "", &mut found);
        found.sort();
        let listed: Vec<&str> = SOURCES.iter().map(|s| s.path).collect();
        let lines: Vec<String> = found.iter().map(|p| format!("    \"{p}\",")).collect();
        assert_eq!(listed, found, "sources![] in kernels/lib.rs must be\n{}", lines.join("\n"));
    }
}
