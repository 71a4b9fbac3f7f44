//! A chain of launches with everything that can be prepared prepared: what is left for `execute` is addresses (I5).
//!
//! Nothing here knows the driver; a `Sink` encodes maps and launches. Tests put a recorder there.

use super::compile::Cubin;
use super::tensor_map::{MapRequest, TensorMap};
use super::DeviceRange;
use crate::engines::launch::{Base, WORKSPACE_ALIGN};
use crate::engines::{Arg, KernelSpec, Launch, LaunchPlan, Step, Target, Uid};
use crate::{Error, ErrorCode, Result};
use std::ffi::c_void;
use std::sync::Mutex;

/// Most parameters of one kernel.
const MAX_ARGS: usize = 96;
/// Most tensor maps of one kernel.
const MAX_MAPS: usize = 12;
/// Most distinct operands of one chain.
const MAX_OPERANDS: usize = 64;

/// What a chain needs of the driver.
pub(crate) trait Sink {
    /// Makes a tensor map.
    fn encode(&self, request: &MapRequest) -> Result<TensorMap>;
    /// Queues launch `index`. `params` points to one value a parameter, all alive during the call.
    fn launch(&self, index: usize, params: &mut [*mut c_void]) -> Result<()>;
}

/// Where one parameter's value comes from at execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// A value fixed at compile time: index into `values`.
    Value(usize),
    /// Address of an operand.
    Operand(usize),
    /// Address in the workspace.
    Workspace(u64),
    /// Index into the chain's maps.
    Map(usize),
    /// 128 zero bytes.
    NoMap,
}

/// The shape of one launch, as the driver wants it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Name in the plan.
    pub name: &'static str,
    /// Index into the chain's kernels.
    pub kernel: usize,
    pub grid: [u32; 3],
    pub cluster: [u32; 3],
    pub block: [u32; 3],
    pub smem: u32,
    pub pdl: bool,
}

#[derive(Debug)]
struct Prepared {
    shape: Shape,
    params: Vec<Source>,
}

#[derive(Debug, Clone, Copy)]
struct PreparedMap {
    request: MapRequest,
    base: MapBase,
}

#[derive(Debug, Clone, Copy)]
enum MapBase {
    Operand(usize),
    /// Offset and bytes in the workspace.
    Workspace(u64, u64),
}

/// Maps of the last binding. A repeated execution with the same buffers encodes nothing.
#[derive(Debug)]
struct LastMaps {
    bound: Option<([DeviceRange; MAX_OPERANDS], u64)>,
    maps: Vec<TensorMap>,
}

/// Prepared launches of one or more plans, in order.
#[derive(Debug)]
pub(crate) struct Chain {
    /// Distinct kernels.
    pub kernels: Vec<KernelSpec>,
    launches: Vec<Prepared>,
    values: Vec<u64>,
    maps: Vec<PreparedMap>,
    operands: Vec<Uid>,
    workspace_bytes: u64,
    /// First and one past the last workspace byte that regions cover.
    scratch: (u64, u64),
    last: Mutex<LastMaps>,
}

static NO_MAP: TensorMap = TensorMap { opaque: [0; 16] };

fn bug(launch: &str, given: String, expected: &str) -> Error {
    Error::new(ErrorCode::KernelBudget, given, expected.to_owned()).at(format!("launch {launch}"))
}

