//! Building blocks of the CPU engines: register-tiled products, the exponential, tiles, and the cutting of work into jobs.

pub mod arena;
pub mod exp;
pub mod gemm;
pub mod lower;
pub mod tile;

use crate::launch::WORKSPACE_ALIGN;
use crate::sdpa::access::fault;
use crate::HostError;

/// Query rows of one tile.
pub const BQ: usize = 64;
/// Key rows of one tile.
pub const BK: usize = 64;
/// Tile rows are padded to this many columns, a whole number of vectors on every machine.
pub const PAD: usize = 16;

/// Columns of a padded tile.
pub const fn padded(cols: usize) -> usize {
    cols.next_multiple_of(PAD)
}

/// Runs `op` compiled for the widest vector unit of this machine.
///
/// Results depend on that choice (fused or separate multiply-add), never on the number of threads.
pub fn vectorize<Op: pulp::WithSimd>(op: Op) -> Op::Output {
    use pulp::Simd;
    match pulp::Arch::new() {
        // Four-lane arrays that the compiler maps to the baseline vector unit.
        pulp::Arch::Scalar => pulp::Scalar128b.vectorize(op),
        #[allow(unreachable_patterns, reason = "some targets have the scalar variant only")]
        wide => wide.dispatch(op),
    }
}

/// Cuts the workspace into f32 regions of these lengths, each starting on a region boundary as the plan lays them out.
///
/// # Errors
/// [`HostError`] when the workspace is smaller than planned or not aligned for f32.
pub fn regions<const N: usize>(workspace: &mut [u8], floats: [u64; N]) -> Result<[&mut [f32]; N], HostError> {
    let bytes = workspace.len();
    let short = || fault("workspace", format!("{bytes} bytes"), "an aligned workspace of the planned size");
    let mut rest: &mut [f32] = bytemuck::try_cast_slice_mut(workspace).map_err(|_| short())?;
    let mut out = [const { None }; N];
    for (slot, floats) in out.iter_mut().zip(floats) {
        let floats = usize::try_from(floats).map_err(|_| short())?;
        let whole = floats.next_multiple_of(WORKSPACE_ALIGN as usize / 4);
        let (mine, tail) = std::mem::take(&mut rest).split_at_mut_checked(whole).ok_or_else(short)?;
        (*slot, rest) = (Some(&mut mine[..floats]), tail);
    }
    Ok(out.map(|region| region.expect("filled above")))
}

/// `f(i, j)` for every kept pair of a tile in which the query row is in `bad_q` or the key row in `bad_k`.
pub fn bad_pairs(rows: &[[usize; 2]], bad_q: u64, bad_k: u64, mut f: impl FnMut(usize, usize)) {
    for (i, kept) in rows.iter().enumerate() {
        for j in kept[0]..kept[1] {
            if bad_q >> i & 1 == 1 || bad_k >> j & 1 == 1 {
                f(i, j);
            }
        }
    }
}
