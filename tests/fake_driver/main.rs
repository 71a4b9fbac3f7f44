//! The runtime's use of the driver, call by call, without a GPU: a child process of this test runs against a stand-in for libcuda
//! (`tests/fake/cuda.c`) that writes down what it is asked.
#![cfg(all(feature = "cuda", target_os = "linux"))]

mod command_line;
mod scenario;

use command_line::command_line;
use frostgraph::runtime::{Bundle, CubinCache, Nvrtc, SearchPath};
use frostgraph::Device;
use scenario::{product, scenario, spin, store};
use std::path::Path;
use std::process::Command;

const TRACE: &str = "FAKE_CUDA_TRACE";

#[test]
#[ignore = "a child process of the test below"]
fn child() {
    let trace = std::env::var_os(TRACE).expect("started by its parent test");
    scenario(&|what| {
        use std::io::Write;
        let mut f = std::fs::File::options().append(true).create(true).open(&trace).unwrap();
        writeln!(f, "# {what}").unwrap();
    });
}

/// The stand-in under both names that cudarc and the probe ask for.
fn build(dir: &Path) -> bool {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake/cuda.c");
    let made = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-Wl,-soname,libcuda.so.1", "-o"])
        .arg(dir.join("libcuda.so.1"))
        .arg(source)
        .status();
    match made {
        Ok(status) => {
            assert!(status.success(), "tests/fake/cuda.c compiles");
            std::os::unix::fs::symlink("libcuda.so.1", dir.join("libcuda.so")).unwrap();
            true
        }
        Err(e) => {
            assert!(std::env::var_os("CI").is_none(), "CI must have a C compiler: {e}");
            eprintln!("SKIPPED, NOT TESTED: no C compiler ({e})");
            false
        }
    }
}

