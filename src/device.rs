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

    /// A device by architecture name, such as `sm_120`, present or not; `cpu` also works.
    pub fn describe(name: &str) -> Result<Device> {
        if name == "cpu" {
            return Ok(Device { target: Target::Cpu, ordinal: None });
        }
        let digits = name.strip_prefix("sm_").unwrap_or("").trim_end_matches('a');
        let target = digits.parse::<u32>().ok().and_then(Target::describe);
        target.map(|target| Device { target, ordinal: None }).ok_or_else(|| {
            Error::new(
                ErrorCode::BadDevice,
                format!("device '{name}'"),
                "cpu, or one of sm_80 sm_86 sm_89 sm_90 sm_100 sm_103 sm_110 sm_120 sm_121",
            )
        })
    }
}
