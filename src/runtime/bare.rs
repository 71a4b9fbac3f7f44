//! The floor that `execute` is measured against: the same launches with every parameter resolved beforehand, nothing but driver calls left.

use super::chain::Sink;
use super::driver::check;
use super::program::Program;
use super::tensor_map::{self, MapRequest, TensorMap};
use super::DeviceRange;
use crate::engines::Uid;
use crate::Result;
use std::cell::RefCell;
use std::ffi::c_void;

/// A copy of one parameter, aligned as tensor maps must be.
#[repr(C, align(128))]
#[derive(Clone, Copy)]
struct Value([u8; 128]);

/// One execution of a program, frozen.
pub struct Bare<'a> {
    program: &'a Program,
    launches: Vec<Vec<Value>>,
}

struct Copying<'a> {
    program: &'a Program,
    launches: RefCell<Vec<Vec<Value>>>,
}

impl Sink for Copying<'_> {
    fn encode(&self, request: &MapRequest) -> Result<TensorMap> {
        tensor_map::encode(request)
    }

    fn launch(&self, index: usize, params: &mut [*mut c_void]) -> Result<()> {
        let sizes = self.program.parameter_sizes(index);
        let copy = |(p, n): (&*mut c_void, u32)| {
            let mut value = Value([0; 128]);
            // SAFETY: the chain gives one live value of the compiled size a parameter; sizes are at most 128 (checked at compile time).
            unsafe { std::ptr::copy_nonoverlapping(p.cast::<u8>(), value.0.as_mut_ptr(), n.min(128) as usize) };
            value
        };
        self.launches.borrow_mut().push(params.iter().zip(sizes).map(copy).collect());
        Ok(())
    }
}

impl Program {
    /// Resolves one execution into bare driver calls, for measurements. The buffers must stay alive as for [`Program::execute`].
    ///
    /// # Errors
    /// As [`Program::execute`].
    pub fn bare(&self, operand: &dyn Fn(Uid) -> Option<DeviceRange>, workspace: DeviceRange) -> Result<Bare<'_>> {
        let _current = self.device().enter()?;
        let sink = Copying { program: self, launches: RefCell::default() };
        self.chain().run(&sink, operand, workspace)?;
        Ok(Bare { program: self, launches: sink.launches.into_inner() })
    }
}

impl Bare<'_> {
    /// Queues the launches, `repeat` times over, with the device's context current throughout.
    ///
    /// # Errors
    /// FG6003.
    pub fn launch(&mut self, stream: u64, repeat: usize) -> Result<()> {
        let _current = self.program.device().enter()?;
        let driver = self.program.driver(stream);
        let mut pointers: Vec<Vec<*mut c_void>> =
            self.launches.iter_mut().map(|l| l.iter_mut().map(|v| std::ptr::from_mut(v).cast()).collect()).collect();
        for _ in 0..repeat {
            for (index, params) in pointers.iter_mut().enumerate() {
                check("cuLaunchKernelEx", driver.raw_launch(index, params))?;
            }
        }
        Ok(())
    }
}
