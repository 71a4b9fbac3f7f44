//! Reads what a cubin says about its kernels: parameter list, registers, shared memory, thread limit, constants.
//!
//! A cubin is an ELF file; `.nv.info.<kernel>` holds tagged attributes. With them a lowering's argument list is checked against the kernel
//! that was really compiled, with no GPU, before a launch could pass garbage. Every access is bounds-checked: the bytes may come from a file.

/// Kernel parameter as compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Param {
    /// Byte offset in the parameter block.
    pub offset: u32,
    /// Size in bytes.
    pub size: u32,
}

/// What the ELF file says about one kernel.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KernelInfo {
    /// Parameters in order.
    pub params: Vec<Param>,
    /// Registers per thread at launch.
    pub registers: u32,
    /// Static shared memory in bytes, the driver's reserved kilobyte not counted.
    pub static_smem: u32,
    /// Largest block, when the source declares launch bounds.
    pub max_threads: Option<u32>,
}

/// ELF magic: the test for a real cubin (a `compute_XX` target "succeeds" with an empty one).
pub(crate) const MAGIC: &[u8; 4] = b"\x7fELF";

const PARAM_INFO: u8 = 0x17;
const MAX_THREADS: u8 = 0x05;
const REGISTERS: u8 = 0x2f;

struct Section<'a> {
    name: &'a str,
    info: u32,
    size: u64,
    data: &'a [u8],
}

struct Symbol<'a> {
    name: Option<&'a str>,
    section: usize,
    value: u64,
}

struct Elf<'a> {
    sections: Vec<Section<'a>>,
}

fn u16_at(b: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(b.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

fn u32_at(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(b.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn u64_at(b: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(b.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

fn text_at(b: &[u8], at: usize) -> Option<&str> {
    let tail = b.get(at..)?;
    std::str::from_utf8(&tail[..tail.iter().position(|&c| c == 0)?]).ok()
}

/// File bytes of the section with this header; sections without file contents (NOBITS, type 8) have none.
fn contents<'a>(bytes: &'a [u8], header: &[u8]) -> Option<&'a [u8]> {
    if u32_at(header, 4)? == 8 {
        return Some(&[]);
    }
    let start = usize::try_from(u64_at(header, 24)?).ok()?;
    bytes.get(start..start.checked_add(usize::try_from(u64_at(header, 32)?).ok()?)?)
}

impl<'a> Elf<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Elf<'a>> {
        if !bytes.starts_with(MAGIC) {
            return None;
        }
        let table = usize::try_from(u64_at(bytes, 0x28)?).ok()?;
        let (entry, count, names) = (u16_at(bytes, 0x3a)? as usize, u16_at(bytes, 0x3c)? as usize, u16_at(bytes, 0x3e)? as usize);
        if entry < 64 {
            return None;
        }
        let header = |i: usize| bytes.get(table.checked_add(i.checked_mul(entry)?)?..)?.get(..64);
        let strings = contents(bytes, header(names)?)?;
        let mut sections = Vec::with_capacity(count);
        for i in 0..count {
            let h = header(i)?;
            let name = text_at(strings, u32_at(h, 0)? as usize)?;
            sections.push(Section { name, info: u32_at(h, 44)?, size: u64_at(h, 32)?, data: contents(bytes, h)? });
        }
        Some(Elf { sections })
    }

    /// The symbol table; empty in a file without one.
    fn symbols(&self) -> Option<impl Iterator<Item = Symbol<'a>>> {
        let table = self.section(".symtab").map_or(&[][..], |s| s.data);
        let names = self.section(".strtab").map_or(&[][..], |s| s.data);
        table.len().is_multiple_of(24).then(|| {
            table.chunks_exact(24).map(|s| Symbol {
                name: u32_at(s, 0).and_then(|at| text_at(names, at as usize)),
                section: u16_at(s, 6).unwrap_or(0) as usize,
                value: u64_at(s, 8).unwrap_or(0),
            })
        })
    }

    fn section(&self, name: &str) -> Option<&Section<'a>> {
        self.sections.iter().find(|s| s.name == name)
    }
}

/// The attributes with a payload (format 4: a 16-bit length, then that many bytes); the others keep their value in the header.
fn tagged(attributes: &[u8]) -> Option<Vec<(u8, &[u8])>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at + 4 <= attributes.len() {
        let (format, tag, length) = (attributes[at], attributes[at + 1], u16_at(attributes, at + 2)? as usize);
        at += 4;
        if format == 4 {
            found.push((tag, attributes.get(at..at + length)?));
            at += length;
        }
    }
    Some(found)
}

