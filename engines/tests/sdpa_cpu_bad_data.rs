//! Data that contradicts the graph: an error that names the tensor, the value and the rule; outputs stay as they were.

mod support;

use frostgraph_engines::sdpa::access::{Inputs, Place, Rows};
use frostgraph_engines::sdpa::{dense, oracle, Direction, Lengths};
use frostgraph_engines::{DType, Port, Ragged};
use std::collections::BTreeMap;
use support::uid::*;
use support::*;

fn ints(values: &[i32]) -> Buffer {
    let mut b = Buffer::filled(values.len() * 4, 0);
    b.bytes_mut().chunks_exact_mut(4).zip(values).for_each(|(b, x)| b.copy_from_slice(&x.to_ne_bytes()));
    b
}

fn refused(spec: &Spec, uid: i64, values: &[i32], tensor: &str, given: &str) {
    let mut case = Case::new(spec.clone());
    case.inputs.insert(uid, ints(values));
    let error = case.forward().unwrap_err();
    assert_eq!(error.tensor, tensor, "{error}");
    assert!(error.given.contains(given), "{error}");
    if spec.page.is_none() {
        case.inputs.insert(O, Buffer::filled(1 << 20, 0));
        case.inputs.insert(STATS, Buffer::filled(1 << 20, 0));
        assert_eq!(case.run_backward().unwrap_err(), error);
    }
    let inputs: Inputs<'_> = case.inputs.iter().map(|(u, b)| (*u, b.bytes())).collect();
    assert_eq!(oracle::forward(&case.facts(Direction::Forward), &inputs).unwrap_err(), error);
}

#[test]
fn lengths_out_of_range() {
    let spec = Spec { lens: Some((vec![5, 9], vec![7, 3])), ..Spec::new(2, 2, 1, 9, 8, 8) };
    refused(&spec, LEN_Q, &[5, 10], "lengths of Q", "length 10 of sequence 1");
    refused(&spec, LEN_Q, &[-1, 9], "lengths of Q", "length -1 of sequence 0");
    refused(&spec, LEN_KV, &[7, i32::MAX], "lengths of K", "2147483647");
    refused(&spec, LEN_KV, &[7], "lengths of K", "4 bytes");
    let cu = Spec { cu: true, ..spec };
    refused(&cu, LEN_KV, &[0, 7, 6], "lengths of K", "entry 2 is 6 after 7");
    refused(&cu, LEN_KV, &[-1, 7, 9], "lengths of K", "entry 0 is -1");
    refused(&cu, LEN_Q, &[0, 10, 12], "lengths of Q", "length 10 of sequence 0");
    refused(&cu, LEN_Q, &[0, 9], "lengths of Q", "8 bytes");
}

#[test]
fn ragged_offsets_out_of_range() {
    let spec = Spec { lens: Some((vec![5, 9], vec![7, 3])), packed: Some(PACKED), ..Spec::new(2, 2, 1, 9, 8, 8) };
    refused(&spec, OFFSETS + Q, &[0, 5, 4], "Q", "ragged offset[2] = 4 after 5");
    refused(&spec, OFFSETS + Q, &[-2, 5, 14], "Q", "ragged offset[0] = -2");
    refused(&spec, OFFSETS + K, &[0, 6, 10], "K", "sequence 0 of 7 rows");
    refused(&spec, OFFSETS + V, &[1000, 1007, 1010], "V", "buffer of");
    refused(&spec, OFFSETS + K, &[0, 7], "K", "8 bytes of ragged offsets");
}

/// Rule S1: head-major Stats whose head stride does not cover the packed tokens would alias.
#[test]
fn head_major_stats_need_room_for_every_token() {
    let packed = Some(Packed { head_major: true, ..PACKED });
    let case = Case::new(Spec { lens: Some((vec![5, 9], vec![7, 3])), packed, ..Spec::new(2, 2, 1, 9, 8, 8) });
    let mut facts = case.facts(Direction::Forward);
    facts.ports.stats.as_mut().unwrap().stride[1] = 13;
    let error = case.execute(facts, &[O, STATS, MAX, SUM]).unwrap_err();
    assert_eq!(error.tensor, "Stats");
    assert!(error.given.contains("over 14 elements of a head at head stride 13"), "{error}");
}

