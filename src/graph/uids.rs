//! Identifiers: the user's stand, the others take the smallest unused ones in creation order.

use super::Tensor;
use crate::{Error, ErrorCode, Result};

/// Gives every tensor a uid.
pub(super) fn assign(tensors: &mut [Tensor]) -> Result<()> {
    let mut used: Vec<(i64, usize)> = tensors.iter().enumerate().filter_map(|(i, t)| t.uid.map(|u| (u, i))).collect();
    used.sort_unstable();
    if let Some(&(uid, i)) = used.first() {
        if uid < 1 {
            let given = format!("uid {uid}");
            return Err(
                Error::new(ErrorCode::BadTensor, given, "a uid of at least 1").at(format!("tensor '{}'", tensors[i].name))
            );
        }
    }
    if let Some(pair) = used.windows(2).find(|p| p[0].0 == p[1].0) {
        let given = format!("uid {} on '{}' and on '{}'", pair[0].0, tensors[pair[0].1].name, tensors[pair[1].1].name);
        return Err(Error::new(ErrorCode::DuplicateUid, given, "one uid per tensor"));
    }
    let mut taken = used.iter().map(|&(u, _)| u).peekable();
    let mut next = 1;
    for t in tensors.iter_mut().filter(|t| t.uid.is_none()) {
        while taken.next_if_eq(&next).is_some() {
            next += 1;
        }
        t.uid = Some(next);
        next += 1;
    }
    Ok(())
}