fn limits(launch: &Launch) -> Result<()> {
    let [x, y, z] = launch.grid;
    let product = |e: [u32; 3]| e.iter().map(|&n| u64::from(n)).product::<u64>();
    if x == 0 || y == 0 || z == 0 || x > i32::MAX as u32 || y > 65_535 || z > 65_535 {
        return Err(bug(launch.name, format!("a grid of {x}x{y}x{z}"), "1 to 2^31 - 1 along x, 1 to 65535 along y and z"));
    }
    if product(launch.block) == 0 || product(launch.block) > 1024 {
        return Err(bug(launch.name, format!("a block of {:?}", launch.block), "1 to 1024 threads"));
    }
    let fits = (0..3).all(|i| launch.cluster[i] > 0 && launch.grid[i].is_multiple_of(launch.cluster[i]));
    if !fits || product(launch.cluster) > 16 {
        let given = format!("a cluster of {:?} for a grid of {:?}", launch.cluster, launch.grid);
        return Err(bug(launch.name, given, "at most 16 blocks that divide the grid"));
    }
    if launch.args.len() > MAX_ARGS || launch.args.iter().filter(|a| matches!(a, Arg::Map(_))).count() > MAX_MAPS {
        let given = format!("{} parameters", launch.args.len());
        return Err(bug(launch.name, given, &format!("at most {MAX_ARGS} parameters, {MAX_MAPS} of them maps")));
    }
    Ok(())
}

/// Bytes of a parameter.
fn size_of(arg: &Arg) -> u32 {
    match arg {
        Arg::Ptr(_) | Arg::Null | Arg::I64(_) => 8,
        Arg::I32(_) | Arg::F32(_) => 4,
        Arg::Map(_) | Arg::NoMap => 128,
    }
}

/// Compares a launch with the kernel that was really compiled: parameter list, block, shared memory.
///
/// # Errors
/// FG6006 naming the launch and the first difference.
pub fn check_launch(launch: &Launch, cubin: &Cubin, target: &Target) -> Result<()> {
    limits(launch)?;
    let have: Vec<u32> = launch.args.iter().map(size_of).collect();
    let want: Vec<u32> = cubin.info.params.iter().map(|p| p.size).collect();
    if have != want {
        let at = have.iter().zip(&want).position(|(a, b)| a != b).unwrap_or(have.len().min(want.len()));
        let name = launch.names.get(at).copied().unwrap_or("");
        let size = |s: &[u32]| s.get(at).map_or("none".into(), |n| format!("{n} bytes"));
        let given = format!("{} parameters, number {at} '{name}' of {}", have.len(), size(&have));
        return Err(bug(launch.name, given, &format!("{} parameters as compiled, number {at} of {}", want.len(), size(&want))));
    }
    let threads: u32 = launch.block.iter().product();
    if cubin.info.max_threads.is_some_and(|max| threads > max) {
        let given = format!("{threads} threads");
        return Err(bug(launch.name, given, &format!("at most {} by its launch bounds", cubin.info.max_threads.unwrap_or(0))));
    }
    let Target::Cuda { smem_optin, .. } = target else { return Ok(()) };
    let smem = launch.smem.saturating_add(cubin.info.static_smem);
    if smem > *smem_optin {
        return Err(bug(
            launch.name,
            format!("{smem} bytes of shared memory"),
            &format!("at most {smem_optin} on {}", target.name()),
        ));
    }
    Ok(())
}

impl Chain {
    /// Prepares the launches of these plans in order.
    ///
    /// # Errors
    /// FG6006 for launches beyond the hardware's limits, FG4003 for maps that TMA does not serve, FG3006 for a host step.
    pub(crate) fn new(plans: &[&LaunchPlan]) -> Result<Chain> {
        let mut c = Chain {
            kernels: Vec::new(),
            launches: Vec::new(),
            values: Vec::new(),
            maps: Vec::new(),
            operands: Vec::new(),
            workspace_bytes: plans.iter().map(|p| p.workspace_bytes).max().unwrap_or(0),
            scratch: (0, 0),
            last: Mutex::new(LastMaps { bound: None, maps: Vec::new() }),
        };
        for plan in plans {
            for r in &plan.regions {
                let end = r.offset.checked_add(r.bytes).filter(|&end| end <= plan.workspace_bytes).ok_or_else(|| {
                    bug(r.name, format!("region at {} of {} bytes", r.offset, r.bytes), "a region inside the workspace")
                })?;
                let (low, high) = c.scratch;
                c.scratch = if high == 0 { (r.offset, end) } else { (low.min(r.offset), high.max(end)) };
            }
            for step in &plan.steps {
                match step {
                    Step::Kernel(launch) => c.add(plan, launch)?,
                    Step::Host(host) => {
                        let given = format!("host step '{}'", host.name);
                        return Err(Error::new(ErrorCode::BadDevice, given, "kernel launches alone on a CUDA device"));
                    }
                }
            }
        }
        if c.operands.len() > MAX_OPERANDS {
            let given = format!("{} operands", c.operands.len());
            return Err(bug("", given, &format!("at most {MAX_OPERANDS} operands in one chain")));
        }
        c.last = Mutex::new(LastMaps { bound: None, maps: vec![NO_MAP; c.maps.len()] });
        Ok(c)
    }

