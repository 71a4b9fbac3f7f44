//! One device allocation for a whole case, mirrored on the host: every tensor and the workspace between guard bands, poisoned. After a
//! run each byte that no output element owns must be what it was.

use frostgraph::exec::{Bindings, Workspace};
use frostgraph::runtime::{CudaDevice, DeviceBuffer};
use frostgraph::{Error, ErrorCode, Result};
use std::collections::BTreeMap;

/// Guard band on both sides of everything.
const GUARD: u64 = 4096;
const GUARD_BYTE: u8 = 0xa5;

/// Where one tensor lies.
#[derive(Debug, Clone, Copy)]
pub struct Slot {
    pub offset: u64,
    pub bytes: u64,
}

/// Host mirror and device memory.
pub struct Image {
    pub slots: BTreeMap<i64, Slot>,
    pub workspace: Slot,
    pub host: Vec<u8>,
    device: DeviceBuffer,
}

impl Image {
    /// Lays out tensors of these sizes and a workspace of exactly the reported size.
    pub fn new(device: &CudaDevice, tensors: &BTreeMap<i64, Vec<u8>>, workspace: u64) -> Result<Image> {
        let mut at = GUARD;
        let mut place = |bytes: u64| {
            let slot = Slot { offset: at, bytes };
            at = (at + bytes + GUARD).next_multiple_of(256);
            slot
        };
        let slots: BTreeMap<i64, Slot> = tensors.iter().map(|(&uid, t)| (uid, place(t.len() as u64))).collect();
        let workspace = place(workspace);
        let mut host = vec![GUARD_BYTE; at as usize];
        for (uid, slot) in &slots {
            host[slot.offset as usize..][..slot.bytes as usize].copy_from_slice(&tensors[uid]);
        }
        let image = Image { slots, workspace, host, device: DeviceBuffer::new(device, at)? };
        Ok(image)
    }

    /// Fills the workspace of the mirror, then copies everything to the device.
    pub fn upload(&mut self, workspace_poison: u8) -> Result<()> {
        let w = self.workspace;
        self.host[w.offset as usize..][..w.bytes as usize].fill(workspace_poison);
        self.device.write(0, &self.host)
    }

    /// Replaces one tensor, on the host and on the device.
    pub fn replace(&mut self, uid: i64, bytes: &[u8]) -> Result<()> {
        let slot = self.slots[&uid];
        self.host[slot.offset as usize..][..bytes.len()].copy_from_slice(bytes);
        self.device.write(slot.offset, bytes)
    }

    pub fn bindings(&self) -> Bindings<'static> {
        let mut b = Bindings::new();
        for (&uid, s) in &self.slots {
            b.device(uid, self.device.range().address + s.offset, s.bytes);
        }
        b
    }

    pub fn workspace(&self) -> Workspace<'static> {
        Workspace::device(self.device.range().address + self.workspace.offset, self.workspace.bytes)
    }

    pub fn download(&self) -> Result<Vec<u8>> {
        self.device.to_vec()
    }

    pub fn part<'a>(&self, all: &'a [u8], uid: i64) -> &'a [u8] {
        let s = self.slots[&uid];
        &all[s.offset as usize..][..s.bytes as usize]
    }

    /// Checks that only owned bytes and the workspace changed. `owned` has, for each written tensor, one bool a byte.
    pub fn untouched(&self, after: &[u8], owned: &BTreeMap<i64, Vec<bool>>) -> Result<()> {
        let mut free = vec![true; self.host.len()];
        free[self.workspace.offset as usize..][..self.workspace.bytes as usize].fill(false);
        for (uid, bytes) in owned {
            let at = self.slots[uid].offset as usize;
            free[at..at + bytes.len()].iter_mut().zip(bytes).for_each(|(f, &mine)| *f &= !mine);
        }
        let hit = (0..free.len()).find(|&i| free[i] && after[i] != self.host[i]);
        let Some(i) = hit else { return Ok(()) };
        let near = |s: &Slot| (i as i64 - s.offset as i64, s.bytes);
        let tensor = self.slots.iter().min_by_key(|(_, s)| near(s).0.unsigned_abs()).map(|(uid, s)| (*uid, near(s)));
        let ws = near(&self.workspace);
        Err(Error::new(
            ErrorCode::CheckFailed,
            format!("byte {i} changed; nearest tensor (uid, (offset, bytes)) {tensor:?}, workspace {ws:?}"),
            "only output elements and the workspace are written",
        ))
    }
}