/// Report 13: an index outside the pool is refused where it is used, and only there.
#[test]
fn page_indices_out_of_range() {
    let spec = Spec { lens: Some((vec![1, 2], vec![33, 16])), page: Some(16), ..Spec::new(2, 2, 1, 2, 40, 8) };
    refused(&spec, TABLE_K, &[1, 2, 8, 4, 0, 0], "page table of K", "page index 8 in entry (0, 2)");
    refused(&spec, TABLE_V, &[1, 2, -1, 4, 0, 0], "page table of V", "page index -1 in entry (0, 2)");
    let mut case = Case::new(spec);
    case.inputs.insert(TABLE_K, ints(&[1, 2, 3, 4, i32::MAX, i32::MIN]));
    case.forward().unwrap();
}

#[test]
fn buffers_that_are_too_small_or_missing() {
    let mut case = Case::new(Spec::new(2, 2, 1, 9, 8, 8));
    case.inputs.insert(K, Buffer::filled(2 * 8 * 8 * 4 - 1, 0));
    let error = case.forward().unwrap_err();
    assert_eq!(error.tensor, "K");
    assert!(error.given.contains("byte 512 in a buffer of 511"), "{error}");
    case.inputs.remove(&K);
    assert!(case.forward().unwrap_err().given.contains("no buffer is bound to uid 2"));
}

fn place(port: &Port, batch: usize, buffer: usize) -> Result<Place, frostgraph_engines::HostError> {
    let lens = Lengths { q: vec![port.dim[2]; batch], kv: vec![port.dim[2]; batch] };
    Place::new(port, Rows::Query, &lens, &BTreeMap::new(), buffer)
}

fn port(dim: [i64; 4], stride: [i64; 4]) -> Port {
    Port { uid: 1, name: "X".into(), dim, stride, dtype: DType::BF16, alignment: 16, is_virtual: false, ragged: None }
}

/// Rule S7 and reports 23, 25, 30: indices are 64-bit before they meet a stride, on every axis.
#[test]
fn element_indices_do_not_wrap() {
    let p = place(&port([1, 1, 4, 64], [1 << 40, 1 << 40, 800_000_000, 1]), 1, usize::MAX).unwrap();
    assert_eq!(p.row(0, 0, 3), 2_400_000_000);
    let p = place(&port([5, 3, 4, 64], [1 << 30, 1 << 33, 1 << 31, 1]), 5, usize::MAX).unwrap();
    assert_eq!(p.row(4, 2, 3), (4 << 30) + (2 << 33) + (3 << 31));
    // One element short of the last: refused, not wrapped.
    let need = ((4u64 << 30) + (2 << 33) + (3 << 31) + 64) * 2;
    assert!(place(&port([5, 3, 4, 64], [1 << 30, 1 << 33, 1 << 31, 1]), 5, need as usize).is_ok());
    assert!(place(&port([5, 3, 4, 64], [1 << 30, 1 << 33, 1 << 31, 1]), 5, need as usize - 1).is_err());
    for stride in [[i64::MAX, 1, 1, 1], [1, i64::MAX, 1, 1], [1, 1, i64::MAX / 2, 1], [1, 1, 1, i64::MAX / 2]] {
        let error = place(&port([5, 3, 4, 64], stride), 5, usize::MAX).unwrap_err();
        assert!(error.expected.contains("64 bits"), "{error}");
    }
    assert!(place(&port([2, 1, 4, 8], [32, 32, -8, 1]), 2, 4096).unwrap_err().given.contains("stride -8 on axis 2"));
}

