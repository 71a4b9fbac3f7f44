//! A stand-in for the driver, and a chain for it.

use super::super::fit::size_of;
use super::super::*;
use crate::engines::{DType, TensorMapSpec};
use crate::runtime::test_util::spec;
use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Stands in for the driver: copies every parameter by its size, as the driver does during the call.
#[derive(Default)]
pub struct Recorder {
    pub sizes: Vec<Vec<u32>>,
    pub encoded: AtomicUsize,
    pub calls: RefCell<Vec<(usize, Vec<Vec<u8>>)>>,
    pub fail_at: Option<usize>,
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

pub fn map(base: Base, tokens: Option<u64>) -> Arg {
    Arg::Map(TensorMapSpec {
        base,
        dtype: DType::BF16,
        dim: vec![Some(64), tokens, Some(2), Some(1)],
        stride_bytes: vec![256, 128, 1024],
        tile: vec![64, 64, 1, 1],
        swizzle: 128,
    })
}

pub fn launch(name: &'static str, args: Vec<Arg>) -> Launch {
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
pub fn plan() -> LaunchPlan {
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

pub fn recorder(plan: &LaunchPlan) -> Recorder {
    let sizes = plan.steps.iter().map(|s| match s {
        Step::Kernel(l) => l.args.iter().map(size_of).collect(),
        Step::Host(_) => Vec::new(),
    });
    Recorder { sizes: sizes.collect(), ..Recorder::default() }
}

pub fn range(address: u64, bytes: u64) -> DeviceRange {
    DeviceRange { address, bytes }
}

pub fn operand(uid: Uid) -> Option<DeviceRange> {
    (10..=12).contains(&uid).then(|| range(uid as u64 * 0x10_0000, 256 * 100))
}

pub const WORKSPACE: DeviceRange = DeviceRange { address: 0x9000_0000, bytes: 1 << 20 };

pub fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}
