mod recorder;

use super::*;
use crate::engines::Target;
use crate::runtime::compile::Cubin;
use crate::runtime::test_util::{allocations, image, spec};
use recorder::{launch, map, operand, plan, range, recorder, word, Recorder, WORKSPACE};
use std::sync::atomic::Ordering;

#[test]
fn every_parameter_arrives_in_order_with_its_value() {
    let plan = plan();
    let chain = Chain::new(&[&plan]).unwrap();
    assert_eq!(chain.operands(), [10, 11, 12]);
    assert_eq!(chain.workspace_bytes(), 1024 + 4096);
    let sink = recorder(&plan);
    chain.run(&sink, &operand, WORKSPACE).unwrap();
    let calls = sink.calls.into_inner();
    assert_eq!(calls.iter().map(|c| c.0).collect::<Vec<_>>(), [0, 1, 2]);
    let dot = &calls[0].1;
    assert_eq!((word(&dot[0]), word(&dot[1]), word(&dot[2])), (0xa0_0000, 0x9000_0000, 0));
    assert_eq!(dot[3], (-2i32).to_le_bytes());
    let main = &calls[1].1;
    assert_eq!((word(&main[0]), word(&main[0][8..])), (0xb0_0000, 100), "the open axis follows the bound bytes");
    assert_eq!(main[1], [0; 128]);
    assert_eq!(word(&main[2]), 0x9000_0000 + 1024);
    assert_eq!(main[3], (-5_000_000_000i64).to_le_bytes());
    assert_eq!(main[4], 0.125f32.to_le_bytes());
    assert_eq!(word(&main[5]), 0xa0_0000);
    assert_eq!((word(&calls[2].1[0]), word(&calls[2].1[1])), (0x9000_0400, 0xc0_0000));
}

/// I5: nothing is allocated, whether maps are encoded anew or kept.
#[test]
fn execute_allocates_nothing_i5() {
    struct Null;
    impl Sink for Null {
        fn encode(&self, _: &MapRequest) -> Result<TensorMap> {
            Ok(NO_MAP)
        }
        fn launch(&self, _: usize, params: &mut [*mut c_void]) -> Result<()> {
            assert!(params.iter().all(|p| !p.is_null()));
            Ok(())
        }
    }
    let plan = plan();
    let chain = Chain::new(&[&plan]).unwrap();
    let before = allocations();
    for round in 0..10u64 {
        let moved = |uid| operand(uid).map(|r| range(r.address + 4096 * (round / 2), r.bytes));
        chain.run(&Null, &moved, WORKSPACE).unwrap();
    }
    assert_eq!(allocations() - before, 0);
    let held = chain.segments[0].last.lock().unwrap();
    let before = allocations();
    chain.run(&Null, &operand, WORKSPACE).unwrap();
    assert_eq!(allocations() - before, 0, "beside a thread that holds the kept maps");
    drop(held);
}

#[test]
fn maps_are_encoded_again_only_for_other_buffers() {
    let plan = plan();
    let chain = Chain::new(&[&plan]).unwrap();
    let sink = recorder(&plan);
    let run = |uids: &dyn Fn(Uid) -> Option<DeviceRange>, workspace| {
        let before = sink.encoded.load(Ordering::SeqCst);
        chain.run(&sink, uids, workspace).unwrap();
        sink.encoded.load(Ordering::SeqCst) - before
    };
    assert_eq!(run(&operand, WORKSPACE), 2);
    assert_eq!(run(&operand, WORKSPACE), 0);
    let longer = |uid| operand(uid).map(|r| range(r.address, r.bytes + if uid == 11 { 256 } else { 0 }));
    assert_eq!(run(&longer, WORKSPACE), 2, "the bound length decides the open extent");
    assert_eq!(run(&longer, range(WORKSPACE.address + 128, WORKSPACE.bytes - 128)), 2);
    assert_eq!(run(&operand, WORKSPACE), 2);
}

/// I5: two threads with different buffers never see each other's addresses.
#[test]
fn threads_do_not_mix_their_buffers_i5() {
    let plan = plan();
    let chain = Chain::new(&[&plan]).unwrap();
    std::thread::scope(|s| {
        for t in 0..4u64 {
            let (plan, chain) = (&plan, &chain);
            s.spawn(move || {
                for _ in 0..200 {
                    let sink = recorder(plan);
                    let mine = |uid| operand(uid).map(|r| range(r.address + t * 0x1000_0000, r.bytes));
                    let workspace = range(WORKSPACE.address + t * 0x1000_0000, WORKSPACE.bytes);
                    chain.run(&sink, &mine, workspace).unwrap();
                    let calls = sink.calls.into_inner();
                    let expected = [0xb0_0000 + t * 0x1000_0000, workspace.address + 1024, 0xa0_0000 + t * 0x1000_0000];
                    assert_eq!([0, 2, 5].map(|i| word(&calls[1].1[i])), expected);
                }
            });
        }
    });
}