    fn add(&mut self, plan: &LaunchPlan, launch: &Launch) -> Result<()> {
        limits(launch)?;
        let kernel = self.kernels.iter().position(|k| *k == launch.kernel).unwrap_or_else(|| {
            self.kernels.push(launch.kernel.clone());
            self.kernels.len() - 1
        });
        let mut params = Vec::with_capacity(launch.args.len());
        for arg in &launch.args {
            params.push(match arg {
                Arg::Ptr(Base::Tensor(uid)) => Source::Operand(self.operand(*uid)),
                Arg::Ptr(Base::Region(i)) => Source::Workspace(region(plan, *i, launch)?.0),
                Arg::Null => self.value(0),
                Arg::I32(v) => self.value(u64::from(*v as u32)),
                Arg::I64(v) => self.value(*v as u64),
                Arg::F32(v) => self.value(u64::from(v.to_bits())),
                Arg::NoMap => Source::NoMap,
                Arg::Map(spec) => {
                    let request = MapRequest::new(spec).map_err(|e| e.at(format!("launch {}", launch.name)))?;
                    let base = match spec.base {
                        Base::Tensor(uid) => MapBase::Operand(self.operand(uid)),
                        Base::Region(i) => {
                            let (offset, bytes) = region(plan, i, launch)?;
                            MapBase::Workspace(offset, bytes)
                        }
                    };
                    self.maps.push(PreparedMap { request, base });
                    Source::Map(self.maps.len() - 1)
                }
            });
        }
        let Launch { name, grid, cluster, block, smem, pdl, .. } = *launch;
        self.launches.push(Prepared { shape: Shape { name, kernel, grid, cluster, block, smem, pdl }, params });
        Ok(())
    }

    fn operand(&mut self, uid: Uid) -> usize {
        self.operands.iter().position(|u| *u == uid).unwrap_or_else(|| {
            self.operands.push(uid);
            self.operands.len() - 1
        })
    }

    /// Parameters are little-endian on every CUDA host, so a 32-bit value is the first half of its slot.
    fn value(&mut self, bits: u64) -> Source {
        self.values.push(bits.to_le());
        Source::Value(self.values.len() - 1)
    }

    /// Shapes of the launches in order.
    pub(crate) fn shapes(&self) -> impl Iterator<Item = &Shape> {
        self.launches.iter().map(|l| &l.shape)
    }

    /// Distinct operands that an execution reads or writes, in order of first use.
    pub(crate) fn operands(&self) -> &[Uid] {
        &self.operands
    }

    pub(crate) fn workspace_bytes(&self) -> u64 {
        self.workspace_bytes
    }

