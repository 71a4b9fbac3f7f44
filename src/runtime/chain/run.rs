//! One execution of a chain: ranges are looked up and checked, maps encoded where buffers changed, launches queued.

use super::{Chain, MapBase, PreparedMap, Segment, Sink, Source, MAX_ARGS, MAX_MAPS, MAX_OPERANDS, NO_MAP};
use crate::engines::launch::WORKSPACE_ALIGN;
use crate::engines::Uid;
use crate::runtime::tensor_map::MapRequest;
use crate::runtime::DeviceRange;
use crate::{Error, ErrorCode, Result};
use std::ffi::c_void;

/// Operand ranges of one segment; those behind its operands stay empty.
type Ranges = [DeviceRange; MAX_OPERANDS];

impl Chain {
    /// Queues every launch. Allocates nothing, waits for nothing, reads nothing back; several threads may run one chain at once.
    ///
    /// # Errors
    /// FG4001 for a missing or null operand, FG4002 to FG4005 for ranges that cannot serve, and what the sink reports. Launches that
    /// came before a failing one stay queued.
    pub(crate) fn run<S: Sink>(
        &self,
        sink: &S,
        operand: &dyn Fn(Uid) -> Option<DeviceRange>,
        workspace: DeviceRange,
    ) -> Result<()> {
        if let [only] = &self.segments[..] {
            let ranges = only.ranges(operand)?;
            self.check(&only.operands, &ranges, workspace)?;
            return self.queue(only, sink, &ranges, workspace.address);
        }
        // All segments are looked at before the first one is queued; looking up twice is cheaper than holding them all.
        for segment in &self.segments {
            let ranges = segment.ranges(operand)?;
            self.check(&segment.operands, &ranges, workspace)?;
            segment.maps.iter().try_for_each(|map| segment.request(map, &ranges, workspace.address).map(|_| ()))?;
        }
        self.segments.iter().try_for_each(|s| self.queue(s, sink, &s.ranges(operand)?, workspace.address))
    }

    fn check(&self, operands: &[Uid], ranges: &Ranges, workspace: DeviceRange) -> Result<()> {
        let need = self.workspace_bytes;
        let complain = |given: String| {
            let expected = format!("{need} bytes, base aligned to {WORKSPACE_ALIGN}");
            Err(Error::new(ErrorCode::Workspace, given, expected))
        };
        if need == 0 {
            return Ok(());
        }
        if workspace.address == 0 || workspace.bytes < need {
            return complain(format!("a workspace of {} bytes", if workspace.address == 0 { 0 } else { workspace.bytes }));
        }
        let off = workspace.address % WORKSPACE_ALIGN;
        if off != 0 {
            return complain(format!("a workspace whose base is {off} past a multiple of {WORKSPACE_ALIGN}"));
        }
        let (low, high) = self.scratch;
        let scratch = DeviceRange { address: workspace.address + low, bytes: high - low };
        match operands.iter().zip(ranges).find(|(_, r)| r.overlaps(scratch)) {
            Some((uid, _)) => {
                let given = format!("a workspace that shares memory with uid {uid}");
                Err(Error::new(ErrorCode::BufferOverlap, given, "a workspace apart from every operand"))
            }
            None => Ok(()),
        }
    }

    /// Queues the launches of one segment.
    fn queue<S: Sink>(&self, segment: &Segment, sink: &S, ranges: &Ranges, workspace: u64) -> Result<()> {
        let Segment { maps, .. } = segment;
        // One thread at a time keeps the last maps; another one that runs meanwhile encodes its own.
        let mut guard = if maps.is_empty() { None } else { segment.last.try_lock().ok() };
        if let Some(last) = guard.as_deref_mut() {
            if last.bound.as_ref().is_none_or(|(r, w)| r != ranges || *w != workspace) {
                last.bound = None;
                for (slot, map) in last.maps.iter_mut().zip(maps) {
                    *slot = sink.encode(&segment.request(map, ranges, workspace)?)?;
                }
                last.bound = Some((*ranges, workspace));
            }
        }
        let kept = guard.as_deref().map(|last| last.maps.as_slice());
        let mut own = if kept.is_none() && !maps.is_empty() { Some([NO_MAP; MAX_MAPS]) } else { None };
        let mut addresses = [0u64; MAX_ARGS];
        let mut params = [std::ptr::null_mut::<c_void>(); MAX_ARGS];
        for (index, launch) in segment.launches.iter().enumerate() {
            let values = &self.values[launch.values.clone()];
            // The driver only reads through these pointers, whatever their type says.
            for (param, value) in params.iter_mut().zip(values) {
                *param = std::ptr::from_ref(value).cast_mut().cast();
            }
            let mut own_used = 0;
            for &(i, source) in &launch.params {
                match source {
                    Source::NoMap => params[i] = std::ptr::from_ref(&NO_MAP).cast_mut().cast(),
                    Source::Operand(o) => addresses[i] = ranges[o].address,
                    Source::Workspace(offset) => addresses[i] = workspace + offset,
                    Source::Map(m) => match (kept, &mut own) {
                        (None, Some(own)) => {
                            own[own_used] = sink.encode(&segment.request(&maps[m], ranges, workspace)?)?;
                            own_used += 1;
                        }
                        (Some(maps), _) => params[i] = std::ptr::from_ref(&maps[m]).cast_mut().cast(),
                        (None, None) => {}
                    },
                }
            }
            // Pointers into the local arrays are taken after the last write to them.
            let mut fresh = own.iter().flatten();
            for &(i, source) in &launch.params {
                match source {
                    Source::Operand(_) | Source::Workspace(_) => params[i] = std::ptr::from_ref(&addresses[i]).cast_mut().cast(),
                    Source::Map(_) => {
                        if let Some(map) = fresh.next() {
                            params[i] = std::ptr::from_ref(map).cast_mut().cast();
                        }
                    }
                    Source::NoMap => {}
                }
            }
            sink.launch(segment.first + index, &mut params[..values.len()])?;
        }
        Ok(())
    }
}

impl Segment {
    fn ranges(&self, operand: &dyn Fn(Uid) -> Option<DeviceRange>) -> Result<Ranges> {
        let mut ranges = [DeviceRange::default(); MAX_OPERANDS];
        for (slot, &uid) in ranges.iter_mut().zip(&self.operands) {
            *slot = operand(uid).filter(|r| r.address != 0).ok_or_else(|| {
                Error::new(ErrorCode::MissingBinding, "no device memory", "a device address").at(format!("uid {uid}"))
            })?;
        }
        Ok(ranges)
    }

    fn request(&self, map: &PreparedMap, ranges: &Ranges, workspace: u64) -> Result<MapRequest> {
        let range = match map.base {
            MapBase::Operand(i) => ranges[i],
            MapBase::Workspace(offset, bytes) => DeviceRange { address: workspace + offset, bytes },
        };
        map.request.bind(range).map_err(|e| match map.base {
            MapBase::Operand(i) => e.at(format!("uid {}", self.operands[i])),
            MapBase::Workspace(..) => e.at("workspace"),
        })
    }
}
