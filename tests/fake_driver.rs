//! The runtime's use of the driver, call by call, without a GPU: a child process of this test runs against a stand-in for libcuda
//! (`tests/fake/cuda.c`) that writes down what it is asked.
#![cfg(all(feature = "cuda", target_os = "linux"))]

use frostgraph::engines::launch::Base;
use frostgraph::engines::{Arg, DType, KernelSpec, Launch, LaunchPlan, Step, Target, TensorMapSpec};
use frostgraph::exec::{Bindings, Stream, Workspace};
use frostgraph::graph::{Graph, GraphOptions, MoeGroupedMatmul, Tensor, TensorId};
use frostgraph::runtime::{
    Bundle, CubinCache, CudaDevice, CudaEvent, CudaStream, DeviceBuffer, DeviceRange, Nvrtc, Program, SearchPath,
};
use frostgraph::{Device, ErrorCode};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const OUT: i64 = 5;
const TENSOR: i64 = 6;

fn store(cluster: u32) -> Launch {
    let map = TensorMapSpec {
        base: Base::Tensor(TENSOR),
        dtype: DType::BF16,
        dim: vec![Some(64), Some(100), Some(2), Some(1)],
        stride_bytes: vec![256, 128, 1024],
        tile: vec![64, 32, 1, 1],
        swizzle: 128,
    };
    Launch {
        name: "store",
        kernel: KernelSpec { source: "test/spin.cu", entry: "fg_test_store", defines: Vec::new() },
        grid: [6, 1, 1],
        cluster: [cluster, 1, 1],
        block: [32, 1, 1],
        smem: 100_000,
        pdl: true,
        args: vec![Arg::Map(map), Arg::Ptr(Base::Tensor(OUT)), Arg::I32(-3), Arg::I64(-5_000_000_000), Arg::F32(0.5), Arg::Null],
        names: vec!["map", "out", "a", "b", "c", "null"],
    }
}

fn spin() -> Launch {
    let kernel = KernelSpec { source: "test/spin.cu", entry: "fg_test_spin", defines: Vec::new() };
    Launch { name: "spin", kernel, pdl: false, smem: 0, args: vec![Arg::I64(1)], names: vec!["ns"], ..store(1) }
}

fn plan() -> LaunchPlan {
    let mut plan = LaunchPlan::default();
    plan.region("scratch", 1000);
    plan.steps = vec![Step::Kernel(spin()), Step::Kernel(store(2))];
    plan
}

/// A graph with one CUDA plan of one kernel, and its bound tensors with their bytes.
fn product() -> (Graph, [(TensorId, u64); 4]) {
    let mut g = Graph::new(GraphOptions::default());
    let token = g.tensor(Tensor::new("token", [1, 64, 32]));
    let weight = g.tensor(Tensor::new("weight", [2, 32, 16]).strides([512, 1, 32]));
    let offsets = g.tensor(Tensor::new("offsets", [3, 1, 1]).dtype(DType::I32));
    let out = g.moe_grouped_matmul(token, weight, offsets, MoeGroupedMatmul::default()).unwrap().output;
    g.output(out).unwrap();
    (g, [(token, 64 * 32 * 2), (weight, 2 * 512 * 2), (offsets, 12), (out, 64 * 16 * 2)])
}

/// Tuning on the caller's stream and buffers: the fake driver's events are always 1.5 ms apart.
fn tuning(stream: &CudaStream) {
    let (graph, operands) = product();
    let built = graph.build(&Device::cuda(1).unwrap()).unwrap();
    let device = CudaDevice::open(1).unwrap();
    let buffers: Vec<DeviceBuffer> = operands.iter().map(|(_, n)| DeviceBuffer::new(&device, *n).unwrap()).collect();
    let scratch = DeviceBuffer::new(&device, built.tune_workspace_bytes().max(1)).unwrap();
    let mut bindings = Bindings::new();
    for ((id, n), b) in operands.iter().zip(&buffers) {
        bindings.device(built.uid(*id).unwrap(), b.range().address, *n);
    }
    let mut workspace = Workspace::device(scratch.range().address, scratch.bytes());
    let tuned = built.tune(&Stream::cuda(stream.raw()), &mut bindings, &mut workspace, Duration::ZERO).unwrap();
    assert_eq!((tuned.best().to_string().as_str(), tuned.timings.len()), ("moe_grouped_matmul_sm90", built.plan_count()));
    assert_eq!(tuned.timings[0].times, [Duration::from_micros(1500); 3]);
}