    fn check(&self, bound: &[DeviceRange], workspace: DeviceRange) -> Result<()> {
        let need = self.workspace_bytes;
        let complain = |given: String| {
            let expected = format!("{need} bytes, base aligned to {WORKSPACE_ALIGN}");
            Err(Error::new(ErrorCode::Workspace, given, expected))
        };
        if need == 0 {
            return Ok(());
        }
        if workspace.address == 0 || workspace.bytes < need {
            return complain(format!("a workspace of {} bytes", if workspace.address == 0 { 0 } else { workspace.bytes }));
        }
        let off = workspace.address % WORKSPACE_ALIGN;
        if off != 0 {
            return complain(format!("a workspace whose base is {off} past a multiple of {WORKSPACE_ALIGN}"));
        }
        let (low, high) = self.scratch;
        let scratch = DeviceRange { address: workspace.address + low, bytes: high - low };
        match bound.iter().zip(&self.operands).find(|(r, _)| r.overlaps(scratch)) {
            Some((_, uid)) => {
                let given = format!("a workspace that shares memory with uid {uid}");
                Err(Error::new(ErrorCode::BufferOverlap, given, "a workspace apart from every operand"))
            }
            None => Ok(()),
        }
    }

    fn request(&self, map: &PreparedMap, bound: &[DeviceRange], workspace: u64) -> Result<MapRequest> {
        let range = match map.base {
            MapBase::Operand(i) => bound[i],
            MapBase::Workspace(offset, bytes) => DeviceRange { address: workspace + offset, bytes },
        };
        map.request.bind(range).map_err(|e| match map.base {
            MapBase::Operand(i) => e.at(format!("uid {}", self.operands[i])),
            MapBase::Workspace(..) => e.at("workspace"),
        })
    }

    /// Queues every launch. Allocates nothing, waits for nothing, reads nothing back; several threads may run one chain at once.
    ///
    /// # Errors
    /// FG4001 for a missing or null operand, FG4002 to FG4005 for ranges that cannot serve, and what the sink reports. Launches that
    /// came before a failing one stay queued.
    pub(crate) fn run<S: Sink>(
        &self,
        sink: &S,
        operand: &dyn Fn(Uid) -> Option<DeviceRange>,
        workspace: DeviceRange,
    ) -> Result<()> {
        let mut ranges = [DeviceRange::default(); MAX_OPERANDS];
        for (slot, &uid) in ranges.iter_mut().zip(&self.operands) {
            *slot = operand(uid).filter(|r| r.address != 0).ok_or_else(|| {
                Error::new(ErrorCode::MissingBinding, "no device memory", "a device address").at(format!("uid {uid}"))
            })?;
        }
        let bound = &ranges[..self.operands.len()];
        self.check(bound, workspace)?;

        // One thread at a time keeps the last maps; another one that runs meanwhile encodes its own.
        let mut guard = self.last.try_lock().ok();
        if let Some(last) = guard.as_deref_mut() {
            if last.bound != Some((ranges, workspace.address)) {
                last.bound = None;
                for (slot, map) in last.maps.iter_mut().zip(&self.maps) {
                    *slot = sink.encode(&self.request(map, bound, workspace.address)?)?;
                }
                last.bound = Some((ranges, workspace.address));
            }
        }
        let kept = guard.as_deref().map(|last| last.maps.as_slice());
        let mut own = if kept.is_none() { Some([NO_MAP; MAX_MAPS]) } else { None };
        let mut addresses = [0u64; MAX_ARGS];
        let mut params = [std::ptr::null_mut::<c_void>(); MAX_ARGS];
        for (index, launch) in self.launches.iter().enumerate() {
            let mut own_used = 0;
            for (i, source) in launch.params.iter().enumerate() {
                // The driver only reads through these pointers, whatever their type says.
                params[i] = match *source {
                    Source::Value(v) => std::ptr::from_ref(&self.values[v]).cast_mut().cast(),
                    Source::NoMap => std::ptr::from_ref(&NO_MAP).cast_mut().cast(),
                    Source::Operand(o) => {
                        addresses[i] = bound[o].address;
                        std::ptr::null_mut()
                    }
                    Source::Workspace(offset) => {
                        addresses[i] = workspace.address + offset;
                        std::ptr::null_mut()
                    }
                    Source::Map(m) => match (kept, &mut own) {
                        (None, Some(own)) => {
                            own[own_used] = sink.encode(&self.request(&self.maps[m], bound, workspace.address)?)?;
                            own_used += 1;
                            std::ptr::null_mut()
                        }
                        (Some(maps), _) => std::ptr::from_ref(&maps[m]).cast_mut().cast(),
                        (None, None) => std::ptr::null_mut(),
                    },
                };
            }
            // Pointers into the local arrays are taken after the last write to them.
            let mut fresh = own.iter().flatten();
            for (i, source) in launch.params.iter().enumerate() {
                match source {
                    Source::Operand(_) | Source::Workspace(_) => params[i] = std::ptr::from_ref(&addresses[i]).cast_mut().cast(),
                    Source::Map(_) => {
                        if let Some(map) = fresh.next() {
                            params[i] = std::ptr::from_ref(map).cast_mut().cast();
                        }
                    }
                    Source::Value(_) | Source::NoMap => {}
                }
            }
            sink.launch(index, &mut params[..launch.params.len()])?;
        }
        Ok(())
    }
}

