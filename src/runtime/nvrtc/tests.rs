use super::*;
use crate::runtime::elf::{constant_u32, kernel_info};
use crate::runtime::test_util::nvrtc_or_skip;
use crate::runtime::usage::usage_of;

const KERNEL: &str = r#"
    #include "common/scale.cuh"
    struct __attribute__((aligned(64))) Map { unsigned long long w[16]; };
    extern "C" __device__ int k_smem = 1234;
    extern "C" __global__ void __launch_bounds__(256, 1)
    k(const __grid_constant__ Map m, const float* a, float* b, int n, long long z, float s) {
        __shared__ float part[100];
        part[threadIdx.x % 100] = scale(a[threadIdx.x]) + (float)m.w[1];
        __syncthreads();
        b[threadIdx.x] = part[n % 100] * s + (float)z;
    }
    extern "C" __global__ void other(float* b) { b[0] = FACTOR; }
"#;
const HEADERS: [(&str, &str); 1] = [("common/scale.cuh", "__device__ inline float scale(float x) { return x * FACTOR; }")];

fn options(arch: &str) -> Vec<String> {
    [&format!("--gpu-architecture={arch}"), "--std=c++17", "--ptxas-options=-v", "-DFACTOR=3"]
        .map(|s: &str| s.to_owned())
        .to_vec()
}

/// No toolkit, no headers on disk: two kernels of one source, an in-memory header, every target this project names.
#[test]
fn compiles_to_cubins_for_every_target() {
    for cc in [80, 90, 100, 103, 110, 120, 121] {
        let Some(nvrtc) = nvrtc_or_skip(cc) else { return };
        let (bytes, log) = nvrtc.compile("t/k.cu", KERNEL, &HEADERS, &options(&crate::engines::Target::nvrtc_arch(cc))).unwrap();
        let info = kernel_info(&bytes, "k").unwrap();
        let sizes: Vec<u32> = info.params.iter().map(|p| p.size).collect();
        assert_eq!(sizes, [128, 8, 8, 4, 8, 4], "sm_{cc}");
        assert_eq!(info.max_threads, Some(256), "sm_{cc}");
        assert_eq!(kernel_info(&bytes, "other").unwrap().params.len(), 1);
        assert_eq!(constant_u32(&bytes, "k_smem"), Some(1234), "sm_{cc}");
        let usage = usage_of(&log, "k").unwrap_or_else(|| panic!("sm_{cc}: {log}"));
        assert_eq!((usage.registers, usage.static_smem), (info.registers, info.static_smem), "sm_{cc}: {log}");
        assert_eq!((usage.static_smem, usage.spill_stores), (400, 0), "sm_{cc}");
    }
}

/// Found by bare name because it is loaded already, from a folder that the loader does not search: the builtins must still be found.
#[test]
fn a_copy_loaded_by_someone_else_finds_its_builtins() {
    let Some(_loaded) = nvrtc_or_skip(90) else { return };
    let by_name = SearchPath { loader: true, ..SearchPath::default() };
    let nvrtc = Nvrtc::find(&by_name, 90).unwrap();
    assert!(nvrtc.place().ends_with("(system loader)"), "{nvrtc:?}");
    nvrtc.compile("t/k.cu", KERNEL, &HEADERS, &options("sm_90a")).unwrap();
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    let Some(nvrtc) = nvrtc_or_skip(90) else { return };
    let make = || nvrtc.compile("t/k.cu", KERNEL, &HEADERS, &options("sm_90a")).unwrap().0;
    assert_eq!(make(), make());
}

/// A virtual target reports success and gives nothing; that must not reach the driver.
#[test]
fn an_empty_cubin_is_a_failure() {
    let Some(nvrtc) = nvrtc_or_skip(90) else { return };
    let failure = nvrtc.compile("t/k.cu", KERNEL, &HEADERS, &options("compute_90a")).unwrap_err();
    assert!(failure.what.contains("no cubin"), "{failure:?}");
}

#[test]
fn failures_carry_the_log_with_the_source_name() {
    let Some(nvrtc) = nvrtc_or_skip(90) else { return };
    let failure = nvrtc.compile("t/k.cu", "\nint x = ;", &[], &options("sm_90a")).unwrap_err();
    assert!(failure.log.contains("t/k.cu(2): error"), "{failure:?}");
    assert_eq!(failure.what, "NVRTC_ERROR_COMPILATION");
    assert!(nvrtc.compile("t/k.cu", "a\0b", &[], &[]).unwrap_err().what.contains("NUL"));
}

#[test]
fn threads_compile_at_once() {
    let Some(nvrtc) = nvrtc_or_skip(90) else { return };
    let first = nvrtc.compile("t/k.cu", KERNEL, &HEADERS, &options("sm_90a")).unwrap().0;
    std::thread::scope(|s| {
        for _ in 0..8 {
            s.spawn(|| assert_eq!(nvrtc.compile("t/k.cu", KERNEL, &HEADERS, &options("sm_90a")).unwrap().0, first));
        }
    });
}

/// Report 143: nothing installed is an error with the places and the command, never a panic.
#[test]
fn nothing_found_says_where_and_how_143() {
    let dir = tempfile::tempdir().unwrap();
    let broken = dir.path().join("lib64/libnvrtc.so.13");
    std::fs::create_dir_all(broken.parent().unwrap()).unwrap();
    std::fs::write(&broken, b"not a library").unwrap();
    let path = SearchPath { toolkits: vec![dir.path().to_path_buf(), "/no/toolkit".into()], ..SearchPath::default() };
    let e = Nvrtc::find(&path, 90).unwrap_err();
    assert_eq!(e.code, ErrorCode::CudaLibrary);
    let text = e.to_string();
    assert!(text.contains("lib64/libnvrtc.so.13: cannot be loaded"), "{text}");
    assert!(text.contains("/no/toolkit/lib64: no such folder"), "{text}");
    assert!(text.contains("python3 -m pip install nvidia-cuda-nvrtc==13.0.88"), "{text}");

    let wrong = SearchPath { nvrtc_override: Some("/no/such/libnvrtc.so".into()), loader: true, ..SearchPath::default() };
    let text = Nvrtc::find(&wrong, 90).unwrap_err().to_string();
    assert!(text.starts_with("FG6002: FROSTGRAPH_NVRTC=/no/such/libnvrtc.so gives no usable libnvrtc"), "{text}");
    assert!(text.contains("/no/such/libnvrtc.so: no such file"), "{text}");
}

#[test]
fn a_target_that_nvrtc_lacks_is_named() {
    let Some(nvrtc) = nvrtc_or_skip(90) else { return };
    let text = Nvrtc::find(&SearchPath::from_env(), 42).unwrap_err().to_string();
    assert!(text.contains(&format!("release {} cannot target sm_42", nvrtc.release())), "{text}");
}