/// Instructions of a kernel of `cubin`; `None` when it is no well-formed cubin or lacks the kernel.
pub fn machine_code<'a>(cubin: &'a [u8], entry: &str) -> Option<&'a [u8]> {
    Some(Elf::parse(cubin)?.section(&format!(".text.{entry}"))?.data)
}

/// What `cubin` says about `entry`; `None` when it is no well-formed cubin or lacks the kernel.
pub fn kernel_info(cubin: &[u8], entry: &str) -> Option<KernelInfo> {
    let elf = Elf::parse(cubin)?;
    let attributes = elf.section(&format!(".nv.info.{entry}"))?.data;
    let text = elf.section(&format!(".text.{entry}"))?;
    let static_smem = elf.section(&format!(".nv.shared.{entry}")).map_or(0, |s| s.size);
    let mut info = KernelInfo {
        // Older files keep the register count in the upper byte of the code section's info word.
        registers: text.info >> 24,
        static_smem: u32::try_from(static_smem).ok()?,
        ..KernelInfo::default()
    };
    let mut params: Vec<(u16, Param)> = Vec::new();
    for (tag, data) in tagged(attributes)? {
        if tag == PARAM_INFO {
            let size = u32_at(data, 8)? >> 18;
            params.push((u16_at(data, 4)?, Param { offset: u16_at(data, 6)? as u32, size }));
        } else if tag == MAX_THREADS {
            info.max_threads = Some(u32_at(data, 0)?.saturating_mul(u32_at(data, 4)?).saturating_mul(u32_at(data, 8)?));
        }
    }
    // Newer files keep register counts of all kernels in one list, by symbol.
    if let (Some(common), Some(symbol)) = (elf.section(".nv.info"), elf.symbols()?.position(|s| s.name == Some(entry))) {
        for (tag, data) in tagged(common.data)? {
            if tag == REGISTERS && u32_at(data, 0)? as usize == symbol {
                info.registers = u32_at(data, 4)?;
            }
        }
    }
    params.sort_by_key(|(ordinal, _)| *ordinal);
    info.params = params.into_iter().map(|(_, p)| p).collect();
    // The driver's reserved first kilobyte of shared memory is counted in the section on sm_90 and later.
    if elf.section(".nv.shared.reserved.0").is_some() {
        info.static_smem = info.static_smem.saturating_sub(1024);
    }
    Some(info)
}

/// The initial value of a 32-bit device constant, such as a kernel's own shared-memory total.
pub fn constant_u32(cubin: &[u8], name: &str) -> Option<u32> {
    let elf = Elf::parse(cubin)?;
    let symbol = elf.symbols()?.find(|s| s.name == Some(name))?;
    let section = elf.sections.get(symbol.section)?;
    // A zero-initialised variable has no bytes in the file.
    if section.data.is_empty() {
        return Some(0);
    }
    u32_at(section.data, usize::try_from(symbol.value).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::test_util::image;

    #[test]
    fn reads_parameters_and_registers() {
        let info = kernel_info(&image("k", &[(0x30, 128), (0xb0, 8), (0xb8, 4)], b"code"), "k").unwrap();
        let p = |offset, size| Param { offset, size };
        assert_eq!(info.params, [p(0x30, 128), p(0xb0, 8), p(0xb8, 4)]);
        assert_eq!((info.registers, info.static_smem, info.max_threads), (40, 0, None));
        assert_eq!(kernel_info(&image("k", &[], b""), "other"), None);
    }

    #[test]
    fn damaged_files_are_refused_without_a_panic() {
        assert_eq!(kernel_info(b"", "k"), None);
        let good = image("k", &[(0, 8)], b"code");
        for at in 0..good.len() {
            for value in [0x00, 0x7f, 0xff] {
                let mut bad = good.clone();
                bad[at] = value;
                let _ = (kernel_info(&bad, "k"), constant_u32(&bad, "k"));
            }
            assert_eq!(kernel_info(&good[..at], "k"), None, "cut at {at}");
        }
        let mut junk = vec![0xffu8; 256];
        junk[..4].copy_from_slice(MAGIC);
        assert_eq!(kernel_info(&junk, "k"), None);
        assert_eq!(constant_u32(&junk, "k"), None);
    }
}
