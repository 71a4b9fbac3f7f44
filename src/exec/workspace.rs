//! The scratch memory of one execution, always the caller's.

use frostgraph_engines::launch::WORKSPACE_ALIGN;

/// Scratch memory of one execution. Its contents need not be initialised and are undefined afterwards.
///
/// At least [`crate::exec::Executable::workspace_bytes`] bytes, base aligned to 128 bytes. Two executions that may overlap in time
/// need two workspaces.
#[derive(Debug, Default)]
pub enum Workspace<'a> {
    /// No memory; enough for a plan that needs 0 bytes.
    #[default]
    None,
    /// Host memory, for CPU plans.
    Host(&'a mut [u8]),
    /// Device memory, for CUDA plans.
    Device {
        /// Device address.
        address: u64,
        /// Length in bytes.
        bytes: u64,
    },
}

impl<'a> Workspace<'a> {
    /// No workspace.
    pub fn none() -> Workspace<'a> {
        Workspace::None
    }

    /// Host memory whose base is aligned to 128 bytes; [`HostWorkspace`] allocates such memory.
    pub fn host(bytes: &'a mut [u8]) -> Workspace<'a> {
        Workspace::Host(bytes)
    }

    /// Device memory by address and length in bytes.
    pub fn device(address: u64, bytes: u64) -> Workspace<'a> {
        Workspace::Device { address, bytes }
    }
}

/// Host memory of an exact size with the alignment that plans ask for.
#[derive(Debug)]
pub struct HostWorkspace {
    store: Vec<u8>,
    start: usize,
    bytes: usize,
}

impl HostWorkspace {
    /// Allocates `bytes` bytes, zeroed by the allocator. `None` when this machine cannot give that much.
    pub fn new(bytes: u64) -> Option<HostWorkspace> {
        let bytes = usize::try_from(bytes).ok()?;
        let align = WORKSPACE_ALIGN as usize;
        let room = bytes.checked_add(align)?;
        // Asked for first in a way that may fail: a refused plain allocation would end the process.
        Vec::<u8>::new().try_reserve_exact(room).ok()?;
        // A zeroed vector maps lazily: pages that the plan never touches cost nothing.
        let store = vec![0u8; room];
        let start = store.as_ptr().align_offset(align);
        (start < align).then_some(HostWorkspace { store, start, bytes })
    }

    /// The aligned bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.store[self.start..self.start + self.bytes]
    }

    /// As a workspace for one execution.
    pub fn workspace(&mut self) -> Workspace<'_> {
        Workspace::Host(self.bytes_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_workspace_is_aligned_and_exact() {
        for n in [0u64, 1, 127, 128, 4097] {
            let mut w = HostWorkspace::new(n).unwrap();
            assert_eq!(w.bytes_mut().len() as u64, n);
            assert_eq!(w.bytes_mut().as_ptr() as u64 % WORKSPACE_ALIGN, 0);
        }
        for huge in [u64::MAX, u64::MAX / 2, 1 << 62] {
            assert!(HostWorkspace::new(huge).is_none());
        }
    }
}