/// A graph of many nodes: 150 operands, more than an execution holds at once, in launches that use up to 90 of them.
fn long_plan() -> LaunchPlan {
    let mut plan = LaunchPlan::default();
    let scratch = plan.region("scratch", 256).unwrap();
    let of = |uids: &[i64]| uids.iter().map(|uid| Arg::Ptr(Base::Tensor(*uid))).collect::<Vec<_>>();
    let list = |range: std::ops::Range<i64>| range.collect::<Vec<i64>>();
    let mut mapped = of(&[100, 149]);
    mapped.extend([map(Base::Tensor(120), None), Arg::Ptr(Base::Region(scratch)), Arg::I32(7)]);
    plan.steps = [of(&list(0..40)), of(&list(0..90)), of(&list(60..150)), mapped]
        .into_iter()
        .map(|args| Step::Kernel(launch("k", args)))
        .collect();
    plan
}

fn many(uid: Uid) -> Option<DeviceRange> {
    (0..150).contains(&uid).then(|| range((uid as u64 + 1) * 0x1_0000, 256 * 100))
}

#[test]
fn a_chain_of_many_operands_runs_in_segments_without_allocating_i5() {
    let plan = long_plan();
    let chain = Chain::new(&[&plan]).unwrap();
    assert_eq!(chain.operands(), (0..150).collect::<Vec<Uid>>());
    assert_eq!(chain.segments.iter().map(|s| (s.first, s.launches.len())).collect::<Vec<_>>(), [(0, 2), (2, 2)]);
    let sink = recorder(&plan);
    for round in 1..=2 {
        chain.run(&sink, &many, WORKSPACE).unwrap();
        assert_eq!(sink.encoded.load(Ordering::SeqCst), 1, "round {round}: the kept map serves again");
    }
    let calls = sink.calls.into_inner();
    assert_eq!(calls.iter().map(|c| c.0).collect::<Vec<_>>(), [0, 1, 2, 3, 0, 1, 2, 3]);
    for call in [&calls[1].1, &calls[5].1] {
        assert!(call.iter().zip(1u64..).all(|(p, n)| word(p) == n * 0x1_0000));
    }
    assert!(calls[2].1.iter().zip(61u64..).all(|(p, n)| word(p) == n * 0x1_0000));
    let last = &calls[3].1;
    assert_eq!((word(&last[0]), word(&last[1]), word(&last[2])), (101 * 0x1_0000, 150 * 0x1_0000, 121 * 0x1_0000));
    assert_eq!((word(&last[3]), &last[4][..]), (WORKSPACE.address, &7i32.to_le_bytes()[..]));

    struct Null;
    impl Sink for Null {
        fn encode(&self, _: &MapRequest) -> Result<TensorMap> {
            Ok(NO_MAP)
        }
        fn launch(&self, _: usize, _: &mut [*mut c_void]) -> Result<()> {
            Ok(())
        }
    }
    let before = allocations();
    chain.run(&Null, &|uid| many(uid).map(|r| range(r.address + 4096, r.bytes)), WORKSPACE).unwrap();
    assert_eq!(allocations() - before, 0);
}

/// What the last segment would refuse is refused before the first one is queued.
#[test]
fn all_segments_are_checked_before_anything_is_queued() {
    let plan = long_plan();
    let chain = Chain::new(&[&plan]).unwrap();
    let sink = recorder(&plan);
    let refused = |f: &dyn Fn(Uid) -> Option<DeviceRange>| {
        let e = chain.run(&sink, f, WORKSPACE).unwrap_err();
        assert!(sink.calls.borrow().is_empty(), "{e}");
        (e.code, e.at.clone())
    };
    assert_eq!(refused(&|uid| many(uid).filter(|_| uid != 149)), (ErrorCode::MissingBinding, "uid 149".into()));
    let odd = |uid| many(uid).map(|r| range(r.address + if uid == 120 { 8 } else { 0 }, r.bytes));
    assert_eq!(refused(&odd), (ErrorCode::BufferAlignment, "uid 120".into()));
    let over = |uid| if uid == 149 { Some(range(WORKSPACE.address, 4)) } else { many(uid) };
    assert_eq!(refused(&over), (ErrorCode::BufferOverlap, String::new()));
}

