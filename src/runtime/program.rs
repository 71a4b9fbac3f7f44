//! A chain of launches on one device: kernels compiled and loaded, ready to be queued.

use super::chain::{check_launch, Chain, Shape, Sink};
use super::compile::{compile_kernel, place, Cubin};
use super::driver::{check, relaxed, swallow};
use super::tensor_map::{self, MapRequest, TensorMap};
use super::{CudaDevice, DeviceRange};
use crate::engines::{KernelSpec, LaunchPlan, Step, Uid};
use crate::{Error, ErrorCode, Result};
use cudarc::driver::sys;
use std::ffi::{c_void, CString};
use std::sync::Arc;

/// A loaded cubin.
#[derive(Debug)]
struct Module {
    device: CudaDevice,
    raw: sys::CUmodule,
    function: sys::CUfunction,
}

// SAFETY: opaque names; the driver synchronises their use by several threads.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    fn load(device: &CudaDevice, cubin: &Cubin, smem: u32, wide_cluster: bool) -> Result<Module> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: a whole ELF image (magic and section bounds were checked when it was made) and a live out-pointer.
        check("cuModuleLoadData", unsafe { sys::cuModuleLoadData(&mut raw, cubin.bytes.as_ptr().cast()) })
            .map_err(|e| e.details([format!("driver for CUDA {}, cubin by NVRTC {}", device.driver_version(), cubin.nvrtc)]))?;
        // From here on dropping unloads.
        let mut module = Module { device: device.clone(), raw, function: std::ptr::null_mut() };
        let name = CString::new(cubin.entry.as_str()).unwrap_or_default();
        // SAFETY: a loaded module, a NUL-terminated name and a live out-pointer.
        check("cuModuleGetFunction", unsafe { sys::cuModuleGetFunction(&mut module.function, raw, name.as_ptr()) })?;
        let set = |attribute, value: u32| {
            // SAFETY: a function of a loaded module.
            check("cuFuncSetAttribute", unsafe { sys::cuFuncSetAttribute(module.function, attribute, value as i32) })
        };
        if smem > 0 {
            set(sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, smem)?;
        }
        if wide_cluster {
            set(sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)?;
        }
        let mut local = 0;
        let which = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES;
        // SAFETY: a function of a loaded module and a live out-pointer. Asking also makes a lazily loading driver load the code now,
        // which a stream capture must not be the first to do (field report 136).
        check("cuFuncGetAttribute", unsafe { sys::cuFuncGetAttribute(&mut local, which, module.function) })?;
        tracing::debug!(entry = cubin.entry, local, registers = cubin.usage.registers, "loaded");
        Ok(module)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        relaxed(self.device.context(), || {
            // SAFETY: loaded once, unloaded once.
            swallow("cuModuleUnload", unsafe { sys::cuModuleUnload(self.raw) });
        });
    }
}

/// The fixed part of one launch in the driver's form.
struct Config {
    function: sys::CUfunction,
    shape: Shape,
    attributes: [sys::CUlaunchAttribute; 2],
    attribute_count: u32,
    place: String,
}

fn attributes(shape: &Shape) -> ([sys::CUlaunchAttribute; 2], u32) {
    let empty = sys::CUlaunchAttribute {
        id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_IGNORE,
        pad: [0; 4],
        value: sys::CUlaunchAttributeValue { pad: [0; 64] },
    };
    let (mut list, mut n) = ([empty; 2], 0);
    if shape.cluster != [1, 1, 1] {
        let [x, y, z] = shape.cluster;
        list[n].id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        list[n].value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x, y, z };
        n += 1;
    }
    if shape.pdl {
        list[n].id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        list[n].value.programmaticStreamSerializationAllowed = 1;
        n += 1;
    }
    (list, n as u32)
}

/// Compiled and loaded plans. Holds no buffers; drop it when its work is done.
pub struct Program {
    device: CudaDevice,
    label: String,
    chain: Chain,
    cubins: Vec<Arc<Cubin>>,
    configs: Vec<Config>,
    // After the configs, whose functions belong to the modules.
    _modules: Vec<Module>,
}

// SAFETY: the raw handles in `configs` are opaque names that belong to `_modules`; the driver synchronises their use, and the
// attributes are never written after construction.
unsafe impl Send for Program {}
// SAFETY: as above.
unsafe impl Sync for Program {}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Program({}, {} launches on device {})", self.label, self.configs.len(), self.device.ordinal())
    }
}

/// Compiles distinct kernels on as many threads as the machine has cores; results in the order given, the first error wins.
pub(crate) fn compile_all(arch: &str, specs: &[KernelSpec]) -> Result<Vec<Arc<Cubin>>> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(specs.len()).max(1);
    let next = std::sync::atomic::AtomicUsize::new(0);
    let slots: Vec<std::sync::OnceLock<Result<Arc<Cubin>>>> = specs.iter().map(|_| std::sync::OnceLock::new()).collect();
    let work = || loop {
        let i = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let Some(spec) = specs.get(i) else { return };
        slots[i].get_or_init(|| compile_kernel(arch, spec));
    };
    std::thread::scope(|s| {
        for _ in 1..threads {
            s.spawn(work);
        }
        work();
    });
    slots
        .into_iter()
        .map(|s| s.into_inner().unwrap_or_else(|| Err(Error::new(ErrorCode::Nvrtc, "a compiler thread stopped", "a cubin"))))
        .collect()
}

