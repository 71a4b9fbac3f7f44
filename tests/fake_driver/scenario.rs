//! What the child process does, part by part.

use frostgraph::engines::launch::Base;
use frostgraph::engines::{Arg, DType, KernelSpec, Launch, LaunchPlan, Step, Target, TensorMapSpec};
use frostgraph::exec::{Bindings, Stream, Workspace};
use frostgraph::graph::{Graph, GraphOptions, MoeGroupedMatmul, Tensor, TensorId};
use frostgraph::runtime::{CudaDevice, CudaEvent, CudaStream, DeviceBuffer, DeviceRange, Program};
use frostgraph::{Device, ErrorCode};
use std::time::Duration;

const OUT: i64 = 5;
const TENSOR: i64 = 6;

pub fn store(cluster: u32) -> Launch {
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

pub fn spin() -> Launch {
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
pub fn product() -> (Graph, [(TensorId, u64); 4]) {
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
pub fn scenario(mark: &dyn Fn(&str)) {
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
