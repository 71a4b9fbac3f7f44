//! The device a graph is built for: present, or only described.

use crate::{Error, ErrorCode, Result};
use frostgraph_engines::Target;

/// A device to plan for.
#[derive(Debug, Clone, PartialEq)]
pub struct Device {
    /// Facts used for matching and ranking.
    pub target: Target,
    /// Ordinal when the device is present in this machine; `None` when it is only described (plan, explain, compile ahead of time).
    pub ordinal: Option<u32>,
}

impl Device {
    /// The host CPU.
    pub fn cpu() -> Device {
        Device { target: Target::Cpu, ordinal: Some(0) }
    }

    /// A CUDA device of this machine, by its number among the visible ones.
    ///
    /// # Errors
    /// FG6001 in a build without the feature `cuda`; FG6002 without a usable driver; FG3006 when there is no such device.
    pub fn cuda(ordinal: u32) -> Result<Device> {
        #[cfg(feature = "cuda")]
        {
            let device = crate::runtime::CudaDevice::open(ordinal)?;
            Ok(Device { target: device.target().clone(), ordinal: Some(ordinal) })
        }
        #[cfg(not(feature = "cuda"))]
        Err(Error::new(ErrorCode::NoCudaFeature, format!("CUDA device {ordinal}"), "a build with the feature `cuda`"))
    }

    /// The first CUDA device that is visible, else the CPU. A machine without a driver is a CPU machine; a driver that is there but
    /// fails is an error, because falling back would hide it.
    ///
    /// # Errors
    /// FG6003 when an installed driver cannot be initialised.
    pub fn detect() -> Result<Device> {
        #[cfg(feature = "cuda")]
        match crate::runtime::CudaDevice::count() {
            Ok(0) => {}
            Ok(_) => return Device::cuda(0),
            Err(e) if e.code == ErrorCode::CudaLibrary => {}
            Err(e) => return Err(e),
        }
        Ok(Device::cpu())
    }

    /// A device by architecture name, such as `sm_120` or `sm_120a`, present or not; `cpu` also works.
    ///
    /// # Errors
    /// FG3006 for another name.
    pub fn describe(name: &str) -> Result<Device> {
        if name == "cpu" {
            return Ok(Device { target: Target::Cpu, ordinal: None });
        }
        let digits = name.strip_prefix("sm_").unwrap_or("").trim_end_matches('a');
        let named = |t: &Target| match t {
            // Some architectures have an `a` of their own; none has two.
            Target::Cuda { cc, .. } => name == t.name() || name == Target::nvrtc_arch(*cc),
            Target::Cpu => false,
        };
        let target = digits.parse::<u32>().ok().and_then(Target::describe).filter(named);
        target.map(|target| Device { target, ordinal: None }).ok_or_else(|| {
            Error::new(
                ErrorCode::BadDevice,
                format!("device '{name}'"),
                "cpu, or one of sm_80 sm_86 sm_89 sm_90 sm_100 sm_103 sm_110 sm_120 sm_121",
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_described_devices() {
        for (name, target) in [("sm_90", "sm_90"), ("sm_90a", "sm_90"), ("sm_120a", "sm_120"), ("cpu", "cpu")] {
            assert_eq!(Device::describe(name).unwrap().target.name(), target);
        }
        for name in [
            "",
            "90",
            "sm_",
            "sm_a",
            "sm_90aa",
            "sm_90b",
            "sm_+90",
            "sm_090",
            "sm_86a",
            "sm_ 90",
            "SM_90",
            "sm_0",
            "sm_999",
            "cpua",
            "sm_99999999999",
        ] {
            assert_eq!(Device::describe(name).unwrap_err().code, ErrorCode::BadDevice, "{name}");
        }
    }

    /// Report 143: on a machine without a driver, asking is an error or the CPU, never a panic.
    #[test]
    fn asking_for_cuda_never_panics_143() {
        let detected = Device::detect().unwrap();
        match Device::cuda(0) {
            Ok(device) => assert_eq!(detected, device),
            Err(e) => {
                assert_eq!(detected, Device::cpu());
                assert!([ErrorCode::CudaLibrary, ErrorCode::BadDevice, ErrorCode::NoCudaFeature].contains(&e.code), "{e}");
            }
        }
        assert!(Device::cuda(u32::MAX).is_err());
    }
}