/// What the child does; each `mark` splits the trace.
fn scenario(mark: &dyn Fn(&str)) {
    assert_eq!(CudaDevice::count().unwrap(), 2);
    assert_eq!(CudaDevice::open(2).unwrap_err().code, ErrorCode::BadDevice);
    assert_eq!(Device::detect().unwrap().ordinal, Some(0));
    let devices = [CudaDevice::open(0).unwrap(), CudaDevice::open(1).unwrap()];
    let expected = Target::Cuda { cc: 90, sm_count: 132, smem_optin: 232_448, l2_bytes: 60 << 20, total_memory: 1 << 37 };
    assert_eq!(devices[1].target(), &expected);
    assert_eq!(
        (devices[1].name(), devices[1].arch().as_str(), devices[1].driver_version().as_str()),
        ("Fake 1", "sm_90a", "13.0")
    );
    let stream = CudaStream::new(&devices[1]).unwrap();
    mark("compile");
    let program = Program::compile(&devices[1], &[&plan()]).unwrap().label("demo[TILE=1]");
    let out = DeviceBuffer::from_slice(&devices[1], &[7u64; 32]).unwrap();
    let tensor = DeviceBuffer::new(&devices[1], 256 * 100).unwrap();
    let scratch = DeviceBuffer::new(&devices[1], program.workspace_bytes()).unwrap();
    let operand = |uid| match uid {
        OUT => Some(out.range()),
        TENSOR => Some(tensor.range()),
        _ => None,
    };
    mark("execute");
    program.execute(stream.raw(), &operand, scratch.range()).unwrap();
    mark("again");
    program.execute(stream.raw(), &operand, scratch.range()).unwrap();
    mark("bare");
    program.bare(&operand, scratch.range()).unwrap().launch(stream.raw(), 2).unwrap();
    mark("capture");
    let graph = stream.capture(|| program.execute(stream.raw(), &operand, scratch.range())).unwrap();
    graph.launch(&stream).unwrap();
    mark("events");
    let (a, b) = (CudaEvent::new(&devices[1]).unwrap(), CudaEvent::new(&devices[1]).unwrap());
    a.record(&stream).unwrap();
    stream.wait(&a).unwrap();
    assert_eq!(b.ms_since(&a).unwrap(), 1.5);
    let mut bytes = [0; 8];
    out.read(8, &mut bytes).unwrap();
    assert_eq!(u64::from_ne_bytes(bytes), 7);
    assert_eq!(out.read(256, &mut bytes).unwrap_err().code, ErrorCode::BufferSize);
    mark("tune");
    tuning(&stream);
    mark("fail");
    std::env::set_var("FAKE_CUDA_FAIL", "cuLaunchKernelEx");
    let e = program.execute(stream.raw(), &operand, scratch.range()).unwrap_err();
    assert_eq!(
        e.to_string(),
        "FG6003 at plan demo[TILE=1], launch spin (fg_test_spin): cuLaunchKernelEx failed: CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory \
         access was encountered); expected CUDA_SUCCESS. An earlier kernel of this process faulted and the context is lost: run the program \
         under compute-sanitizer"
    );
    mark("drop");
    // Destructors whose calls fail must not panic (report 146).
    std::env::set_var("FAKE_CUDA_FAIL", "cuModuleUnload");
    drop((graph, program, out, tensor, scratch, a, b, stream));
    drop(devices);
    assert_eq!(DeviceRange::default().bytes, 0);
}

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

/// The program on the same stand-in: tunes, saves, replays, writes; and what a fault looks like there.
fn command_line(dir: &Path, bundle: &Path) {
    let Some(program) = option_env!("CARGO_BIN_EXE_frostgraph") else { return };
    let file = |name: &str| dir.join(name).display().to_string();
    let (graph, record, outputs) = (file("g.json"), file("record.json"), file("o.safetensors"));
    std::fs::write(&graph, product().0.to_json().unwrap()).unwrap();
    let run = |args: &[&str], fail: &str| {
        let out = Command::new(program)
            .args(args)
            .args(["--device", "cuda:1"])
            .env("LD_LIBRARY_PATH", dir)
            .env("FROSTGRAPH_CACHE_DIR", dir.join("cache"))
            .env("FROSTGRAPH_BUNDLE", bundle)
            .env("FROSTGRAPH_NVRTC", dir.join("none"))
            .env(TRACE, dir.join("trace-program"))
            .env("FAKE_CUDA_FAIL", fail)
            .output()
            .unwrap();
        let text = [out.stdout, out.stderr].map(|b| String::from_utf8(b).unwrap());
        (out.status.code(), text[0].clone(), text[1].clone())
    };
    let (code, out, err) = run(&["tune", &graph, "--seconds", "0.001", "--save", &record], "");
    assert!(code == Some(0) && out.contains("fastest moe_grouped_matmul_sm90\n"), "{out}{err}");
    assert!(out.contains("moe_grouped_matmul_sm90      1.500     1.500"), "{out}");
    assert_eq!(std::fs::read_to_string(&record).unwrap().matches("21000").count(), 1);
    let (code, out, err) = run(&["run", &graph, "--record", &record, "--outputs", &outputs], "");
    assert!(code == Some(0) && out.contains("chosen moe_grouped_matmul_sm90\ntime 1.500 ms"), "{out}{err}");
    assert!(std::fs::metadata(&outputs).unwrap().len() > 64 * 16 * 2);
    // The stand-in computes nothing: the check must see it.
    let (code, out, _) = run(&["run", &graph, "--check"], "");
    assert!(code == Some(1) && out.contains("FAILED"), "{out}");
    for call in
        ["cuMemAlloc_v2", "cuMemcpyHtoD_v2", "cuLaunchKernelEx", "cuEventSynchronize", "cuMemcpyDtoH_v2", "cuModuleLoadData"]
    {
        let (code, _, err) = run(&["run", &graph], call);
        assert!(code == Some(6) && err.starts_with("error: FG6003"), "{call}: {err}");
    }
    let (code, _, err) = run(&["tune", &graph, "--seconds", "0.001"], "cuLaunchKernelEx");
    assert!(code == Some(6) && err.contains("plan moe_grouped_matmul_sm90, launch main"), "{err}");
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
