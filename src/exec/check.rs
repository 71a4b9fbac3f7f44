//! What can be checked before an execution: presence, place, size, alignment, overlap, workspace. Ascending uid, first fault wins.

use super::bindings::{Binding, Bindings};
use super::operand::Operand;
use super::overlap::{may_overlap, Strided, EMPTY};
use super::workspace::Workspace;
use crate::{Error, ErrorCode, Result};
use frostgraph_engines::launch::WORKSPACE_ALIGN;
use frostgraph_engines::Uid;
use std::collections::BTreeSet;

/// Presence first for all operands, so that a call with nothing bound names the first tensor rather than a detail of another.
fn presence(operands: &[Operand], virtuals: &BTreeSet<Uid>, bindings: &Bindings<'_>) -> Result<()> {
    for o in operands {
        if !bindings.map.contains_key(&o.uid) && o.value.is_none() {
            let what = if o.written { "a buffer to write to" } else { "a buffer to read from" };
            return Err(Error::new(ErrorCode::MissingBinding, "no binding", what).at(o.label()));
        }
    }
    for (&uid, b) in &bindings.map {
        let e =
            || Error::new(ErrorCode::MissingBinding, format!("a buffer for uid {uid}"), "a uid that the graph reads or writes");
        if virtuals.contains(&uid) {
            return Err(e().help("The tensor is virtual: mark it with Graph::output to have it written to a buffer"));
        }
        // A spare input is harmless (one set of bindings may serve several graphs); a spare output would silently stay unwritten.
        if matches!(b, Binding::Write(_)) && operands.binary_search_by_key(&uid, |o| o.uid).is_err() {
            return Err(e());
        }
    }
    Ok(())
}

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
pub(super) fn host_operands(operands: &[Operand], virtuals: &BTreeSet<Uid>, bindings: &Bindings<'_>) -> Result<()> {
    presence(operands, virtuals, bindings)?;
    for o in operands {
        let slice: &[u8] = match bindings.map.get(&o.uid) {
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
        if !slice.is_empty() && bindings.map.contains_key(&o.uid) && !base.is_multiple_of(align) {
            return Err(misaligned(o, base, align));
        }
    }
    Ok(())
}

/// Checks device bindings. Addresses are the caller's word; what follows from them is checked.
pub(super) fn device_operands(operands: &[Operand], virtuals: &BTreeSet<Uid>, bindings: &Bindings<'_>) -> Result<()> {
    presence(operands, virtuals, bindings)?;
    for o in operands {
        let b = match bindings.map.get(&o.uid) {
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
    device_overlaps(operands, bindings)
}

fn strided<'a>(o: &'a Operand, bindings: &Bindings<'_>) -> Option<Strided<'a>> {
    match bindings.map.get(&o.uid) {
        // A packed tensor may fill its buffer to the end, whatever its declared extents say.
        Some(Binding::Device(b)) if o.ragged => Some(Strided { base: b.address, bytes: b.bytes, element: b.bytes, lattice: &[] }),
        Some(Binding::Device(b)) => {
            Some(Strided { base: b.address, bytes: o.bytes, element: o.element_bytes(), lattice: &o.lattice })
        }
        Some(Binding::Read(_) | Binding::Write(_)) | None => None,
    }
}

/// Operands whose pairs are compared directly, without allocating: more than any one node has.
const FEW: usize = 64;

/// Written tensors against all others: pairs while they are few; sorted by address when they are many.
fn device_overlaps(operands: &[Operand], bindings: &Bindings<'_>) -> Result<()> {
    let clash = |i: usize, j: usize| {
        let (a, b) = (&operands[i.min(j)], &operands[i.max(j)]);
        let (w, o) = if a.written { (a, b) } else { (b, a) };
        let given = format!("memory that {} is written to and that {} occupies as well", w.label(), o.label());
        Err(Error::new(ErrorCode::BufferOverlap, given, "outputs that share no byte with another operand"))
    };
    let written = |i: usize, j: usize| operands[i].written || operands[j].written;
    if operands.len() <= FEW {
        // Looked up once each: this runs in front of every launch.
        let mut spans = [EMPTY; FEW];
        for (span, o) in spans.iter_mut().zip(operands) {
            *span = strided(o, bindings).unwrap_or(EMPTY);
        }
        for i in 0..operands.len() {
            for j in i + 1..operands.len() {
                if written(i, j) && may_overlap(spans[i], spans[j]) {
                    return clash(i, j);
                }
            }
        }
        return Ok(());
    }
    let mut spans: Vec<(Strided<'_>, usize)> =
        operands.iter().enumerate().filter_map(|(i, o)| strided(o, bindings).map(|s| (s, i))).collect();
    spans.sort_by_key(|(s, i)| (s.base, *i));
    for (n, &(a, i)) in spans.iter().enumerate() {
        for &(b, j) in spans[n + 1..].iter().take_while(|(b, _)| b.base < a.end()) {
            if written(i, j) && may_overlap(a, b) {
                return clash(i, j);
            }
        }
    }
    Ok(())
}

/// The address of a device workspace that is large enough, aligned, and apart from every operand.
pub(super) fn device_workspace(
    need: u64,
    workspace: &Workspace<'_>,
    operands: &[Operand],
    bindings: &Bindings<'_>,
) -> Result<u64> {
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
    for o in operands {
        if strided(o, bindings).is_some_and(|s| may_overlap(scratch, s)) {
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
    use crate::DType;

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
            code(device_operands(&ops, &BTreeSet::new(), &set))
        };
        assert_eq!(check(4096, 64, 4160, 64), None, "exact sizes, touching but apart");
        assert_eq!(check(4096, 63, 4160, 64), Some(ErrorCode::BufferSize));
        assert_eq!(check(4096, 64, 4168, 64), Some(ErrorCode::BufferAlignment));
        assert_eq!(check(4096, 64, 4144, 64), Some(ErrorCode::BufferOverlap));
        assert_eq!(check(4096, 64, 0, 64), Some(ErrorCode::MissingBinding));
        let data = [0u16; 32];
        let mut set = Bindings::new();
        set.read(1, &data).device(2, 4096, 64);
        assert_eq!(code(device_operands(&ops, &BTreeSet::new(), &set)), Some(ErrorCode::BindingDevice));
        let mut set = Bindings::new();
        set.device(2, 4096, 64);
        assert_eq!(code(device_operands(&ops, &BTreeSet::new(), &set)), Some(ErrorCode::MissingBinding));
    }

    #[test]
    fn a_scalar_that_the_graph_carries_need_not_be_bound() {
        let mut scale = operand(1, false, 4);
        (scale.dtype, scale.by_value) = (DType::F32, true);
        let check = |o: &Operand| code(host_operands(std::slice::from_ref(o), &BTreeSet::new(), &Bindings::new()));
        assert_eq!(check(&scale), Some(ErrorCode::MissingBinding));
        scale.value = Some(vec![0; 4]);
        assert_eq!(check(&scale), None);
        assert_eq!(code(device_operands(&[scale], &BTreeSet::new(), &Bindings::new())), None);
    }

    #[test]
    fn two_inputs_may_share_memory() {
        let ops = [operand(1, false, 64), operand(2, false, 64)];
        let mut set = Bindings::new();
        set.device(1, 4096, 64).device(2, 4096, 64);
        assert_eq!(code(device_operands(&ops, &BTreeSet::new(), &set)), None);
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
            let got = code(device_operands(&ops, &BTreeSet::new(), &set));
            assert_eq!(got, clash.then_some(ErrorCode::BufferOverlap));
        }
    }

    #[test]
    fn device_workspace_sizes_follow_field_report_125() {
        let ops = [operand(1, true, 64)];
        let mut set = Bindings::new();
        set.device(1, 1 << 20, 64);
        let check = |need, w: Workspace<'_>| code(device_workspace(need, &w, &ops, &set));
        assert_eq!(check(256, Workspace::device(4096, 256)), None, "exactly the size");
        assert_eq!(check(256, Workspace::device(4096, 255)), Some(ErrorCode::Workspace), "one byte less");
        assert_eq!(check(0, Workspace::none()), None, "nothing for nothing");
        assert_eq!(check(256, Workspace::none()), Some(ErrorCode::Workspace));
        assert_eq!(check(256, Workspace::device(4097, 512)), Some(ErrorCode::Workspace), "misaligned by one");
        assert_eq!(check(256, Workspace::device(0, 512)), Some(ErrorCode::Workspace), "null");
        assert_eq!(check(256, Workspace::device((1 << 20) - 128, 512)), Some(ErrorCode::BufferOverlap));
    }
}