#[test]
fn every_driver_call_is_the_intended_one() {
    let nvrtc = match Nvrtc::find(&SearchPath::from_env(), 90) {
        Ok(nvrtc) => nvrtc,
        Err(e) => {
            assert!(std::env::var_os("CI").is_none(), "CI must have NVRTC: {e}");
            eprintln!("SKIPPED, NOT TESTED: NVRTC is missing.\n{e}");
            return;
        }
    };
    let dir = tempfile::tempdir().unwrap();
    if !build(dir.path()) {
        return;
    }
    // The child is a machine without NVRTC: its kernels come from a bundle.
    let cache = CubinCache::new(None, 0);
    let mut bundle = Bundle::default();
    let of_product = product().0.build(&Device::describe("sm_90").unwrap()).unwrap().best().unwrap().kernels().unwrap();
    for kernel in of_product.iter().chain([&spin().kernel, &store(1).kernel]) {
        bundle.insert(kernel, &cache.kernel(&nvrtc, "sm_90a", kernel).unwrap()).unwrap();
    }
    let bundle_file = dir.path().join("kernels.fgb");
    bundle.save(&bundle_file).unwrap();
    let trace = dir.path().join("trace");
    let out = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "child", "--nocapture"])
        .env("LD_LIBRARY_PATH", dir.path())
        .env("FROSTGRAPH_CACHE_DIR", dir.path().join("cache"))
        .env("FROSTGRAPH_BUNDLE", &bundle_file)
        .env("FROSTGRAPH_NVRTC", dir.path().join("none"))
        .env(TRACE, &trace)
        .output()
        .unwrap();
    let trace = std::fs::read_to_string(trace).unwrap_or_default();
    let (text, more) = (String::from_utf8_lossy(&out.stderr), String::from_utf8_lossy(&out.stdout));
    assert!(out.status.success(), "{}: {text}\n{more}\n{trace}", out.status);
    let part = |name: &str| -> Vec<&str> {
        let rest = trace.split(&format!("# {name}\n")).nth(1).unwrap_or_else(|| panic!("no part {name} in\n{trace}"));
        rest.split("# ").next().unwrap().lines().collect()
    };
    let stream = part("again").iter().find_map(|l| l.split("stream ").nth(1)?.split(' ').next()).unwrap().to_owned();

    command_line(dir.path(), &bundle_file);

    // Loaded once each in the second device's context, shared memory raised once.
    let compile = part("compile");
    assert_eq!(compile.iter().filter(|l| **l == "cuModuleLoadData ELF ctx 0x101").count(), 2, "{compile:?}");
    assert!(compile.contains(&"cuFuncSetAttribute fg_test_store 8 100000"), "{compile:?}");
    assert_eq!(compile.iter().filter(|l| l.starts_with("cuFuncSetAttribute")).count(), 1);
    // A copy out of pageable memory is still under way when its call returns, and a non-blocking stream would not wait for it.
    let copy = compile.iter().position(|l| *l == "cuMemcpyHtoD_v2 256").unwrap();
    assert_eq!(compile[copy + 1], "cuStreamSynchronize (nil)", "{compile:?}");

    // I5: an execution is a context push, encodings, launches, a pop; the second one encodes nothing.
    let launches = [
        format!("cuLaunchKernelEx fg_test_spin grid 6x1x1 block 32 smem 0 stream {stream} ctx 0x101 extra 0"),
        format!(
            "cuLaunchKernelEx fg_test_store grid 6x1x1 block 32 smem 100000 stream {stream} ctx 0x101 extra 0 cluster 2x1x1 pdl 1 map 1 out 1 \
             values -3 -5000000000 0.5 (nil)"
        ),
    ];
    let encode = "cuTensorMapEncodeTiled type 9 rank 4 dim 64 100 stride 256 box 64 32 swizzle 3 aligned 1";
    let (push, pop) = ("cuCtxPushCurrent_v2 0x101", "cuCtxPopCurrent_v2 0x101");
    assert_eq!(part("execute"), [push, encode, launches[0].as_str(), &launches[1], pop]);
    assert_eq!(part("again"), [push, launches[0].as_str(), &launches[1], pop]);
    // Resolving writes nothing: the recorded launches are replayed as they were.
    let bare = part("bare");
    assert_eq!(bare.iter().filter(|l| launches.iter().any(|x| x == *l)).count(), 4, "{bare:?}");

    let capture = part("capture");
    assert_eq!(capture[1], format!("cuStreamBeginCapture_v2 {stream} mode 1"));
    assert_eq!(capture[2..4], launches);
    assert!(capture.contains(&format!("cuGraphLaunch {stream}").as_str()));

    // One execution that is not counted and three that are, each between two events.
    let tune: Vec<&str> = part("tune")
        .into_iter()
        .filter(|l| ["cuEventRecord", "cuLaunchKernelEx", "cuEventSynchronize"].iter().any(|c| l.starts_with(c)))
        .collect();
    let shape: String = tune
        .iter()
        .map(|l| {
            if l.contains("Record") {
                'r'
            } else if l.contains("Launch") {
                'l'
            } else {
                's'
            }
        })
        .collect();
    assert_eq!(shape, "rlrs".repeat(4), "{tune:?}");
    assert!(tune[1].contains("fg_moe_main") && tune[1].contains(&format!("stream {stream}")), "{tune:?}");

    // Destructors relax the capture mode around each call and give it back (report 133), in the right context, and go on after a failure.
    let drops = part("drop");
    let at = drops.iter().position(|l| *l == "cuModuleUnload ctx 0x101").unwrap();
    assert_eq!(drops[at - 1], "cuThreadExchangeStreamCaptureMode 2");
    assert_eq!(drops[at + 1], "cuThreadExchangeStreamCaptureMode 0");
    assert_eq!(drops.iter().filter(|l| l.starts_with("cuMemFree_v2 ctx 0x101")).count(), 3, "{drops:?}");
    assert_eq!(drops.iter().filter(|l| l.starts_with("cuModuleUnload")).count(), 2);
    assert!(drops.contains(&"cuDevicePrimaryCtxRelease_v2 1"), "{drops:?}");
    assert!(!dir.path().join("cache").exists(), "nothing was compiled");
    // Whatever was pushed was popped.
    let count = |what: &str| trace.lines().filter(|l| l.starts_with(what)).count();
    assert_eq!(count("cuCtxPushCurrent_v2"), count("cuCtxPopCurrent_v2"));
}
