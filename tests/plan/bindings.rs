//! What is bound to an executable: everything wrong with it is an error before anything runs, and it survives both.

use crate::support::catalogue::{all, forward_backward};
use crate::support::data::Data;
use crate::support::{backward, best, build, forward, lengths, uid, SMALL};
use frostgraph::exec::{Bindings, HostWorkspace, Stream, Workspace};
use frostgraph::graph::Mask;
use frostgraph::plan::BuildOptions;
use frostgraph::{Device, ErrorCode};

#[test]
fn packed_buffers_that_are_too_short_are_an_error_and_empty_ones_are_fine() {
    let (_, g) = all().into_iter().find(|(n, _)| *n == "fwd_thd_stats").unwrap();
    let exe = best(&g);
    let run = |edit: &dyn Fn(&mut Bindings<'_>)| {
        let mut data = Data::new(&exe, 1);
        let mut b = data.bindings();
        edit(&mut b);
        let mut w = HostWorkspace::new(exe.workspace_bytes()).unwrap();
        exe.execute(&Stream::cpu(), &mut b, &mut w.workspace())
    };
    let token = 2 * 16;
    let exact = vec![0u16; 14 * token];
    run(&|b| {
        b.read(uid(&exe, "k"), Box::leak(exact.clone().into_boxed_slice()));
    })
    .unwrap();
    for name in ["q", "k", "v", "fwd::O"] {
        let e = run(&|b| {
            let short: &'static mut [u16] = Box::leak(vec![0u16; 14 * token - 1].into_boxed_slice());
            if name == "fwd::O" {
                b.write(uid(&exe, name), short);
            } else {
                b.read(uid(&exe, name), &*short);
            }
        })
        .unwrap_err();
        assert_eq!(e.code, ErrorCode::BadData, "{name} one element short: {e}");
    }
    // Field reports 15 and 18: all sequences empty, and no token to point at.
    run(&|b| {
        static ZERO: [i32; 3] = [0; 3];
        static NONE: [u16; 0] = [];
        for n in ["seq_len_q", "seq_len_kv"] {
            b.read(uid(&exe, n), &ZERO[..2]);
        }
        b.read(uid(&exe, "offset_q"), &ZERO);
        for n in ["q", "k", "v"] {
            b.read(uid(&exe, n), &NONE);
        }
        b.write::<u16>(uid(&exe, "fwd::O"), &mut []);
        b.write::<f32>(uid(&exe, "fwd::Stats"), &mut []);
    })
    .unwrap();
}

#[test]
fn a_handle_of_a_larger_graph_is_an_error() {
    let large = forward_backward(SMALL, false);
    let last = large.tensors().last().unwrap().0;
    let built = build(&forward(SMALL, |_, _, _| {}));
    assert_eq!(built.uid(last).unwrap_err().code, ErrorCode::BadTensor);
}

#[test]
fn workspace_sizes_follow_field_report_125() {
    let exe = best(&forward_backward(SMALL, false));
    let need = exe.workspace_bytes();
    assert!(need > 0);
    let run = |w: &mut Workspace<'_>| {
        let mut data = Data::new(&exe, 1);
        let r = exe.execute(&Stream::cpu(), &mut data.bindings(), w);
        r.map_err(|e| e.code)
    };
    let mut large = HostWorkspace::new(need + 4096).unwrap();
    let bytes = large.bytes_mut();
    bytes.fill(0xA5);
    assert_eq!(run(&mut Workspace::host(&mut bytes[1024..1024 + need as usize])), Ok(()), "exactly the size");
    assert!(bytes[..1024].iter().chain(&bytes[1024 + need as usize..]).all(|b| *b == 0xA5), "guards on both sides");
    let bytes = large.bytes_mut();
    assert_eq!(run(&mut Workspace::host(&mut bytes[..need as usize - 1])), Err(ErrorCode::Workspace), "one byte less");
    assert_eq!(run(&mut Workspace::host(&mut bytes[1..1 + need as usize])), Err(ErrorCode::Workspace), "misaligned by one");
    assert_eq!(run(&mut Workspace::none()), Err(ErrorCode::Workspace));
    assert_eq!(run(&mut Workspace::device(4096, need)), Err(ErrorCode::BindingDevice));
    for (name, g) in all() {
        if name == "bwd_many_batches" {
            continue;
        }
        let Ok(built) = g.build_with(&Device::cpu(), &BuildOptions::all_engines()) else { continue };
        let exe = built.best().unwrap().compile().unwrap();
        if exe.workspace_bytes() == 0 {
            let mut data = Data::new(&exe, 1);
            exe.execute(&Stream::cpu(), &mut data.bindings(), &mut Workspace::none()).unwrap();
        }
    }
}

