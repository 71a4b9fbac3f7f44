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
    let check =
        |need, w: Workspace<'_>| code(device_workspace(need, &w, &Bound::new(&ops, &BTreeMap::new(), &set).expect("all bound")));
    assert_eq!(check(256, Workspace::device(4096, 256)), None, "exactly the size");
    assert_eq!(check(256, Workspace::device(4096, 255)), Some(ErrorCode::Workspace), "one byte less");
    assert_eq!(check(0, Workspace::none()), None, "nothing for nothing");
    assert_eq!(check(256, Workspace::none()), Some(ErrorCode::Workspace));
    assert_eq!(check(256, Workspace::device(4097, 512)), Some(ErrorCode::Workspace), "misaligned by one");
    assert_eq!(check(256, Workspace::device(0, 512)), Some(ErrorCode::Workspace), "null");
    assert_eq!(check(256, Workspace::device((1 << 20) - 128, 512)), Some(ErrorCode::BufferOverlap));
}
