//! What can be checked before an execution: presence, place, size, alignment, overlap, workspace. Ascending uid, first fault wins.

use super::bindings::Binding;
use super::bound::Bound;
use super::operand::Operand;
use super::overlap::{may_overlap, Strided};
use super::workspace::Workspace;
use crate::{Error, ErrorCode, Result};
use frostgraph_engines::launch::WORKSPACE_ALIGN;

fn too_small(o: &Operand, given: u64) -> Error {
    let expected = format!("at least {} bytes, from the first to the last addressed element", o.bytes);
    Error::new(ErrorCode::BufferSize, format!("{given} bytes"), expected).at(o.label())
}

fn misaligned(o: &Operand, base: u64, align: u64) -> Error {
    // The remainder instead of the address: what is printed must not differ between runs (I8).
    let given = format!("a base address that is {} past a multiple of {align}", base % align);
    Error::new(ErrorCode::BufferAlignment, given, format!("a multiple of {align} bytes")).at(o.label())
}

/// Checks host bindings. Slices of safe Rust cannot overlap where one is written, so there is nothing to check about that here.
pub(super) fn host_operands(bound: &Bound<'_, '_>) -> Result<()> {
    for (o, binding) in bound.pairs() {
        let slice: &[u8] = match binding {
            None => o.value.as_deref().unwrap_or_default(),
            Some(Binding::Write(w)) => w,
            Some(Binding::Read(r)) if !o.written => r,
            Some(Binding::Read(_)) => {
                let given = "a buffer that is bound for reading";
                return Err(Error::new(ErrorCode::MissingBinding, given, "a buffer to write to: Bindings::write").at(o.label()));
            }
            Some(Binding::Device(_)) => {
                return Err(Error::new(ErrorCode::BindingDevice, "device memory for a CPU plan", "a host slice").at(o.label()));
            }
        };
        if (slice.len() as u64) < o.bytes {
            return Err(too_small(o, slice.len() as u64));
        }
        // A scalar that the graph carries is copied by the engine; everything else is viewed as elements in place.
        let (base, align) = (slice.as_ptr() as u64, o.element_bytes());
        if !slice.is_empty() && binding.is_some() && !base.is_multiple_of(align) {
            return Err(misaligned(o, base, align));
        }
    }
    Ok(())
}

/// Room for sorting operands by address; an executable keeps one, so that a repeated execution allocates nothing (I5).
pub(super) type ByAddress = Vec<(u64, usize)>;

/// Checks device bindings. Addresses are the caller's word; what follows from them is checked.
pub(super) fn device_operands(bound: &Bound<'_, '_>, room: &mut ByAddress) -> Result<()> {
    for (o, binding) in bound.pairs() {
        let b = match binding {
            Some(Binding::Device(b)) => b,
            // A scalar that goes by value stays on the host.
            Some(Binding::Read(_) | Binding::Write(_)) | None if o.by_value => continue,
            Some(Binding::Read(_) | Binding::Write(_)) | None => {
                return Err(Error::new(
                    ErrorCode::BindingDevice,
                    "a host slice for a CUDA plan",
                    "device memory: Bindings::device",
                )
                .at(o.label()));
            }
        };
        if b.bytes < o.bytes {
            return Err(too_small(o, b.bytes));
        }
        let align = o.alignment.max(o.element_bytes());
        if !b.address.is_multiple_of(align) {
            return Err(misaligned(o, b.address, align));
        }
        if b.address == 0 && b.bytes.max(o.bytes) > 0 {
            return Err(Error::new(ErrorCode::MissingBinding, "a null device address", "device memory").at(o.label()));
        }
    }
    device_overlaps(bound, room)
}

fn strided<'a>(o: &'a Operand, binding: Option<&Binding<'_>>) -> Option<Strided<'a>> {
    match binding {
        // A packed tensor may fill its buffer to the end, whatever its declared extents say.
        Some(Binding::Device(b)) if o.ragged => Some(Strided { base: b.address, bytes: b.bytes, element: b.bytes, lattice: &[] }),
        Some(Binding::Device(b)) => {
            Some(Strided { base: b.address, bytes: o.bytes, element: o.element_bytes(), lattice: &o.lattice })
        }
        Some(Binding::Read(_) | Binding::Write(_)) | None => None,
    }
}

fn clash(a: &Operand, b: &Operand) -> Error {
    let (w, o) = if a.written { (a, b) } else { (b, a) };
    let given = format!("memory that {} is written to and that {} occupies as well", w.label(), o.label());
    Error::new(ErrorCode::BufferOverlap, given, "outputs that share no byte with another operand")
}

/// Written tensors that are compared with every other operand directly.
const FEW_WRITTEN: usize = 16;

