//! What can be checked before an execution: presence, place, size, alignment, overlap, workspace. Ascending uid, first fault wins.

#[cfg(test)]
mod tests;

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
