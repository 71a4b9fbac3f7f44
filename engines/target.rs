//! The device a plan is made for: either this machine's CPU or a CUDA device, present or only described.

/// Device facts used by matching, ranking and lowering. A plan can be made for a device that is not here.
#[derive(Debug, Clone, PartialEq)]
pub enum Target {
    /// The host CPU.
    Cpu,
    /// A CUDA device.
    Cuda {
        /// Compute capability, major·10 + minor: 90 for an H200.
        cc: u32,
        /// Streaming multiprocessors.
        sm_count: u32,
        /// Largest dynamic shared memory per block after opt-in, bytes.
        smem_optin: u32,
        /// L2 bytes.
        l2_bytes: u64,
        /// Device memory in all, bytes (not what is free).
        total_memory: u64,
    },
}

impl Target {
    /// The described device with this compute capability and the public figures of one common product of it.
    ///
    /// SM counts: A100 108, RTX 3090 82, RTX 4090 128, H200 132, B200 148, B300 148, Thor 20, RTX PRO 6000 188, DGX Spark 48.
    pub fn describe(cc: u32) -> Option<Target> {
        const GIB: u64 = 1 << 30;
        const MIB: u64 = 1 << 20;
        let (sm_count, smem_optin, l2_bytes, total_memory) = match cc {
            80 => (108, 166_912, 40 * MIB, 80 * GIB),
            86 => (82, 101_376, 6 * MIB, 24 * GIB),
            89 => (128, 101_376, 72 * MIB, 24 * GIB),
            90 => (132, 232_448, 60 * MIB, 141 * GIB),
            100 => (148, 232_448, 126 * MIB, 180 * GIB),
            103 => (148, 232_448, 126 * MIB, 270 * GIB),
            110 => (20, 232_448, 32 * MIB, 128 * GIB),
            120 => (188, 101_376, 128 * MIB, 96 * GIB),
            121 => (48, 101_376, 24 * MIB, 128 * GIB),
            _ => return None,
        };
        Some(Target::Cuda { cc, sm_count, smem_optin, l2_bytes, total_memory })
    }

    /// `cpu`, or `sm_90` and so on.
    pub fn name(&self) -> String {
        match self {
            Target::Cpu => "cpu".into(),
            Target::Cuda { cc, .. } => format!("sm_{cc}"),
        }
    }

    /// The exact NVRTC target for a compute capability: arch-specific `a` targets from 9.0 on.
    pub fn nvrtc_arch(cc: u32) -> String {
        if cc >= 90 {
            format!("sm_{cc}a")
        } else {
            format!("sm_{cc}")
        }
    }
}
