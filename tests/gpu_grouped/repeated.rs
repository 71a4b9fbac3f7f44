//! Long operands that hold one block many times.

use frostgraph::runtime::{CudaDevice, CudaStream, DeviceBuffer, DeviceRange};
use frostgraph::Result;

/// A buffer that holds `block` so many times.
pub fn repeated(device: &CudaDevice, stream: &CudaStream, block: &[u8], copies: u64) -> Result<DeviceBuffer> {
    let all = block.len() as u64 * copies;
    let buffer = DeviceBuffer::new(device, all)?;
    buffer.write(0, block)?;
    let mut done = block.len() as u64;
    while done < all {
        let take = done.min(all - done);
        buffer.copy(stream, done, DeviceRange { bytes: take, ..buffer.range() })?;
        done += take;
    }
    stream.synchronize()?;
    Ok(buffer)
}
