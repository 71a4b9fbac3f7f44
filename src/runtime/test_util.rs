//! What the runtime's own tests share.

use super::{Nvrtc, SearchPath};
use crate::engines::KernelSpec;

/// NVRTC for `cc`, or `None` after saying loudly how to get it. In CI a missing NVRTC fails the test: a skip there hides everything.
pub(crate) fn nvrtc_or_skip(cc: u32) -> Option<Nvrtc> {
    match Nvrtc::find(&SearchPath::from_env(), cc) {
        Ok(found) => Some(found),
        Err(e) => {
            assert!(std::env::var_os("CI").is_none(), "CI must have NVRTC: {e}");
            eprintln!("SKIPPED, NOT TESTED: NVRTC is missing.\n{e}");
            None
        }
    }
}

/// Counts this thread's allocations; the test binary's allocator.
struct Counting;

thread_local! {
    static ALLOCATIONS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

// SAFETY: forwards to the system allocator; counting touches a thread-local cell that needs no allocation.
unsafe impl std::alloc::GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: std::alloc::Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { std::alloc::System.alloc(layout) }
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: std::alloc::Layout) {
        // SAFETY: as above.
        unsafe { std::alloc::System.dealloc(p, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Allocations of this thread so far.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.with(std::cell::Cell::get)
}

/// A kernel that no source backs; for caches and packing.
pub(crate) fn spec(entry: &'static str) -> KernelSpec {
    KernelSpec { source: "test/k.cu", entry, defines: vec![("N", 1)] }
}

/// The smallest image with a kernel in it: section names, the kernel's attributes, its code.
pub(crate) fn image(entry: &str, params: &[(u16, u32)], code: &[u8]) -> Vec<u8> {
    let mut attributes = Vec::new();
    for (ordinal, (offset, size)) in params.iter().enumerate() {
        attributes.extend_from_slice(&[4, 0x17, 12, 0, 0, 0, 0, 0]);
        attributes.extend_from_slice(&(ordinal as u16).to_le_bytes());
        attributes.extend_from_slice(&offset.to_le_bytes());
        attributes.extend_from_slice(&(size << 18).to_le_bytes());
    }
    let names = format!("\0.shstrtab\0.nv.info.{entry}\0.text.{entry}\0");
    let at = |name: &str| names.find(&format!("\0{name}\0")).unwrap() as u32 + 1;
    let sections = [
        (0, 0, names.as_bytes().to_vec()),
        (at(".shstrtab"), 0, names.as_bytes().to_vec()),
        (at(&format!(".nv.info.{entry}")), 0, attributes),
        (at(&format!(".text.{entry}")), 40u32 << 24, code.to_vec()),
    ];
    let mut out = vec![0u8; 64];
    out[..4].copy_from_slice(super::elf::MAGIC);
    let mut headers = Vec::new();
    for (name, info, data) in &sections {
        let mut h = [0u8; 64];
        h[..4].copy_from_slice(&name.to_le_bytes());
        h[4] = 1;
        h[24..32].copy_from_slice(&(out.len() as u64).to_le_bytes());
        h[32..40].copy_from_slice(&(data.len() as u64).to_le_bytes());
        h[44..48].copy_from_slice(&info.to_le_bytes());
        headers.extend_from_slice(&h);
        out.extend_from_slice(data);
    }
    let table = out.len() as u64;
    out[0x28..0x30].copy_from_slice(&table.to_le_bytes());
    out[0x3a..0x40].copy_from_slice(&[64, 0, sections.len() as u8, 0, 1, 0]);
    out.extend_from_slice(&headers);
    out
}