/// Written tensors against all others: pairs while the written ones are few, as in any one node; sorted by address when they are many.
fn device_overlaps(bound: &Bound<'_, '_>, room: &mut ByAddress) -> Result<()> {
    let spans = || bound.pairs().enumerate().filter_map(|(i, (o, b))| strided(o, b).map(|s| (i, o, s)));
    if bound.operands.iter().filter(|o| o.written).count() <= FEW_WRITTEN {
        for (i, w, a) in spans().filter(|(_, o, _)| o.written) {
            // Two written tensors meet once, at the first of them.
            let other = spans().filter(|&(j, o, _)| j != i && (j > i || !o.written));
            if let Some((j, o, _)) = { other }.find(|&(_, _, b)| may_overlap(a, b)) {
                return Err(if i < j { clash(w, o) } else { clash(o, w) });
            }
        }
        return Ok(());
    }
    room.clear();
    room.extend(spans().map(|(i, _, s)| (s.base, i)));
    // Equal addresses keep the order of uids. A stable sort would allocate.
    room.sort_unstable();
    let span = |i: usize| {
        let (o, binding) = bound.pair(i);
        strided(o, binding).map(|s| (s, o))
    };
    for (n, &(_, i)) in room.iter().enumerate() {
        let Some((a, x)) = span(i) else { continue };
        for &(_, j) in room[n + 1..].iter().take_while(|(base, _)| *base < a.end()) {
            let Some((b, y)) = span(j) else { continue };
            if (x.written || y.written) && may_overlap(a, b) {
                return Err(if i < j { clash(x, y) } else { clash(y, x) });
            }
        }
    }
    Ok(())
}

/// The address of a device workspace that is large enough, aligned, and apart from every operand.
pub(super) fn device_workspace(need: u64, workspace: &Workspace<'_>, bound: &Bound<'_, '_>) -> Result<u64> {
    let (address, bytes) = match workspace {
        _ if need == 0 => return Ok(0),
        Workspace::None => return Err(workspace_error("no workspace".to_owned(), need)),
        Workspace::Host(_) => {
            return Err(Error::new(
                ErrorCode::BindingDevice,
                "a host workspace for a CUDA plan",
                "a device workspace of the caller",
            ));
        }
        Workspace::Device { address, bytes } => (*address, *bytes),
    };
    if bytes < need || address == 0 {
        return Err(workspace_error(format!("a workspace of {} bytes", if address == 0 { 0 } else { bytes }), need));
    }
    let off = address % WORKSPACE_ALIGN;
    if off != 0 {
        return Err(workspace_error(format!("a workspace whose base is {off} past a multiple of {WORKSPACE_ALIGN}"), need));
    }
    let scratch = Strided { base: address, bytes: need, element: need, lattice: &[] };
    for (o, binding) in bound.pairs() {
        if strided(o, binding).is_some_and(|s| may_overlap(scratch, s)) {
            let given = format!("a workspace that shares memory with {}", o.label());
            return Err(Error::new(ErrorCode::BufferOverlap, given, "a workspace apart from every operand"));
        }
    }
    Ok(address)
}

fn workspace_error(given: String, need: u64) -> Error {
    Error::new(ErrorCode::Workspace, given, format!("{need} bytes, base aligned to {WORKSPACE_ALIGN}"))
}

