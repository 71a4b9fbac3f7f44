//! Reads the assembler's verbose log: registers, spills, stack and shared memory of each kernel, and its warnings.

/// Resources of one kernel as the assembler reports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Registers per thread.
    pub registers: u32,
    /// Bytes stored to local memory because registers ran out.
    pub spill_stores: u32,
    /// Bytes loaded back.
    pub spill_loads: u32,
    /// Stack frame in bytes (arrays that are indexed at run time).
    pub stack: u32,
    /// Static shared memory in bytes.
    pub static_smem: u32,
}

/// The number before `unit` in a comma-separated list such as `Used 40 registers, 400 bytes smem`.
fn number_before(line: &str, unit: &str) -> Option<u32> {
    line.split(',').find_map(|part| part.trim().strip_suffix(unit)?.split_whitespace().last()?.parse().ok())
}

/// Usage of `entry` in a log made with `--ptxas-options=-v`; `None` when the log does not mention the kernel.
pub fn usage_of(log: &str, entry: &str) -> Option<Usage> {
    let start = format!("Compiling entry function '{entry}' for");
    let mut lines = log.lines().skip_while(|l| !l.contains(&start)).skip(1);
    let mut usage = Usage::default();
    for line in lines.by_ref() {
        if line.contains("Compiling entry function") {
            break;
        }
        if line.contains("bytes stack frame") {
            // Functions that were not inlined have a line of their own: their spills count too.
            let body = line.rsplit("     ").next().unwrap_or(line);
            usage.stack = usage.stack.max(number_before(body, "bytes stack frame")?);
            usage.spill_stores += number_before(body, "bytes spill stores")?;
            usage.spill_loads += number_before(body, "bytes spill loads")?;
        } else if line.contains(": Used ") {
            usage.registers = number_before(line.rsplit(": ").next()?, "registers")?;
            usage.static_smem = number_before(line, "bytes smem").unwrap_or(0);
            return Some(usage);
        }
    }
    None
}

/// Lines that a clean build does not have: warnings, and the assembler's numbered notes (C7510 and its kin: serialised matrix
/// instructions, ignored register requests), which it prints as mere information.
pub fn warnings(log: &str) -> Vec<String> {
    let numbered = |line: &str| {
        line.split("(C7").skip(1).any(|rest| rest.as_bytes().first().is_some_and(u8::is_ascii_digit)) || line.contains("C75")
    };
    log.lines().filter(|l| l.contains("warning") || numbered(l)).map(|l| l.trim().to_owned()).collect()
}

/// The log without what differs between two identical compilations.
pub fn stable_log(log: &str) -> String {
    let kept = log.trim_end_matches('\0').lines().filter(|l| !l.contains("Compile time =")).map(str::trim_end);
    kept.collect::<Vec<_>>().join("\n").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "ptxas info    : 4 bytes gmem\n\
        ptxas info    : Compiling entry function 'first' for 'sm_90a'\n\
        ptxas info    : Function properties for first\n\
        ptxas         .     256 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n\
        ptxas info    : Used 124 registers, used 1 barriers, 256 bytes cumulative stack size, 400 bytes smem\n\
        ptxas info    : Compile time = 14.359 ms\n\
        ptxas info    : Compiling entry function 'second' for 'sm_90a'\n\
        ptxas info    : Function properties for second\n    \
        24 bytes stack frame, 16 bytes spill stores, 20 bytes spill loads\n\
        ptxas info    : Used 255 registers, used 3 barriers\n";

    #[test]
    fn each_entry_has_its_own_figures() {
        assert_eq!(usage_of(LOG, "first"), Some(Usage { registers: 124, stack: 256, static_smem: 400, ..Usage::default() }));
        assert_eq!(
            usage_of(LOG, "second"),
            Some(Usage { registers: 255, stack: 24, spill_stores: 16, spill_loads: 20, static_smem: 0 })
        );
        assert_eq!(usage_of(LOG, "third"), None);
    }

    /// kernels.md §3.6: the serialisation notes are information lines, and must not pass as clean.
    #[test]
    fn numbered_notes_are_warnings() {
        let log = "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized\n\
                   ptxas info    : Used 10 registers\nk.cu(3): warning #177-D: variable was declared but never referenced\n";
        assert_eq!(warnings(log).len(), 2);
        assert!(warnings(LOG).is_empty());
    }

    #[test]
    fn stored_logs_are_stable() {
        assert!(!stable_log(LOG).contains("Compile time"));
        assert_eq!(stable_log("a \n\n\0"), "a");
    }
}
