//! Device memory owned by Rust: for tests, benchmarks and the command line. Libraries hand in addresses of their own.

use super::driver::{check, relaxed, swallow};
use super::{CudaDevice, CudaStream};
use crate::{Error, ErrorCode, Result};
use cudarc::driver::sys;

/// Bytes of device memory that somebody else keeps alive until the queued work is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceRange {
    /// Address of the first byte.
    pub address: u64,
    /// Bytes from there on that belong to the range.
    pub bytes: u64,
}

impl DeviceRange {
    /// The part from `offset` on; empty past the end.
    #[must_use]
    pub fn skip(self, offset: u64) -> DeviceRange {
        let offset = offset.min(self.bytes);
        DeviceRange { address: self.address + offset, bytes: self.bytes - offset }
    }

    /// Whether both share a byte.
    pub fn overlaps(self, other: DeviceRange) -> bool {
        let end = |r: DeviceRange| r.address.saturating_add(r.bytes);
        self.bytes > 0 && other.bytes > 0 && self.address < end(other) && other.address < end(self)
    }
}

/// An allocation, freed on drop; freeing waits for work that still uses it (`cuMemFree` synchronises).
#[derive(Debug)]
pub struct DeviceBuffer {
    device: CudaDevice,
    range: DeviceRange,
}

impl DeviceBuffer {
    /// Allocates; contents are undefined. The base is aligned to at least 256 bytes.
    ///
    /// # Errors
    /// FG6003 when memory runs out.
    pub fn new(device: &CudaDevice, bytes: u64) -> Result<DeviceBuffer> {
        let _current = device.enter()?;
        let mut address = 0;
        // SAFETY: a live out-pointer; zero-byte requests are rounded up because the driver refuses them.
        let status = unsafe { sys::cuMemAlloc_v2(&mut address, usize::try_from(bytes.max(1)).unwrap_or(usize::MAX)) };
        check("cuMemAlloc", status).map_err(|e| e.at(format!("{bytes} bytes on device {}", device.ordinal())))?;
        Ok(DeviceBuffer { device: device.clone(), range: DeviceRange { address, bytes } })
    }

    /// Allocates and copies.
    ///
    /// # Errors
    /// FG6003.
    pub fn from_slice<T: bytemuck::NoUninit>(device: &CudaDevice, data: &[T]) -> Result<DeviceBuffer> {
        let bytes: &[u8] = bytemuck::cast_slice(data);
        let buffer = DeviceBuffer::new(device, bytes.len() as u64)?;
        buffer.write(0, bytes)?;
        Ok(buffer)
    }

    /// The whole allocation.
    pub fn range(&self) -> DeviceRange {
        self.range
    }

    /// Bytes of the allocation.
    pub fn bytes(&self) -> u64 {
        self.range.bytes
    }

    fn part(&self, offset: u64, bytes: u64) -> Result<u64> {
        let end = offset.checked_add(bytes).filter(|&end| end <= self.range.bytes);
        end.map(|_| self.range.address + offset).ok_or_else(|| {
            let given = format!("bytes {offset}..{} of a buffer of {}", offset.saturating_add(bytes), self.range.bytes);
            Error::new(ErrorCode::BufferSize, given, "a range inside the buffer")
        })
    }

    /// Copies host bytes to `offset`; returns when the device has them, so that work queued on any stream afterwards finds them there.
    ///
    /// # Errors
    /// FG4002 outside the buffer, FG6003.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        let at = self.part(offset, data.len() as u64)?;
        let _current = self.device.enter()?;
        // SAFETY: the device range was checked, and the host slice is live until the driver has read it, which is before it returns.
        check("cuMemcpyHtoD", unsafe { sys::cuMemcpyHtoD_v2(at, data.as_ptr().cast(), data.len()) })?;
        // Out of pageable memory the call returns once the bytes are staged; their way to the device is still queued on the legacy
        // default stream, and a non-blocking stream does not wait for that one: a kernel could run before, or amid, the copy.
        // SAFETY: the null handle is the legacy default stream of the current context.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(std::ptr::null_mut()) })
    }

    /// Copies device bytes from `offset`; waits for the legacy default stream, not for others: synchronise those first.
    ///
    /// # Errors
    /// FG4002 outside the buffer, FG6003.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let at = self.part(offset, out.len() as u64)?;
        let _current = self.device.enter()?;
        // SAFETY: the device range was checked, the host slice is live and exclusive, and the call returns after the copy.
        check("cuMemcpyDtoH", unsafe { sys::cuMemcpyDtoH_v2(out.as_mut_ptr().cast(), at, out.len()) })
    }

    /// The whole contents.
    ///
    /// # Errors
    /// FG6003.
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        let mut out = vec![0; usize::try_from(self.range.bytes).unwrap_or(usize::MAX)];
        self.read(0, &mut out)?;
        Ok(out)
    }

    /// Sets bytes `offset..offset + bytes` on a stream.
    ///
    /// # Errors
    /// FG4002 outside the buffer, FG6003.
    pub fn fill(&self, stream: &CudaStream, offset: u64, bytes: u64, value: u8) -> Result<()> {
        let at = self.part(offset, bytes)?;
        let _current = self.device.enter()?;
        // SAFETY: the device range was checked and lives as long as `self`, whose drop waits.
        check("cuMemsetD8Async", unsafe { sys::cuMemsetD8Async(at, value, bytes as usize, stream.handle()) })
    }

    /// Copies device bytes to `offset` on a stream. `from` must stay allocated until then and share no byte with the place it goes to.
    ///
    /// # Errors
    /// FG4002 outside the buffer, FG4007 when both share bytes, FG6003.
    pub fn copy(&self, stream: &CudaStream, offset: u64, from: DeviceRange) -> Result<()> {
        let at = self.part(offset, from.bytes)?;
        if from.overlaps(DeviceRange { address: at, bytes: from.bytes }) {
            let given = format!("{} bytes copied onto themselves", from.bytes);
            return Err(Error::new(ErrorCode::BufferOverlap, given, "two ranges that share no byte"));
        }
        let _current = self.device.enter()?;
        // SAFETY: the destination was checked and lives as long as `self`, whose drop waits; a source that is not device memory is
        // refused by the driver.
        check("cuMemcpyDtoDAsync", unsafe { sys::cuMemcpyDtoDAsync_v2(at, from.address, from.bytes as usize, stream.handle()) })
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        relaxed(self.device.context(), || {
            // SAFETY: allocated by `new`, freed once.
            swallow("cuMemFree", unsafe { sys::cuMemFree_v2(self.range.address) });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::DeviceRange;

    #[test]
    fn overlap_is_about_shared_bytes() {
        let r = |address, bytes| DeviceRange { address, bytes };
        assert!(r(100, 10).overlaps(r(109, 1)) && r(109, 1).overlaps(r(100, 10)));
        assert!(!r(100, 10).overlaps(r(110, 1)) && !r(110, 1).overlaps(r(100, 10)));
        assert!(!r(100, 0).overlaps(r(100, 10)), "an empty range shares nothing");
        assert!(r(u64::MAX - 1, u64::MAX).overlaps(r(u64::MAX - 1, 1)), "no wrap-around");
        assert_eq!(r(100, 10).skip(4), r(104, 6));
        assert_eq!(r(100, 10).skip(40), r(110, 0));
    }
}
