//! The caller's buffers of one execution, by tensor uid.

use bytemuck::{NoUninit, Pod};
use frostgraph_engines::Uid;
use std::collections::BTreeMap;

/// A range of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceBuffer {
    /// Device address of the tensor's first element.
    pub address: u64,
    /// Bytes from that address to the end of the allocation (or of the part that belongs to the tensor).
    pub bytes: u64,
}

#[derive(Debug)]
pub(crate) enum Binding<'a> {
    Read(&'a [u8]),
    Write(&'a mut [u8]),
    Device(DeviceBuffer),
}

/// Buffers by uid: host slices for CPU plans, device memory for CUDA plans.
///
/// Slices begin at the tensor's element (0, 0, 0, 0) and reach at least to its last addressed element; the declared strides count
/// from there. Binding a uid again replaces the earlier buffer. A set of bindings may be used for many executions.
#[derive(Debug, Default)]
pub struct Bindings<'a> {
    pub(crate) map: BTreeMap<Uid, Binding<'a>>,
}

impl<'a> Bindings<'a> {
    /// No bindings.
    pub fn new() -> Bindings<'a> {
        Bindings::default()
    }

    /// Binds a host slice that the graph reads.
    pub fn read<T: NoUninit>(&mut self, uid: Uid, data: &'a [T]) -> &mut Bindings<'a> {
        self.map.insert(uid, Binding::Read(bytemuck::cast_slice(data)));
        self
    }

    /// Binds a host slice that the graph writes.
    pub fn write<T: Pod>(&mut self, uid: Uid, data: &'a mut [T]) -> &mut Bindings<'a> {
        self.map.insert(uid, Binding::Write(bytemuck::cast_slice_mut(data)));
        self
    }

    /// Binds device memory, read or written as the graph says.
    ///
    /// The caller owns the memory and promises that `bytes` bytes from `address` are allocated on the plan's device and stay so
    /// until the queued work is done: an address cannot be checked from here.
    pub fn device(&mut self, uid: Uid, address: u64, bytes: u64) -> &mut Bindings<'a> {
        self.map.insert(uid, Binding::Device(DeviceBuffer { address, bytes }));
        self
    }

    /// Uids that are bound, ascending.
    pub fn uids(&self) -> impl Iterator<Item = Uid> + '_ {
        self.map.keys().copied()
    }
}
