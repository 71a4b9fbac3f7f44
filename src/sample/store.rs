//! Host buffers by uid, aligned for every element type.

use crate::{Error, ErrorCode, Result};
use frostgraph_engines::Uid;
use std::collections::BTreeMap;

/// One zeroed host buffer whose base is aligned to 16 bytes.
#[derive(Clone, PartialEq, Default)]
pub struct HostTensor {
    words: Vec<u128>,
    bytes: usize,
}

impl std::fmt::Debug for HostTensor {
    /// The size only: contents would fill pages.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HostTensor({} bytes)", self.bytes)
    }
}

impl HostTensor {
    /// A zeroed buffer. FG4002 when this machine cannot provide it: extents come from files, so that is no reason to abort.
    pub fn zeroed(bytes: u64) -> Result<HostTensor> {
        let refuse =
            || Error::new(ErrorCode::BufferSize, format!("a tensor of {bytes} bytes"), "a size that this machine has memory for");
        if bytes > available() {
            return Err(refuse());
        }
        let bytes = usize::try_from(bytes).map_err(|_| refuse())?;
        let mut words = Vec::new();
        words.try_reserve_exact(bytes.div_ceil(16)).map_err(|_| refuse())?;
        words.resize(bytes.div_ceil(16), 0);
        Ok(HostTensor { words, bytes })
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.bytes]
    }

    /// The bytes, to write to.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.bytes]
    }
}

/// Memory that can be given out without swapping, where the system tells; else no bound beyond the address space.
pub(crate) fn available() -> u64 {
    let kib = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find(|l| l.starts_with("MemAvailable:"))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    kib.map_or(isize::MAX as u64, |k| k.saturating_mul(1024))
}

/// Host buffers by uid.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct HostTensors(pub BTreeMap<Uid, HostTensor>);

impl HostTensors {
    /// Bytes by uid, as the engines and the oracle take them.
    pub fn view(&self) -> BTreeMap<Uid, &[u8]> {
        self.0.iter().map(|(uid, t)| (*uid, t.bytes())).collect()
    }

    /// The bytes of one tensor.
    pub fn bytes(&self, uid: Uid) -> Option<&[u8]> {
        self.0.get(&uid).map(HostTensor::bytes)
    }
}
