//! CUDA devices of this machine.

use super::driver::{check, ready, swallow, Context, Current};
use crate::engines::Target;
use crate::{Error, ErrorCode, Result};
use cudarc::driver::sys::{self, CUdevice_attribute};
use std::sync::Arc;

/// An opened device: its primary context is retained until the last clone is dropped.
#[derive(Debug, Clone)]
pub struct CudaDevice(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    ordinal: u32,
    device: sys::CUdevice,
    context: Context,
    target: Target,
    name: String,
    driver: i32,
}

impl CudaDevice {
    /// Devices that are visible to this process; 0 where the driver finds none.
    ///
    /// # Errors
    /// FG6002 without a usable driver, FG6003 when it fails.
    pub fn count() -> Result<u32> {
        if let Err(e) = ready() {
            // An installed driver without a device says so on initialisation.
            return if e.given.contains("CUDA_ERROR_NO_DEVICE") { Ok(0) } else { Err(e) };
        }
        let mut n = 0;
        // SAFETY: initialised; the out-pointer is live.
        check("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&mut n) })?;
        Ok(u32::try_from(n).unwrap_or(0))
    }

    /// Opens a device by its number among the visible ones.
    ///
    /// # Errors
    /// FG6002 and FG6003 as for [`CudaDevice::count`]; FG3006 when there is no such device.
    pub fn open(ordinal: u32) -> Result<CudaDevice> {
        let count = CudaDevice::count()?;
        if ordinal >= count {
            let expected = if count == 0 { "a visible CUDA device; there is none".to_owned() } else { format!("0..{count}") };
            return Err(Error::new(ErrorCode::BadDevice, format!("device {ordinal}"), expected)
                .help("See nvidia-smi and CUDA_VISIBLE_DEVICES"));
        }
        let driver = ready()?;
        let mut device = 0;
        // SAFETY: initialised; the ordinal is below the count and so fits.
        check("cuDeviceGet", unsafe { sys::cuDeviceGet(&mut device, ordinal as i32) })?;
        let attribute = |which| {
            let mut value = 0;
            // SAFETY: a device of this driver and a live out-pointer.
            check("cuDeviceGetAttribute", unsafe { sys::cuDeviceGetAttribute(&mut value, which, device) })?;
            Ok::<u32, Error>(u32::try_from(value).unwrap_or(0))
        };
        use CUdevice_attribute::*;
        let major = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let mut total = 0usize;
        // SAFETY: as above.
        check("cuDeviceTotalMem", unsafe { sys::cuDeviceTotalMem_v2(&mut total, device) })?;
        let target = Target::Cuda {
            cc: major * 10 + minor,
            sm_count: attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            smem_optin: attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            l2_bytes: u64::from(attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?),
            total_memory: total as u64,
        };
        let mut text = [0u8; 256];
        // SAFETY: the buffer has the length given.
        check("cuDeviceGetName", unsafe { sys::cuDeviceGetName(text.as_mut_ptr().cast(), text.len() as i32, device) })?;
        let name = text.split(|&b| b == 0).next().map(|b| String::from_utf8_lossy(b).into_owned()).unwrap_or_default();
        let mut context = std::ptr::null_mut();
        // SAFETY: a device of this driver and a live out-pointer; released when the last clone is dropped.
        check("cuDevicePrimaryCtxRetain", unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, device) })?;
        Ok(CudaDevice(Arc::new(Inner { ordinal, device, context: Context(context), target, name, driver })))
    }

    /// Number among the visible devices.
    pub fn ordinal(&self) -> u32 {
        self.0.ordinal
    }

    /// Product name as the driver tells it.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Facts for matching and ranking.
    pub fn target(&self) -> &Target {
        &self.0.target
    }

    /// Highest CUDA version of the driver, such as `13.0`.
    pub fn driver_version(&self) -> String {
        format!("{}.{}", self.0.driver / 1000, self.0.driver % 1000 / 10)
    }

    /// Exact compilation target, such as `sm_90a`.
    pub fn arch(&self) -> String {
        match self.0.target {
            Target::Cuda { cc, .. } => Target::nvrtc_arch(cc),
            Target::Cpu => String::new(),
        }
    }

    /// Free and total device memory in bytes.
    ///
    /// # Errors
    /// FG6003.
    pub fn memory(&self) -> Result<(u64, u64)> {
        let _current = self.enter()?;
        let (mut free, mut total) = (0usize, 0usize);
        // SAFETY: live out-pointers, a current context.
        check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok((free as u64, total as u64))
    }

    pub(crate) fn context(&self) -> Context {
        self.0.context
    }

    /// Makes this device's context current for a scope.
    pub(crate) fn enter(&self) -> Result<Current> {
        Current::enter(self.0.context)
    }
}

impl PartialEq for CudaDevice {
    fn eq(&self, other: &CudaDevice) -> bool {
        self.0.context == other.0.context
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: retained once in `open`.
        swallow("cuDevicePrimaryCtxRelease", unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) });
    }
}