impl Program {
    /// Compiles the plans' kernels (bundles first, then the cubin cache, then NVRTC), in parallel, loads them, and prepares their launches.
    /// The plans run one after the other; their region offsets count from the start of the workspace that `execute` is given.
    ///
    /// # Errors
    /// FG6002 without NVRTC, FG6004 when a kernel does not compile, FG6006 when a launch does not fit its kernel or the device, FG6003
    /// when the driver refuses a cubin.
    pub fn compile(device: &CudaDevice, plans: &[&LaunchPlan]) -> Result<Program> {
        let chain = Chain::new(plans)?;
        let arch = device.arch();
        let cubins = compile_all(&arch, &chain.kernels)?;
        let launches = plans.iter().flat_map(|p| &p.steps).filter_map(|s| match s {
            Step::Kernel(l) => Some(l),
            Step::Host(_) => None,
        });
        for (launch, shape) in launches.zip(chain.shapes()) {
            check_launch(launch, &cubins[shape.kernel], device.target())?;
        }
        let _current = device.enter()?;
        let mut modules = Vec::new();
        for (k, cubin) in cubins.iter().enumerate() {
            let users = || chain.shapes().filter(|s| s.kernel == k);
            let smem = users().map(|s| s.smem).max().unwrap_or(0);
            let wide = users().any(|s| s.cluster.iter().product::<u32>() > 8);
            modules.push(Module::load(device, cubin, smem, wide).map_err(|e| e.at(place(&chain.kernels[k], &arch)))?);
        }
        let configs = chain
            .shapes()
            .map(|shape| {
                let (attributes, attribute_count) = attributes(shape);
                let place = format!("launch {} ({})", shape.name, chain.kernels[shape.kernel].entry);
                Config { function: modules[shape.kernel].function, shape: shape.clone(), attributes, attribute_count, place }
            })
            .collect();
        Ok(Program { device: device.clone(), label: String::new(), chain, cubins, configs, _modules: modules })
    }

    /// Names the plan in errors.
    #[must_use]
    pub fn label(mut self, plan: impl Into<String>) -> Program {
        self.label = plan.into();
        self
    }

    /// The device.
    pub fn device(&self) -> &CudaDevice {
        &self.device
    }

    /// Bytes of workspace that an execution needs, base aligned to 128.
    pub fn workspace_bytes(&self) -> u64 {
        self.chain.workspace_bytes()
    }

    /// Uids whose addresses an execution asks for.
    pub fn operands(&self) -> &[Uid] {
        self.chain.operands()
    }

    /// Launches of one execution.
    pub fn launches(&self) -> usize {
        self.configs.len()
    }

    /// The distinct kernels, in order of first use.
    pub fn cubins(&self) -> &[Arc<Cubin>] {
        &self.cubins
    }

    pub(crate) fn chain(&self) -> &Chain {
        &self.chain
    }

    pub(crate) fn driver(&self, stream: u64) -> Driver<'_> {
        Driver { configs: &self.configs, stream: stream as sys::CUstream, label: &self.label }
    }

    /// Compiled sizes of a launch's parameters.
    pub(crate) fn parameter_sizes(&self, index: usize) -> impl Iterator<Item = u32> + '_ {
        self.cubins[self.configs[index].shape.kernel].info.params.iter().map(|p| p.size)
    }

    /// Queues the chain on `stream` (a `CUstream` as an address; 0 is the legacy default stream) and returns. Allocates nothing, never
    /// synchronises, can be captured; several threads may execute one program with different buffers and workspaces.
    ///
    /// `operand` gives the device memory of a tensor. Memory and stream must stay alive until the queued work is done, and belong to
    /// this program's device: neither can be checked from an address.
    ///
    /// # Errors
    /// FG4001 for a missing operand, FG4002 to FG4005 for ranges that cannot serve, FG6003 naming the call, the plan and the kernel.
    pub fn execute(&self, stream: u64, operand: &dyn Fn(Uid) -> Option<DeviceRange>, workspace: DeviceRange) -> Result<()> {
        let _current = self.device.enter()?;
        self.chain.run(
            &Driver { configs: &self.configs, stream: stream as sys::CUstream, label: &self.label },
            operand,
            workspace,
        )
    }
}

pub(crate) struct Driver<'a> {
    configs: &'a [Config],
    stream: sys::CUstream,
    label: &'a str,
}

impl Driver<'_> {
    /// Names the plan and the place in it: after a fault every driver call fails, and the caller must see whose it was.
    fn at(&self, e: Error, place: &str) -> Error {
        let plan = if self.label.is_empty() { String::new() } else { format!("plan {}, ", self.label) };
        e.at(format!("{plan}{place}"))
    }

    /// One launch, its status as the driver gives it.
    pub(crate) fn raw_launch(&self, index: usize, params: &mut [*mut c_void]) -> sys::CUresult {
        let config = &self.configs[index];
        let Shape { grid, block, smem, .. } = config.shape;
        let launch = sys::CUlaunchConfig {
            gridDimX: grid[0],
            gridDimY: grid[1],
            gridDimZ: grid[2],
            blockDimX: block[0],
            blockDimY: block[1],
            blockDimZ: block[2],
            sharedMemBytes: smem,
            hStream: self.stream,
            attrs: config.attributes.as_ptr().cast_mut(),
            numAttrs: config.attribute_count,
        };
        // SAFETY: the function is loaded in the current context; as many parameters as it was compiled with, of the same sizes
        // (`check_launch`), point to live values; the attributes are only read.
        unsafe { sys::cuLaunchKernelEx(&launch, config.function, params.as_mut_ptr(), std::ptr::null_mut()) }
    }
}

impl Sink for Driver<'_> {
    fn encode(&self, request: &MapRequest) -> Result<TensorMap> {
        tensor_map::encode(request).map_err(|e| self.at(e, "a tensor map"))
    }

    fn launch(&self, index: usize, params: &mut [*mut c_void]) -> Result<()> {
        check("cuLaunchKernelEx", self.raw_launch(index, params)).map_err(|e| self.at(e, &self.configs[index].place))
    }
}
