//! Pools of pages behind a block table.

use super::ints::int_at;
use super::{bytes_of, fault, Inputs, Place, Rows};
use crate::sdpa::lengths::Lengths;
use crate::{HostError, Port};

/// A block table of a paged pool: pages of each sequence, flattened to `[B][max_pages]`.
#[derive(Debug, Clone)]
pub(super) struct Pages {
    pub entry: Vec<i64>,
    pub max_pages: usize,
    pub rows: i64,
    pub stride: i64,
}

impl Place {
    /// Locates a paged pool `(pages, H, page rows, D)` whose logical rows go through a `(B, 1, max_pages, 1)` block table.
    ///
    /// Only the entries that `lens.kv` reaches are read, so unused ones may hold anything.
    ///
    /// # Errors
    /// As [`Place::new`], and for a page index outside the pool or a length beyond the table.
    pub fn paged(pool: &Port, table: &Port, lens: &Lengths, inputs: &Inputs<'_>, buffer: usize) -> Result<Place, HostError> {
        let one = Lengths { q: vec![pool.dim[2]], kv: vec![pool.dim[2]] };
        let mut place = Place::new(pool, Rows::Declared, &one, inputs, buffer)?;
        let (pages, rows) = (pool.dim[0], pool.dim[2]);
        let bytes = bytes_of(inputs, table.uid, &table.name)?;
        let max_pages = usize::try_from(table.dim[2]).unwrap_or(0);
        let mut entry = vec![0; max_pages * lens.kv.len()];
        for (b, &len) in lens.kv.iter().enumerate() {
            let used = usize::try_from(len.max(0)).unwrap_or(0).div_ceil(rows as usize);
            if used > max_pages {
                let given = format!("sequence {b} of {len} rows");
                return Err(fault(&table.name, given, format!("at most {max_pages} pages of {rows} rows")));
            }
            for i in 0..used {
                let at = (b as i64).checked_mul(table.stride[0]).zip((i as i64).checked_mul(table.stride[2]));
                let at = at.and_then(|(x, y)| x.checked_add(y)).and_then(|at| u64::try_from(at).ok());
                let page = at.and_then(|at| int_at(bytes, table.dtype, at));
                let page = page.ok_or_else(|| {
                    fault(&table.name, format!("{} bytes for entry ({b}, {i})", bytes.len()), "the entry in the buffer")
                })?;
                if page < 0 || page >= pages {
                    return Err(fault(
                        &table.name,
                        format!("page index {page} in entry ({b}, {i})"),
                        format!("0 to {} (pages of {})", pages - 1, pool.name),
                    ));
                }
                entry[b * max_pages + i] = page;
            }
        }
        let stride = if pages == 1 { 0 } else { pool.stride[0] };
        let last = stride.checked_mul(pages - 1);
        let last = last.ok_or_else(|| fault(&pool.name, format!("page stride {stride}"), "offsets in 64 bits"))?;
        place.check(&pool.name, last, rows, buffer)?;
        place.base = vec![0; lens.kv.len()];
        place.rows = lens.kv.clone();
        place.pages = Some(Pages { entry, max_pages, rows, stride });
        Ok(place)
    }
}