fn region(plan: &LaunchPlan, index: usize, launch: &Launch) -> Result<(u64, u64)> {
    let found = plan.regions.get(index).map(|r| (r.offset, r.bytes));
    found.ok_or_else(|| bug(launch.name, format!("workspace region {index}"), "a region of the plan"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::{DType, TensorMapSpec};
    use crate::runtime::compile::Cubin;
    use crate::runtime::test_util::{allocations, image, spec};
    use std::cell::RefCell;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Stands in for the driver: copies every parameter by its size, as the driver does during the call.
    #[derive(Default)]
    struct Recorder {
        sizes: Vec<Vec<u32>>,
        encoded: AtomicUsize,
        calls: RefCell<Vec<(usize, Vec<Vec<u8>>)>>,
        fail_at: Option<usize>,
    }

    impl Sink for Recorder {
        fn encode(&self, request: &MapRequest) -> Result<TensorMap> {
            self.encoded.fetch_add(1, Ordering::SeqCst);
            let mut map = NO_MAP;
            (map.opaque[0], map.opaque[1]) = (request.address, request.dim[1]);
            Ok(map)
        }

        fn launch(&self, index: usize, params: &mut [*mut c_void]) -> Result<()> {
            if self.fail_at == Some(index) {
                return Err(Error::new(ErrorCode::CudaDriver, "failed", "CUDA_SUCCESS"));
            }
            assert_eq!(params.len(), self.sizes[index].len());
            let bytes = |(p, &n): (&*mut c_void, &u32)| {
                // SAFETY: the chain promises as many readable bytes as the parameter is wide.
                unsafe { std::slice::from_raw_parts(p.cast::<u8>(), n as usize) }.to_vec()
            };
            self.calls.borrow_mut().push((index, params.iter().zip(&self.sizes[index]).map(bytes).collect()));
            Ok(())
        }
    }

    fn map(base: Base, tokens: Option<u64>) -> Arg {
        Arg::Map(TensorMapSpec {
            base,
            dtype: DType::BF16,
            dim: vec![Some(64), tokens, Some(2), Some(1)],
            stride_bytes: vec![256, 128, 1024],
            tile: vec![64, 64, 1, 1],
            swizzle: 128,
        })
    }

    fn launch(name: &'static str, args: Vec<Arg>) -> Launch {
        Launch {
            name,
            kernel: spec(name),
            grid: [7, 1, 1],
            cluster: [1, 1, 1],
            block: [256, 1, 1],
            smem: 1024,
            pdl: true,
            names: vec![""; args.len()],
            args,
        }
    }

    /// Three launches: every kind of parameter, two regions, an operand used twice, an open map.
    fn plan() -> LaunchPlan {
        let mut plan = LaunchPlan::default();
        let delta = plan.region("delta", 1000).unwrap();
        let accum = plan.region("dq_accum", 4096).unwrap();
        plan.steps = vec![
            Step::Kernel(launch("dot", vec![Arg::Ptr(Base::Tensor(10)), Arg::Ptr(Base::Region(delta)), Arg::Null, Arg::I32(-2)])),
            Step::Kernel(launch(
                "main",
                vec![
                    map(Base::Tensor(11), None),
                    Arg::NoMap,
                    map(Base::Region(accum), Some(16)),
                    Arg::I64(-5_000_000_000),
                    Arg::F32(0.125),
                    Arg::Ptr(Base::Tensor(10)),
                ],
            )),
            Step::Kernel(launch("cvt", vec![Arg::Ptr(Base::Region(accum)), Arg::Ptr(Base::Tensor(12))])),
        ];
        plan
    }

    fn recorder(plan: &LaunchPlan) -> Recorder {
        let sizes = plan.steps.iter().map(|s| match s {
            Step::Kernel(l) => l.args.iter().map(size_of).collect(),
            Step::Host(_) => Vec::new(),
        });
        Recorder { sizes: sizes.collect(), ..Recorder::default() }
    }

    fn range(address: u64, bytes: u64) -> DeviceRange {
        DeviceRange { address, bytes }
    }

    fn operand(uid: Uid) -> Option<DeviceRange> {
        (10..=12).contains(&uid).then(|| range(uid as u64 * 0x10_0000, 256 * 100))
    }

    const WORKSPACE: DeviceRange = DeviceRange { address: 0x9000_0000, bytes: 1 << 20 };

    fn word(bytes: &[u8]) -> u64 {
        u64::from_le_bytes(bytes[..8].try_into().unwrap())
    }

    #[test]
    fn every_parameter_arrives_in_order_with_its_value() {
        let plan = plan();
        let chain = Chain::new(&[&plan]).unwrap();
        assert_eq!(chain.operands(), [10, 11, 12]);
        assert_eq!(chain.workspace_bytes(), 1024 + 4096);
        let sink = recorder(&plan);
        chain.run(&sink, &operand, WORKSPACE).unwrap();
        let calls = sink.calls.into_inner();
        assert_eq!(calls.iter().map(|c| c.0).collect::<Vec<_>>(), [0, 1, 2]);
        let dot = &calls[0].1;
        assert_eq!((word(&dot[0]), word(&dot[1]), word(&dot[2])), (0xa0_0000, 0x9000_0000, 0));
        assert_eq!(dot[3], (-2i32).to_le_bytes());
        let main = &calls[1].1;
        assert_eq!((word(&main[0]), word(&main[0][8..])), (0xb0_0000, 100), "the open axis follows the bound bytes");
        assert_eq!(main[1], [0; 128]);
        assert_eq!(word(&main[2]), 0x9000_0000 + 1024);
        assert_eq!(main[3], (-5_000_000_000i64).to_le_bytes());
        assert_eq!(main[4], 0.125f32.to_le_bytes());
        assert_eq!(word(&main[5]), 0xa0_0000);
        assert_eq!((word(&calls[2].1[0]), word(&calls[2].1[1])), (0x9000_0400, 0xc0_0000));
    }

    /// I5: nothing is allocated, whether maps are encoded anew or kept.
    #[test]
    fn execute_allocates_nothing_i5() {
        struct Null;
        impl Sink for Null {
            fn encode(&self, _: &MapRequest) -> Result<TensorMap> {
                Ok(NO_MAP)
            }
            fn launch(&self, _: usize, params: &mut [*mut c_void]) -> Result<()> {
                assert!(params.iter().all(|p| !p.is_null()));
                Ok(())
            }
        }
        let plan = plan();
        let chain = Chain::new(&[&plan]).unwrap();
        let before = allocations();
        for round in 0..10u64 {
            let moved = |uid| operand(uid).map(|r| range(r.address + 4096 * (round / 2), r.bytes));
            chain.run(&Null, &moved, WORKSPACE).unwrap();
        }
        assert_eq!(allocations() - before, 0);
        let held = chain.last.lock().unwrap();
        let before = allocations();
        chain.run(&Null, &operand, WORKSPACE).unwrap();
        assert_eq!(allocations() - before, 0, "beside a thread that holds the kept maps");
        drop(held);
    }

    #[test]
    fn maps_are_encoded_again_only_for_other_buffers() {
        let plan = plan();
        let chain = Chain::new(&[&plan]).unwrap();
        let sink = recorder(&plan);
        let run = |uids: &dyn Fn(Uid) -> Option<DeviceRange>, workspace| {
            let before = sink.encoded.load(Ordering::SeqCst);
            chain.run(&sink, uids, workspace).unwrap();
            sink.encoded.load(Ordering::SeqCst) - before
        };
        assert_eq!(run(&operand, WORKSPACE), 2);
        assert_eq!(run(&operand, WORKSPACE), 0);
        let longer = |uid| operand(uid).map(|r| range(r.address, r.bytes + if uid == 11 { 256 } else { 0 }));
        assert_eq!(run(&longer, WORKSPACE), 2, "the bound length decides the open extent");
        assert_eq!(run(&longer, range(WORKSPACE.address + 128, WORKSPACE.bytes - 128)), 2);
        assert_eq!(run(&operand, WORKSPACE), 2);
    }

    /// I5: two threads with different buffers never see each other's addresses.
    #[test]
    fn threads_do_not_mix_their_buffers_i5() {
        let plan = plan();
        let chain = Chain::new(&[&plan]).unwrap();
        std::thread::scope(|s| {
            for t in 0..4u64 {
                let (plan, chain) = (&plan, &chain);
                s.spawn(move || {
                    for _ in 0..200 {
                        let sink = recorder(plan);
                        let mine = |uid| operand(uid).map(|r| range(r.address + t * 0x1000_0000, r.bytes));
                        let workspace = range(WORKSPACE.address + t * 0x1000_0000, WORKSPACE.bytes);
                        chain.run(&sink, &mine, workspace).unwrap();
                        let calls = sink.calls.into_inner();
                        let expected = [0xb0_0000 + t * 0x1000_0000, workspace.address + 1024, 0xa0_0000 + t * 0x1000_0000];
                        assert_eq!([0, 2, 5].map(|i| word(&calls[1].1[i])), expected);
                    }
                });
            }
        });
    }

    /// Report 125: the workspace is checked against this chain's own need.
    #[test]
    fn workspace_faults_are_named_125() {
        let plan = plan();
        let chain = Chain::new(&[&plan]).unwrap();
        let need = chain.workspace_bytes();
        let run = |workspace| chain.run(&recorder(&plan), &operand, workspace).map_err(|e| (e.code, e.given.clone()));
        assert_eq!(run(range(WORKSPACE.address, need)), Ok(()));
        let short = run(range(WORKSPACE.address, need - 1)).unwrap_err();
        assert_eq!(short, (ErrorCode::Workspace, format!("a workspace of {} bytes", need - 1)));
        assert_eq!(run(DeviceRange::default()).unwrap_err().1, "a workspace of 0 bytes");
        assert_eq!(run(range(WORKSPACE.address + 1, need)).unwrap_err().1, "a workspace whose base is 1 past a multiple of 128");
        let over = run(range(0xb0_0000, need)).unwrap_err();
        assert_eq!(over, (ErrorCode::BufferOverlap, "a workspace that shares memory with uid 11".into()));
        // A chain without regions takes anything.
        let bare =
            LaunchPlan { steps: vec![Step::Kernel(launch("k", vec![Arg::Ptr(Base::Tensor(10))]))], ..LaunchPlan::default() };
        Chain::new(&[&bare]).unwrap().run(&recorder(&bare), &operand, DeviceRange::default()).unwrap();
    }

    #[test]
    fn operand_faults_are_named() {
        let plan = plan();
        let chain = Chain::new(&[&plan]).unwrap();
        let run = |f: &dyn Fn(Uid) -> Option<DeviceRange>| chain.run(&recorder(&plan), f, WORKSPACE).unwrap_err();
        let e = run(&|uid| operand(uid).filter(|_| uid != 12));
        assert_eq!((e.code, e.at.as_str()), (ErrorCode::MissingBinding, "uid 12"));
        let e = run(&|uid| if uid == 11 { Some(range(0, 100)) } else { operand(uid) });
        assert_eq!((e.code, e.at.as_str()), (ErrorCode::MissingBinding, "uid 11"));
        let e = run(&|uid| operand(uid).map(|r| range(r.address + 8, r.bytes)));
        assert_eq!((e.code, e.at.as_str()), (ErrorCode::BufferAlignment, "uid 11"));
        // A failed binding is not kept: the next good one works.
        chain.run(&recorder(&plan), &operand, WORKSPACE).unwrap();
    }

    #[test]
    fn a_failing_launch_stops_the_chain() {
        let plan = plan();
        let sink = Recorder { fail_at: Some(1), ..recorder(&plan) };
        let e = Chain::new(&[&plan]).unwrap().run(&sink, &operand, WORKSPACE).unwrap_err();
        assert_eq!((e.code, sink.calls.into_inner().len()), (ErrorCode::CudaDriver, 1));
    }

    /// Report 28 and the hardware's limits: refused when the chain is made, with the launch's name.
    #[test]
    fn launches_beyond_the_limits_are_refused_28() {
        let bad = |edit: fn(&mut Launch)| {
            let mut l = launch("main", vec![]);
            edit(&mut l);
            let plan = LaunchPlan { steps: vec![Step::Kernel(l)], ..LaunchPlan::default() };
            Chain::new(&[&plan]).unwrap_err().to_string()
        };
        assert!(bad(|l| l.grid = [1, 65_536, 1]).contains("launch main: a grid of 1x65536x1"));
        assert!(bad(|l| l.grid = [0, 1, 1]).contains("a grid of 0x1x1"));
        assert!(bad(|l| l.grid = [1 << 31, 1, 1]).contains("a grid of 2147483648x1x1"));
        assert!(bad(|l| l.block = [1025, 1, 1]).contains("a block of [1025, 1, 1]"));
        assert!(bad(|l| l.cluster = [2, 1, 1]).contains("a cluster of [2, 1, 1] for a grid of [7, 1, 1]"));
        assert!(bad(|l| l.args = vec![Arg::I32(0); 97]).contains("97 parameters"));
        assert!(bad(|l| l.args = vec![Arg::Ptr(Base::Region(3))]).contains("workspace region 3"));
    }

    #[test]
    fn a_lowering_that_disagrees_with_the_kernel_is_caught_without_a_gpu() {
        let cubin = |params: &[(u16, u32)]| {
            let spec = spec("main");
            Cubin::new(&spec, "sm_90a", "13.0", image("main", params, b"code"), "").unwrap()
        };
        let target = Target::describe(90).unwrap();
        let mut l = launch("main", vec![map(Base::Tensor(1), Some(1)), Arg::Null, Arg::I32(1)]);
        l.names = vec!["tm_q", "lse", "batch"];
        check_launch(&l, &cubin(&[(0, 128), (128, 8), (136, 4)]), &target).unwrap();
        let e = check_launch(&l, &cubin(&[(0, 128), (128, 8), (136, 8)]), &target).unwrap_err();
        assert_eq!(
            e.to_string(),
            "FG6006 at launch main: 3 parameters, number 2 'batch' of 4 bytes; expected 3 parameters as compiled, number 2 of 8 bytes"
        );
        assert!(check_launch(&l, &cubin(&[(0, 128), (128, 8)]), &target).is_err());
        assert!(check_launch(&l, &cubin(&[(0, 128), (128, 8), (136, 4), (140, 4)]), &target).is_err());
        l.smem = 232_449;
        let e = check_launch(&l, &cubin(&[(0, 128), (128, 8), (136, 4)]), &target).unwrap_err();
        assert_eq!(e.given, "232449 bytes of shared memory");
    }
}
