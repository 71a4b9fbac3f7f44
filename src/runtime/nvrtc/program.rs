//! One compilation: a program made, compiled and destroyed.

use super::{Failure, Handle, Nvrtc};
use std::ffi::{c_char, c_int, CString};

impl Nvrtc {
    /// Compiles one program with its headers in memory; gives the cubin and the log (which holds notes on success too).
    pub(crate) fn compile(
        &self,
        name: &str,
        text: &str,
        headers: &[(&str, &str)],
        options: &[String],
    ) -> std::result::Result<(Vec<u8>, String), Failure> {
        self.load_builtins();
        let plain = |what: &str| Failure { what: what.to_owned(), log: String::new() };
        let c = |s: &str| CString::new(s).map_err(|_| plain("a kernel source or option holds a NUL byte"));
        let (name, text) = (c(name)?, c(text)?);
        let owned: Vec<(CString, CString)> = headers.iter().map(|(n, t)| Ok((c(n)?, c(t)?))).collect::<Result<_, Failure>>()?;
        let header_names: Vec<*const c_char> = owned.iter().map(|(n, _)| n.as_ptr()).collect();
        let header_texts: Vec<*const c_char> = owned.iter().map(|(_, t)| t.as_ptr()).collect();
        let options: Vec<CString> = options.iter().map(|o| c(o)).collect::<Result<_, Failure>>()?;
        let option_ptrs: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
        let count = |n: usize| c_int::try_from(n).map_err(|_| plain("too many headers or options"));

        let mut program = Program { nvrtc: self, handle: std::ptr::null_mut() };
        // SAFETY: all strings live until this function returns, longer than the program; the arrays have the lengths given.
        let created = unsafe {
            (self.functions.create)(
                &mut program.handle,
                text.as_ptr(),
                name.as_ptr(),
                count(owned.len())?,
                header_texts.as_ptr(),
                header_names.as_ptr(),
            )
        };
        if created != 0 {
            return Err(plain(&self.status_text(created)));
        }
        // SAFETY: a live program, and an array of as many NUL-terminated strings as said.
        let status = unsafe { (self.functions.compile)(program.handle, count(option_ptrs.len())?, option_ptrs.as_ptr()) };
        let log = program.log();
        if status != 0 {
            return Err(Failure { what: self.status_text(status), log });
        }
        match program.cubin() {
            Ok(bytes) => Ok((bytes, log)),
            Err(what) => Err(Failure { what, log }),
        }
    }
}

/// An NVRTC program, destroyed on drop.
struct Program<'a> {
    nvrtc: &'a Nvrtc,
    handle: Handle,
}

impl Program<'_> {
    fn log(&self) -> String {
        let mut size = 0;
        // SAFETY: a live program and an out-pointer.
        if unsafe { (self.nvrtc.functions.log_size)(self.handle, &mut size) } != 0 || size == 0 {
            return String::new();
        }
        let mut bytes = vec![0u8; size];
        // SAFETY: the buffer has the size that NVRTC asked for.
        if unsafe { (self.nvrtc.functions.log)(self.handle, bytes.as_mut_ptr().cast()) } != 0 {
            return String::new();
        }
        String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned()
    }

    fn cubin(&self) -> std::result::Result<Vec<u8>, String> {
        let mut size = 0;
        // SAFETY: a live program and an out-pointer.
        let status = unsafe { (self.nvrtc.functions.cubin_size)(self.handle, &mut size) };
        if status != 0 {
            return Err(self.nvrtc.status_text(status));
        }
        // A virtual target (compute_90a) is a success with nothing in it.
        let mut bytes = vec![0u8; size];
        // SAFETY: the buffer has the size that NVRTC asked for.
        let status = unsafe { (self.nvrtc.functions.cubin)(self.handle, bytes.as_mut_ptr().cast()) };
        if status != 0 {
            return Err(self.nvrtc.status_text(status));
        }
        if !bytes.starts_with(crate::runtime::elf::MAGIC) {
            return Err(format!("NVRTC reported success but gave {size} bytes that are no cubin"));
        }
        Ok(bytes)
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: created by this NVRTC and destroyed once. The status is of no use here.
            unsafe { (self.nvrtc.functions.destroy)(&mut self.handle) };
        }
    }
}