#[test]
fn bindings_are_checked_before_anything_runs() {
    let exe = best(&backward(SMALL, |_, _, _, _| {}));
    let mut w = HostWorkspace::new(exe.workspace_bytes()).unwrap();
    let mut fails = |edit: &dyn Fn(&mut Bindings<'_>)| {
        let mut data = Data::new(&exe, 1);
        let mut b = data.bindings();
        edit(&mut b);
        exe.execute(&Stream::cpu(), &mut b, &mut w.workspace()).unwrap_err()
    };
    let (q, dq) = (uid(&exe, "q"), uid(&exe, "bwd::dQ"));
    static DATA: [u16; 2048] = [0; 2048];

    let e = fails(&|b| *b = Bindings::new());
    assert_eq!((e.code, e.at.as_str()), (ErrorCode::MissingBinding, exe.operands()[0].label().as_str()));
    let e = fails(&|b| {
        b.read(q, &DATA[..1023]);
    });
    assert_eq!(
        e.to_string(),
        format!("FG4002 at uid {q} 'q': 2046 bytes; expected at least 2048 bytes, from the first to the last addressed element")
    );
    let bytes: &[u8] = bytemuck::cast_slice(&DATA);
    let odd: &'static [u8] = Box::leak(vec![0u8; 4096].into_boxed_slice());
    let odd = &odd[1 - odd.as_ptr() as usize % 2..];
    let e = fails(&|b| {
        b.read(q, &odd[..2050]);
    });
    assert_eq!(e.code, ErrorCode::BufferAlignment, "{e}");
    assert!(bytes.len() >= 2048);
    let e = fails(&|b| {
        b.read(dq, &DATA[..1024]);
    });
    assert_eq!((e.code, e.given.as_str()), (ErrorCode::MissingBinding, "a buffer that is bound for reading"));
    let e = fails(&|b| {
        b.device(q, 4096, 1 << 20);
    });
    assert_eq!(e.code, ErrorCode::BindingDevice);
    let e = fails(&|b| {
        b.write(999, Box::leak(vec![0u8; 4].into_boxed_slice()));
    });
    assert_eq!(e.code, ErrorCode::MissingBinding, "an output that the graph does not have: {e}");
    let mut data = Data::new(&exe, 1);
    let e = exe.execute(&Stream::cuda(0), &mut data.bindings(), &mut w.workspace()).unwrap_err();
    assert_eq!(e.code, ErrorCode::BindingDevice, "a CUDA stream for a CPU plan");
}

#[test]
fn a_virtual_output_cannot_be_bound() {
    let g = forward_backward(SMALL, false);
    let built = build(&g);
    let exe = built.best().unwrap().compile().unwrap();
    let o = built.uid_by_name("fwd::O").unwrap();
    let mut data = Data::new(&exe, 1);
    let mut out = vec![0u16; 1024];
    let mut b = data.bindings();
    b.write(o, &mut out);
    let mut w = HostWorkspace::new(exe.workspace_bytes()).unwrap();
    let e = exe.execute(&Stream::cpu(), &mut b, &mut w.workspace()).unwrap_err();
    assert!(e.code == ErrorCode::MissingBinding && e.to_string().contains("Graph::output"), "{e}");
}

#[test]
fn bindings_survive_an_execution_and_an_error() {
    let exe = best(&forward(SMALL, |_, _, _| {}));
    let mut data = Data::new(&exe, 1);
    let mut b = data.bindings();
    let before: Vec<i64> = b.uids().collect();
    let mut w = HostWorkspace::new(exe.workspace_bytes()).unwrap();
    for _ in 0..2 {
        exe.execute(&Stream::cpu(), &mut b, &mut w.workspace()).unwrap();
        assert_eq!(b.uids().collect::<Vec<_>>(), before);
    }
    let padded = best(&forward(SMALL, |g, _, o| {
        o.mask = Mask::none().padded();
        (o.seq_len_q, o.seq_len_kv) = lengths(g, SMALL.b);
    }));
    let mut data = Data::new(&padded, 1);
    data.set(uid(&padded, "seq_len_kv"), bytemuck::cast_slice(&[17i32, 3]));
    let mut b = data.bindings();
    let before: Vec<i64> = b.uids().collect();
    let mut w = HostWorkspace::new(padded.workspace_bytes()).unwrap();
    let e = padded.execute(&Stream::cpu(), &mut b, &mut w.workspace()).unwrap_err();
    assert_eq!(e.code, ErrorCode::BadData, "a length of 17 with S_kv 16");
    assert!(e.to_string().contains("17") && e.to_string().contains("16"), "{e}");
    assert_eq!(b.uids().collect::<Vec<_>>(), before, "put back after the error");
}
