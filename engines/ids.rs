//! MANIFEST: the one static list of families and rows. Ids are append-only (I3); retired ids are never reused.

use crate::{Family, Row};

/// Every family, in id order.
pub static MANIFEST: &[&Family] = &[
    &crate::sdpa_fwd::FAMILY,
    &crate::sdpa_bwd::FAMILY,
    &crate::qat_fwd::FAMILY,
    &crate::qat_bwd::FAMILY,
    &crate::grouped_gemm_dsrelu::FAMILY,
    &crate::moe_grouped_matmul::FAMILY,
];

/// Ids that once named a row, here or in FROST, and must stay unused.
pub static RETIRED: &[u32] = &[20500, 20501, 20502, 20503, 20504, 20506, 20509, 20510];

/// The row with this id.
pub fn row_by_id(id: u32) -> Option<&'static Row> {
    MANIFEST.iter().flat_map(|f| f.rows).find(|r| r.id == id)
}

/// The row with this name.
pub fn row_by_name(name: &str) -> Option<&'static Row> {
    MANIFEST.iter().flat_map(|f| f.rows).find(|r| r.name == name)
}

/// The family that owns an id's block of 100.
pub fn family_of(id: u32) -> Option<&'static Family> {
    MANIFEST.iter().copied().find(|f| id >= f.base && id < f.base + 100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Knob, Knobs, PublicValue};

    fn rows() -> impl Iterator<Item = (&'static Family, &'static Row)> {
        MANIFEST.iter().copied().flat_map(|f| f.rows.iter().map(move |r| (f, r)))
    }

    /// I3: identities are unique, lie in their family's block, and are never one that was retired.
    #[test]
    fn ids_and_names_are_unique_and_in_their_block_i3() {
        let mut ids: Vec<u32> = Vec::new();
        let mut names: Vec<&str> = Vec::new();
        for (family, row) in rows() {
            assert!((family.base..family.base + 100).contains(&row.id), "{}", row.name);
            assert!(!RETIRED.contains(&row.id), "{} has a retired id", row.name);
            assert!(!ids.contains(&row.id) && !names.contains(&row.name), "{} {}", row.id, row.name);
            assert!(row.name.starts_with(family.name), "{} is named after its family", row.name);
            assert_eq!(row_by_id(row.id).map(|r| r.name), Some(row.name));
            assert_eq!(row_by_name(row.name).map(|r| r.id), Some(row.id));
            assert_eq!(family_of(row.id).map(|f| f.name), Some(family.name));
            ids.push(row.id);
            names.push(row.name);
        }
        let bases: Vec<u32> = MANIFEST.iter().map(|f| f.base).collect();
        assert!(bases.windows(2).all(|w| w[0] + 100 <= w[1]), "blocks of 100 in id order: {bases:?}");
    }

    /// I3: what was shipped stays. A line is added for a new row, and none is ever changed.
    #[test]
    fn shipped_ids_stay_i3() {
        for (id, name) in [
            (20508, "sdpa_fwd_prefill_sm80"),
            (20517, "sdpa_fwd_prefill_sm90"),
            (20550, "sdpa_fwd_cpu"),
            (20551, "sdpa_fwd_decode_sm80"),
            (20600, "sdpa_bwd_sm120"),
            (20617, "sdpa_bwd_sm90"),
            (20650, "sdpa_bwd_cpu"),
            (20700, "nvfp4_qat_fwd_sm120"),
            (20717, "nvfp4_qat_fwd_sm90"),
            (20750, "nvfp4_qat_fwd_cpu"),
            (20817, "nvfp4_qat_bwd_sm90"),
            (20850, "nvfp4_qat_bwd_cpu"),
            (20900, "grouped_gemm_dsrelu_sm90"),
            (20908, "grouped_gemm_dsrelu_mma"),
            (20920, "grouped_gemm_dsrelu_sm120"),
            (20950, "grouped_gemm_dsrelu_cpu"),
            (21000, "moe_grouped_matmul_sm90"),
            (21050, "moe_grouped_matmul_cpu"),
        ] {
            assert!(row_by_id(id).map(|r| r.name) == Some(name) || RETIRED.contains(&id), "{id} {name}");
        }
        // Retired in FROST before this project began (facts §4.1): records with these ids must not name a row of ours.
        for slot in [0, 1, 2, 3, 4, 6, 9, 10] {
            assert!(RETIRED.contains(&(20500 + slot)));
            assert_eq!(row_by_id(20500 + slot).map(|r| r.name), None);
        }
    }

    #[test]
    fn domains_are_ascending_and_within_reach_of_their_row() {
        for (_, row) in rows() {
            for d in row.knobs {
                assert!(!d.values.is_empty() && d.values.windows(2).all(|w| w[0] < w[1]), "{} {}", row.name, d.knob.name());
            }
        }
    }

    #[test]
    fn knobs_from_their_public_form() {
        let row = row_by_name("sdpa_bwd_sm120").expect("a row");
        let read = |pairs: &[(&str, PublicValue)]| Knobs::from_public(row, pairs.iter().cloned());
        let both = Knobs::new(&[(Knob::TileM, 32), (Knob::TileN, 64)]);
        assert_eq!(read(&[("TILE_N", PublicValue::Int(64)), ("26", PublicValue::Int(32))]), Ok(both.clone()));
        assert_eq!(both.to_public().into_iter().collect::<Vec<_>>(), [(26, 32), (27, 64)]);
        assert_eq!(read(&[]), Ok(Knobs::NONE));
        let text = |pairs: &[(&str, PublicValue)]| read(pairs).expect_err("a decline").to_string();
        assert_eq!(
            text(&[("SPLIT_KV", PublicValue::Int(2))]),
            "sdpa_bwd_sm120: knob SPLIT_KV is set; this row has TILE_M, TILE_N [D04-knob SPLIT_KV=2]"
        );
        assert_eq!(
            text(&[("TILE_Q", PublicValue::Int(2))]),
            "sdpa_bwd_sm120: there is no knob 'TILE_Q'; this row has TILE_M, TILE_N [D04-knob knob=TILE_Q]"
        );
        assert_eq!(
            text(&[("TILE_M", PublicValue::Bool(true))]),
            "sdpa_bwd_sm120: TILE_M is true; knobs take integers [D04-knob TILE_M=true]"
        );
        assert_eq!(
            text(&[("TILE_M", PublicValue::Other("64.5".into()))]),
            "sdpa_bwd_sm120: TILE_M is 64.5; knobs take integers [D04-knob TILE_M=64.5]"
        );
        assert_eq!(
            text(&[("TILE_M", PublicValue::Int(48))]),
            "sdpa_bwd_sm120: TILE_M is 48; this row serves 32, 64, 128 [D04-knob TILE_M=48]"
        );
        assert_eq!(
            text(&[("TILE_M", PublicValue::Int(64)), ("26", PublicValue::Int(32))]),
            "sdpa_bwd_sm120: TILE_M is given twice with different values [D04-knob TILE_M=32]"
        );
        let cpu = row_by_name("sdpa_fwd_cpu").expect("a row");
        let d = Knobs::from_public(cpu, [("PACK_GQA", PublicValue::Bool(true))]).expect_err("no knobs");
        assert_eq!(d.to_string(), "sdpa_fwd_cpu: knob PACK_GQA is set; this row has no knobs [D04-knob PACK_GQA=1]");
    }
}
