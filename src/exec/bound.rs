//! The caller's bindings beside an executable's operands: one walk over two lists that are both ascending by uid.
//!
//! This runs in front of every launch, so whatever a check needs of a binding is looked up once, here, and nothing is allocated.

use super::bindings::{Binding, Bindings};
use super::operand::Operand;
use crate::{Error, ErrorCode, Result};
use frostgraph_engines::Uid;
use std::collections::BTreeSet;

/// Operands that are kept without allocating: more than any one node has.
const FEW: usize = 64;

/// For every operand its binding, if there is one.
pub(super) struct Bound<'b, 'a> {
    pub operands: &'b [Operand],
    few: [Option<&'b Binding<'a>>; FEW],
    many: Vec<Option<&'b Binding<'a>>>,
}

impl<'b, 'a> Bound<'b, 'a> {
    /// Presence first for all operands, so that a call with nothing bound names the first tensor rather than a detail of another.
    pub fn new(operands: &'b [Operand], virtuals: &BTreeSet<Uid>, bindings: &'b Bindings<'a>) -> Result<Bound<'b, 'a>> {
        let many = if operands.len() > FEW { vec![None; operands.len()] } else { Vec::new() };
        let mut bound = Bound { operands, few: [None; FEW], many };
        let slots = if operands.len() > FEW { &mut bound.many[..] } else { &mut bound.few[..operands.len()] };
        let mut given = bindings.map.iter().peekable();
        let mut spare = false;
        for (slot, o) in slots.iter_mut().zip(operands) {
            while given.next_if(|(uid, _)| **uid < o.uid).is_some() {
                spare = true;
            }
            *slot = given.next_if(|(uid, _)| **uid == o.uid).map(|(_, b)| b);
            if slot.is_none() && o.value.is_none() {
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
        let slots = if self.operands.len() > FEW { &self.many[..] } else { &self.few[..] };
        self.operands.iter().zip(slots.iter().copied())
    }

    /// The binding of a uid: how a launch plan's pointers are found.
    #[cfg(feature = "cuda")]
    pub fn get(&self, uid: Uid) -> Option<&'b Binding<'a>> {
        let at = self.operands.binary_search_by_key(&uid, |o| o.uid).ok()?;
        if self.operands.len() > FEW {
            self.many[at]
        } else {
            self.few[at]
        }
    }
}

/// A spare input is harmless (one set of bindings may serve several graphs); a spare output would silently stay unwritten.
fn spares(operands: &[Operand], virtuals: &BTreeSet<Uid>, bindings: &Bindings<'_>) -> Result<()> {
    for (&uid, b) in &bindings.map {
        let e =
            || Error::new(ErrorCode::MissingBinding, format!("a buffer for uid {uid}"), "a uid that the graph reads or writes");
        if virtuals.contains(&uid) {
            return Err(e().help("The tensor is virtual: mark it with Graph::output to have it written to a buffer"));
        }
        if matches!(b, Binding::Write(_)) && operands.binary_search_by_key(&uid, |o| o.uid).is_err() {
            return Err(e());
        }
    }
    Ok(())
}