/// Report 125: the workspace is checked against this chain's own need.
#[test]
fn workspace_faults_are_named_125() {
    let plan = plan();
    let chain = Chain::new(&[&plan]).unwrap();
    let need = chain.workspace_bytes();
    let run = |workspace| chain.run(&recorder(&plan), &operand, workspace).map_err(|e| (e.code, e.given.clone()));
    assert_eq!(run(range(WORKSPACE.address, need)), Ok(()));
    let short = run(range(WORKSPACE.address, need - 1)).unwrap_err();
    assert_eq!(short, (ErrorCode::Workspace, format!("a workspace of {} bytes", need - 1)));
    assert_eq!(run(DeviceRange::default()).unwrap_err().1, "a workspace of 0 bytes");
    assert_eq!(run(range(WORKSPACE.address + 1, need)).unwrap_err().1, "a workspace whose base is 1 past a multiple of 128");
    let over = run(range(0xb0_0000, need)).unwrap_err();
    assert_eq!(over, (ErrorCode::BufferOverlap, "a workspace that shares memory with uid 11".into()));
    // A chain without regions takes anything.
    let bare = LaunchPlan { steps: vec![Step::Kernel(launch("k", vec![Arg::Ptr(Base::Tensor(10))]))], ..LaunchPlan::default() };
    Chain::new(&[&bare]).unwrap().run(&recorder(&bare), &operand, DeviceRange::default()).unwrap();
}

#[test]
fn operand_faults_are_named() {
    let plan = plan();
    let chain = Chain::new(&[&plan]).unwrap();
    let run = |f: &dyn Fn(Uid) -> Option<DeviceRange>| chain.run(&recorder(&plan), f, WORKSPACE).unwrap_err();
    let e = run(&|uid| operand(uid).filter(|_| uid != 12));
    assert_eq!((e.code, e.at.as_str()), (ErrorCode::MissingBinding, "uid 12"));
    let e = run(&|uid| if uid == 11 { Some(range(0, 100)) } else { operand(uid) });
    assert_eq!((e.code, e.at.as_str()), (ErrorCode::MissingBinding, "uid 11"));
    let e = run(&|uid| operand(uid).map(|r| range(r.address + 8, r.bytes)));
    assert_eq!((e.code, e.at.as_str()), (ErrorCode::BufferAlignment, "uid 11"));
    // A failed binding is not kept: the next good one works.
    chain.run(&recorder(&plan), &operand, WORKSPACE).unwrap();
}

#[test]
fn a_failing_launch_stops_the_chain() {
    let plan = plan();
    let sink = Recorder { fail_at: Some(1), ..recorder(&plan) };
    let e = Chain::new(&[&plan]).unwrap().run(&sink, &operand, WORKSPACE).unwrap_err();
    assert_eq!((e.code, sink.calls.into_inner().len()), (ErrorCode::CudaDriver, 1));
}

/// Report 28 and the hardware's limits: refused when the chain is made, with the launch's name.
#[test]
fn launches_beyond_the_limits_are_refused_28() {
    let bad = |edit: fn(&mut Launch)| {
        let mut l = launch("main", vec![]);
        edit(&mut l);
        let plan = LaunchPlan { steps: vec![Step::Kernel(l)], ..LaunchPlan::default() };
        Chain::new(&[&plan]).unwrap_err().to_string()
    };
    assert!(bad(|l| l.grid = [1, 65_536, 1]).contains("launch main: a grid of 1x65536x1"));
    assert!(bad(|l| l.grid = [0, 1, 1]).contains("a grid of 0x1x1"));
    assert!(bad(|l| l.grid = [1 << 31, 1, 1]).contains("a grid of 2147483648x1x1"));
    assert!(bad(|l| l.block = [1025, 1, 1]).contains("a block of [1025, 1, 1]"));
    assert!(bad(|l| l.cluster = [2, 1, 1]).contains("a cluster of [2, 1, 1] for a grid of [7, 1, 1]"));
    assert!(bad(|l| l.args = vec![Arg::I32(0); 97]).contains("97 parameters"));
    assert!(bad(|l| l.args = vec![Arg::Ptr(Base::Region(3))]).contains("workspace region 3"));
}

#[test]
fn a_lowering_that_disagrees_with_the_kernel_is_caught_without_a_gpu() {
    let cubin = |params: &[(u16, u32)]| {
        let spec = spec("main");
        Cubin::new(&spec, "sm_90a", "13.0", image("main", params, b"code"), "").unwrap()
    };
    let target = Target::describe(90).unwrap();
    let mut l = launch("main", vec![map(Base::Tensor(1), Some(1)), Arg::Null, Arg::I32(1)]);
    l.names = vec!["tm_q", "lse", "batch"];
    check_launch(&l, &cubin(&[(0, 128), (128, 8), (136, 4)]), &target).unwrap();
    let e = check_launch(&l, &cubin(&[(0, 128), (128, 8), (136, 8)]), &target).unwrap_err();
    assert_eq!(
        e.to_string(),
        "FG6006 at launch main: 3 parameters, number 2 'batch' of 4 bytes; expected 3 parameters as compiled, number 2 of 8 bytes"
    );
    assert!(check_launch(&l, &cubin(&[(0, 128), (128, 8)]), &target).is_err());
    assert!(check_launch(&l, &cubin(&[(0, 128), (128, 8), (136, 4), (140, 4)]), &target).is_err());
    l.smem = 232_449;
    let e = check_launch(&l, &cubin(&[(0, 128), (128, 8), (136, 4)]), &target).unwrap_err();
    assert_eq!(e.given, "232449 bytes of shared memory");
}