/// Report 26: a token prefix times the token stride beyond 2^31, and a product beyond 2^63.
#[test]
fn ragged_offsets_are_widened_before_they_are_multiplied() {
    let (offsets, lens) = (ints(&[0, 262_143, 262_160]), Lengths { q: vec![17, 17], kv: vec![0, 0] });
    let inputs = BTreeMap::from([(9, offsets.bytes())]);
    let mut p = port([2, 1, 17, 64], [1, 1, 8192, 1]);
    p.ragged = Some(Ragged { uid: 9, dtype: DType::I32, multiplier: 8192 });
    let place = Place::new(&p, Rows::Query, &lens, &inputs, usize::MAX).unwrap();
    assert_eq!(place.row(1, 0, 16), 262_159 * 8192);
    p.ragged = Some(Ragged { uid: 9, dtype: DType::I32, multiplier: -1 });
    assert!(Place::new(&p, Rows::Query, &lens, &inputs, usize::MAX).unwrap_err().given.contains("multiplier -1"));
    p.ragged = Some(Ragged { uid: 9, dtype: DType::I32, multiplier: i64::MAX / 1000 });
    assert!(Place::new(&p, Rows::Query, &lens, &inputs, usize::MAX).unwrap_err().expected.contains("64 bits"));
}

/// The public helpers of the command line: what is written is read back, and the error measure never lets a NaN pass.
#[test]
fn dense_helpers() {
    for packed in [None, Some(PACKED)] {
        let spec = Spec { lens: Some((vec![5, 9], vec![7, 3])), packed, layout: Layout::Padded, ..Spec::new(2, 2, 1, 9, 8, 8) };
        let case = Case::new(spec);
        let facts = case.facts(Direction::Forward);
        let inputs: Inputs<'_> = case.inputs.iter().map(|(u, b)| (*u, b.bytes())).collect();
        let q = facts.ports.q.as_ref().unwrap();
        let read = dense::read_dense(&facts, q, Rows::Query, &inputs, inputs[&Q]).unwrap();
        assert_eq!(read, case.spots[&Q].read(inputs[&Q], 9));
        let mut copy = Buffer::filled(inputs[&Q].len(), 0xff);
        dense::write_dense(&facts, q, Rows::Query, &inputs, &read, copy.bytes_mut()).unwrap();
        assert_eq!(copy.bytes(), inputs[&Q]);
        let error = |bytes: &[u8], want: &[f64]| dense::relative_error(&facts, q, Rows::Query, &inputs, bytes, want).unwrap();
        assert_eq!(error(copy.bytes(), &read), 0.0);
        let twice: Vec<f64> = read.iter().map(|x| x * 2.0).collect();
        assert!((error(copy.bytes(), &twice) - 0.5).abs() < 1e-12);
        copy.bytes_mut()[..4].copy_from_slice(&f32::NAN.to_ne_bytes());
        assert_eq!(error(copy.bytes(), &read), f64::INFINITY);
        let mut infinite = read.clone();
        copy.bytes_mut()[..4].copy_from_slice(&f32::NEG_INFINITY.to_ne_bytes());
        assert_eq!(error(copy.bytes(), &read), f64::INFINITY);
        infinite[0] = f64::NEG_INFINITY;
        assert_eq!(error(copy.bytes(), &infinite), 0.0);
    }
}

/// Engine and public oracle read the same operands: the oracle on the buffers equals the oracle on the dense arrays.
#[test]
fn the_oracle_reads_what_the_buffers_hold() {
    for (page, packed) in [(None, None), (Some(5), None), (None, Some(PACKED))] {
        let lens = Some((vec![5, 9], vec![7, 3]));
        let spec = Spec {
            lens,
            page,
            packed,
            layout: Layout::Bshd,
            bias: Some((1, 2, DType::BF16)),
            sink: Some(vec![0.5, 1.0]),
            ..Spec::new(2, 2, 1, 9, 8, 8)
        };
        let mut case = Case::new(spec);
        let want = case.bind_forward();
        let inputs: Inputs<'_> = case.inputs.iter().map(|(u, b)| (*u, b.bytes())).collect();
        assert_eq!(oracle::forward(&case.facts(Direction::Forward), &inputs).unwrap(), want);
        if page.is_none() {
            assert_eq!(oracle::backward(&case.facts(Direction::Backward), &inputs).unwrap(), case.expect_backward());
        }
    }
}