/// Checks a host workspace. A plan that needs nothing takes anything.
pub(super) fn host_workspace(need: u64, workspace: &Workspace<'_>) -> Result<()> {
    match workspace {
        _ if need == 0 => Ok(()),
        Workspace::None => Err(workspace_error("no workspace".to_owned(), need)),
        Workspace::Device { .. } => {
            Err(Error::new(ErrorCode::BindingDevice, "a device workspace for a CPU plan", "a host workspace of the caller"))
        }
        Workspace::Host(bytes) => {
            if (bytes.len() as u64) < need {
                return Err(workspace_error(format!("a workspace of {} bytes", bytes.len()), need));
            }
            let off = bytes.as_ptr() as u64 % WORKSPACE_ALIGN;
            if off != 0 {
                return Err(workspace_error(
                    format!("a workspace whose base is {off} past a multiple of {WORKSPACE_ALIGN}"),
                    need,
                ));
            }
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::Bindings;
    use crate::DType;
    use frostgraph_engines::Uid;
    use std::collections::BTreeMap;

    fn device_operands(operands: &[Operand], bindings: &Bindings<'_>) -> Result<()> {
        super::device_operands(&Bound::new(operands, &BTreeMap::new(), bindings)?, &mut ByAddress::new())
    }

    fn host_operands(operands: &[Operand], bindings: &Bindings<'_>) -> Result<()> {
        super::host_operands(&Bound::new(operands, &BTreeMap::new(), bindings)?)
    }

    fn operand(uid: Uid, written: bool, bytes: u64) -> Operand {
        Operand {
            uid,
            name: format!("t{uid}"),
            written,
            dtype: DType::BF16,
            bytes,
            declared_bytes: bytes,
            alignment: 16,
            ragged: false,
            lattice: vec![(bytes / 2, 2)],
            value: None,
            by_value: false,
        }
    }

    fn code(r: Result<impl Sized>) -> Option<ErrorCode> {
        r.err().map(|e| e.code)
    }

    #[test]
    fn device_bindings_are_checked_one_by_one() {
        let ops = [operand(1, false, 64), operand(2, true, 64)];
        let check = |a: u64, n: u64, b: u64, m: u64| {
            let mut set = Bindings::new();
            set.device(1, a, n).device(2, b, m);
            code(device_operands(&ops, &set))
        };
        assert_eq!(check(4096, 64, 4160, 64), None, "exact sizes, touching but apart");
        assert_eq!(check(4096, 63, 4160, 64), Some(ErrorCode::BufferSize));
        assert_eq!(check(4096, 64, 4168, 64), Some(ErrorCode::BufferAlignment));
        assert_eq!(check(4096, 64, 4144, 64), Some(ErrorCode::BufferOverlap));
        assert_eq!(check(4096, 64, 0, 64), Some(ErrorCode::MissingBinding));
        let data = [0u16; 32];
        let mut set = Bindings::new();
        set.read(1, &data).device(2, 4096, 64);
        assert_eq!(code(device_operands(&ops, &set)), Some(ErrorCode::BindingDevice));
        let mut set = Bindings::new();
        set.device(2, 4096, 64);
        assert_eq!(code(device_operands(&ops, &set)), Some(ErrorCode::MissingBinding));
    }

    #[test]
    fn a_scalar_that_the_graph_carries_need_not_be_bound() {
        let mut scale = operand(1, false, 4);
        (scale.dtype, scale.by_value) = (DType::F32, true);
        let check = |o: &Operand| code(host_operands(std::slice::from_ref(o), &Bindings::new()));
        assert_eq!(check(&scale), Some(ErrorCode::MissingBinding));
        scale.value = Some(vec![0; 4]);
        assert_eq!(check(&scale), None);
        assert_eq!(code(device_operands(&[scale], &Bindings::new())), None);
    }

    #[test]
    fn two_inputs_may_share_memory() {
        let ops = [operand(1, false, 64), operand(2, false, 64)];
        let mut set = Bindings::new();
        set.device(1, 4096, 64).device(2, 4096, 64);
        assert_eq!(code(device_operands(&ops, &set)), None);
    }

    #[test]
    fn many_operands_are_checked_by_sorting_with_the_same_answer() {
        for clash in [false, true] {
            let ops: Vec<Operand> = (1..=100).map(|u| operand(u, u % 2 == 0, 64)).collect();
            let mut set = Bindings::new();
            for o in &ops {
                let at = 4096 + 64 * (101 - o.uid as u64);
                set.device(o.uid, if clash && o.uid == 50 { at + 32 } else { at }, 64);
            }
            let got = code(device_operands(&ops, &set));
            assert_eq!(got, clash.then_some(ErrorCode::BufferOverlap));
        }
    }

    /// I5 for graphs of many nodes as well: with room from the executable, checking allocates nothing.
    #[cfg(feature = "cuda")]
    #[test]
    fn checking_many_operands_allocates_nothing_i5() {
        let ops: Vec<Operand> = (1..=100).map(|u| operand(u, u % 2 == 0, 64)).collect();
        let mut set = Bindings::new();
        ops.iter().for_each(|o| {
            set.device(o.uid, 4096 * o.uid as u64, 64);
        });
        let (virtuals, mut room) = (BTreeMap::new(), ByAddress::with_capacity(ops.len()));
        let before = crate::runtime::test_util::allocations();
        let bound = Bound::new(&ops, &virtuals, &set).unwrap();
        super::device_operands(&bound, &mut room).unwrap();
        device_workspace(64, &Workspace::device(1 << 30, 64), &bound).unwrap();
        assert!(bound.get(100).is_some() && bound.get(101).is_none());
        assert_eq!(crate::runtime::test_util::allocations() - before, 0);
    }

    #[test]
    fn device_workspace_sizes_follow_field_report_125() {
        let ops = [operand(1, true, 64)];
        let mut set = Bindings::new();
        set.device(1, 1 << 20, 64);
        let check = |need, w: Workspace<'_>| {
            code(device_workspace(need, &w, &Bound::new(&ops, &BTreeMap::new(), &set).expect("all bound")))
        };
        assert_eq!(check(256, Workspace::device(4096, 256)), None, "exactly the size");
        assert_eq!(check(256, Workspace::device(4096, 255)), Some(ErrorCode::Workspace), "one byte less");
        assert_eq!(check(0, Workspace::none()), None, "nothing for nothing");
        assert_eq!(check(256, Workspace::none()), Some(ErrorCode::Workspace));
        assert_eq!(check(256, Workspace::device(4097, 512)), Some(ErrorCode::Workspace), "misaligned by one");
        assert_eq!(check(256, Workspace::device(0, 512)), Some(ErrorCode::Workspace), "null");
        assert_eq!(check(256, Workspace::device((1 << 20) - 128, 512)), Some(ErrorCode::BufferOverlap));
    }
}
