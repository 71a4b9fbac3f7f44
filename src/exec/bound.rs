//! The caller's bindings beside an executable's operands: one walk over two lists that are both ascending by uid.
//!
//! This runs in front of every launch, so whatever a check needs of a binding is looked up once, here, and nothing is allocated.

use super::bindings::{Binding, Bindings};
use super::operand::Operand;
use crate::{Error, ErrorCode, Result};
use frostgraph_engines::Uid;
use std::collections::BTreeMap;

/// Bindings that are kept once found: as many as any one node has. A graph of many nodes walks the two lists again instead.
const FEW: usize = 64;

/// Offset and bytes in the workspace of tensors that the graph keeps for itself.
pub(super) type Virtuals = BTreeMap<Uid, (u64, u64)>;

/// For every operand its binding, if there is one.
pub(super) struct Bound<'b, 'a> {
    pub operands: &'b [Operand],
    given: &'b BTreeMap<Uid, Binding<'a>>,
    /// Filled when there are no more operands than that.
    few: [Option<&'b Binding<'a>>; FEW],
}

impl<'b, 'a> Bound<'b, 'a> {
    /// Presence first for all operands, so that a call with nothing bound names the first tensor rather than a detail of another.
    pub fn new(operands: &'b [Operand], virtuals: &Virtuals, bindings: &'b Bindings<'a>) -> Result<Bound<'b, 'a>> {
        let mut bound = Bound { operands, given: &bindings.map, few: [None; FEW] };
        let mut given = bindings.map.iter().peekable();
        let mut spare = false;
        for (i, o) in operands.iter().enumerate() {
            while given.next_if(|(uid, _)| **uid < o.uid).is_some() {
                spare = true;
            }
            let found = given.next_if(|(uid, _)| **uid == o.uid).map(|(_, b)| b);
            if let Some(slot) = bound.few.get_mut(i) {
                *slot = found;
            }
            if found.is_none() && o.value.is_none() {
                let what = if o.written { "a buffer to write to" } else { "a buffer to read from" };
                return Err(Error::new(ErrorCode::MissingBinding, "no binding", what).at(o.label()));
            }
        }
        if spare || given.next().is_some() {
            spares(operands, virtuals, bindings)?;
        }
        Ok(bound)
    }

    /// The operands with their bindings.
    pub fn pairs(&self) -> impl Iterator<Item = (&'b Operand, Option<&'b Binding<'a>>)> + '_ {
        let (few, many) = self.operands.split_at(if self.operands.len() > FEW { 0 } else { self.operands.len() });
        let mut given = self.given.iter().peekable();
        let walk = many.iter().map(move |o| {
            while given.next_if(|(uid, _)| **uid < o.uid).is_some() {}
            (o, given.next_if(|(uid, _)| **uid == o.uid).map(|(_, b)| b))
        });
        few.iter().zip(self.few.iter().copied()).chain(walk)
    }

    /// Operand `i` with its binding.
    pub fn pair(&self, i: usize) -> (&'b Operand, Option<&'b Binding<'a>>) {
        let o = &self.operands[i];
        (o, if self.operands.len() > FEW { self.given.get(&o.uid) } else { self.few[i] })
    }

    /// The binding of a uid: how a launch plan's pointers are found.
    #[cfg(feature = "cuda")]
    pub fn get(&self, uid: Uid) -> Option<&'b Binding<'a>> {
        let at = self.operands.binary_search_by_key(&uid, |o| o.uid).ok()?;
        self.pair(at).1
    }
}

/// A spare input is harmless (one set of bindings may serve several graphs); a spare output would silently stay unwritten.
fn spares(operands: &[Operand], virtuals: &Virtuals, bindings: &Bindings<'_>) -> Result<()> {
    for (&uid, b) in &bindings.map {
        let e =
            || Error::new(ErrorCode::MissingBinding, format!("a buffer for uid {uid}"), "a uid that the graph reads or writes");
        if virtuals.contains_key(&uid) {
            return Err(e().help("The tensor is virtual: mark it with Graph::output to have it written to a buffer"));
        }
        if matches!(b, Binding::Write(_)) && operands.binary_search_by_key(&uid, |o| o.uid).is_err() {
            return Err(e());
        }
    }
    Ok(())
}
