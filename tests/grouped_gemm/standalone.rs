//! The function without a graph.

use frostgraph::prelude::*;
use frostgraph::standalone::{grouped_gemm_dsrelu, grouped_gemm_workspace_bytes, GroupedGemmDsreluCall, Operand};
use frostgraph::ErrorCode;
use half::bf16;

const M: usize = 256;
const N: usize = 32;
const K: usize = 32;

/// One expert, NVFP4: A = 1 and B = 0.5 everywhere with scales of 2 and 1, so that G = alpha * K.
struct Data {
    a: Vec<u8>,
    b: Vec<u8>,
    c: Vec<bf16>,
    sfa: Vec<u8>,
    sfb: Vec<u8>,
    ends: [i32; 1],
    alpha: [f32; 1],
    prob: Vec<f32>,
    d_row: Vec<bf16>,
    d_col: Vec<bf16>,
    dprob: Vec<f32>,
    amax: [f32; 1],
    dbias: Vec<bf16>,
}

fn data() -> Data {
    // E2M1 codes: 2 is 1.0, 1 is 0.5; E4M3 codes: 0x40 is 2, 0x38 is 1.
    Data {
        a: vec![0x22; M * K / 2],
        b: vec![0x11; N * K / 2],
        c: vec![bf16::from_f32(0.5); M * N],
        sfa: vec![0x40; 2 * 512],
        sfb: vec![0x38; 512],
        ends: [M as i32],
        alpha: [0.25],
        prob: vec![0.5; M],
        d_row: vec![bf16::NAN; M * N],
        d_col: vec![bf16::NAN; M * N],
        dprob: vec![f32::NAN; M],
        amax: [f32::NAN],
        dbias: vec![bf16::NAN; N],
    }
}

fn call(x: &mut Data) -> GroupedGemmDsreluCall<'_> {
    let (m, n, k) = (M as i64, N as i64, K as i64);
    let mut call = GroupedGemmDsreluCall::new(
        Operand::read_bytes(DType::F4E2M1, &x.a, [m, k, 1, 1]),
        Operand::read_bytes(DType::F4E2M1, &x.b, [n, k, 1, 1]),
        Operand::read(&x.c, [m, n, 1, 1]),
        Operand::read_bytes(DType::F8E4M3, &x.sfa, [1, 1, 1, 1024]),
        Operand::read_bytes(DType::F8E4M3, &x.sfb, [1, 1, 1, 512]),
        Operand::read(&x.ends, [1, 1, 1, 1]),
        Operand::read(&x.alpha, [1, 1, 1, 1]),
        Operand::read(&x.prob, [m, 1, 1, 1]),
    );
    call.d_row = Operand::write(&mut x.d_row, [m, n, 1, 1]);
    call.d_col = Operand::write(&mut x.d_col, [m, n, 1, 1]);
    call.dprob = Operand::write(&mut x.dprob, [m, 1, 1, 1]);
    call.amax = Operand::write(&mut x.amax, [1, 1, 1, 1]);
    call.dbias = Operand::write(&mut x.dbias, [1, n, 1, 1]);
    call
}

fn run(edit: impl for<'a> FnOnce(&mut GroupedGemmDsreluCall<'a>)) -> frostgraph::Result<Data> {
    let mut x = data();
    {
        let mut call = call(&mut x);
        edit(&mut call);
        let mut scratch = HostWorkspace::new(grouped_gemm_workspace_bytes(&Device::cpu(), &call)?).unwrap();
        grouped_gemm_dsrelu(&Device::cpu(), &Stream::cpu(), call, &mut scratch.workspace())?;
    }
    Ok(x)
}

/// By hand: G = 0.25 * 32 * (1 * 2) * 0.5 = 8; D = 0.5 * 2 * 0.5 * 8 = 4; dprob = 32 * 0.5 * 64 = 1024; dbias = 256 * 4.
#[test]
fn one_expert_by_hand() {
    let x = run(|_| {}).unwrap();
    assert!(x.d_row.iter().chain(&x.d_col).all(|d| d.to_f32() == 4.0));
    assert!(x.dprob.iter().all(|p| *p == 1024.0));
    assert_eq!(x.amax, [4.0]);
    assert!(x.dbias.iter().all(|b| b.to_f32() == 1024.0));
}

/// The other reading: D = 0.5 * 2 * G * relu(C) = 4, dprob = 32 * G * C^2 = 64; D is symmetric in G and C where both are positive.
#[test]
fn the_other_reading_by_hand() {
    let x = run(|c| c.formula = frostgraph::graph::DsreluFormula::PreactivationC).unwrap();
    assert!(x.d_row.iter().all(|d| d.to_f32() == 4.0));
    assert!(x.dprob.iter().all(|p| *p == 64.0));
}

/// t = tanh(8 / 2), b = 2 t: D = 0.5 * 2 * 0.5 * b (1 - t^2), dprob = 32 * 0.5 * b^2.
#[test]
fn the_clamp_by_hand() {
    let x = run(|c| c.tanh_clamp_scale = Some(2.0)).unwrap();
    let t = 4f64.tanh();
    let d = 0.5 * 2.0 * t * (1.0 - t * t);
    assert!((x.d_row[0].to_f64() - d).abs() < d / 256.0);
    assert!((f64::from(x.dprob[0]) - 16.0 * 4.0 * t * t).abs() < 1e-4);
}

#[test]
fn no_rows_is_no_work() {
    let mut x = data();
    let mut call = call(&mut x);
    call.a = Operand::read_bytes(DType::F4E2M1, &[], [0, K as i64, 1, 1]);
    assert_eq!(grouped_gemm_workspace_bytes(&Device::cpu(), &call).unwrap(), 0);
    grouped_gemm_dsrelu(&Device::cpu(), &Stream::cpu(), call, &mut Workspace::none()).unwrap();
    assert!(x.dprob.iter().all(|p| p.is_nan()), "returned as it came");
}

/// Rules 9 and 15 to 18 of facts §9.2, with tiles of 128 columns besides.
#[test]
fn tiles_and_clusters_are_judged_and_then_asked_of_the_rows() {
    let refused = |tile, cluster| run(|c| (c.mma_tiler_mn, c.cluster_shape_mn) = (tile, cluster)).err().map(|e| e.code);
    assert_eq!(refused(Some((64, 256)), None), Some(ErrorCode::GemmTile));
    assert_eq!(refused(Some((128, 192)), None), Some(ErrorCode::GemmTile));
    for cluster in [(1, 1), (3, 1), (2, 8), (8, 1), (4, 4)] {
        assert_eq!(refused(Some((256, 256)), Some(cluster)), Some(ErrorCode::GemmCluster), "{cluster:?}");
    }
    assert_eq!(refused(Some((128, 128)), Some((4, 1))), Some(ErrorCode::GemmCluster), "512 rows of a cluster");
    assert_eq!(refused(None, Some((2, 1))), Some(ErrorCode::GemmCluster));
    // The CPU row has no tiles: a choice is honoured or refused, never ignored.
    for (tile, cluster) in [((256, 256), None), ((256, 128), Some((2, 4))), ((128, 256), Some((2, 1)))] {
        assert_eq!(refused(Some(tile), cluster), Some(ErrorCode::BadKnob), "{tile:?}");
    }
    assert_eq!(run(|c| c.vector_f32 = true).err().map(|e| e.code), Some(ErrorCode::BadKnob));
    let e = run(|c| {
        c.vector_f32 = true;
        c.c = Operand::shape(DType::F8E4M3, [M as i64, N as i64, 1, 1]);
    });
    assert_eq!(e.err().map(|e| e.code), Some(ErrorCode::GemmCType));
}

#[test]
fn faults_of_a_call_are_coded() {
    let code = |edit: &dyn for<'a> Fn(&mut GroupedGemmDsreluCall<'a>)| run(edit).err().map(|e| e.code);
    assert_eq!(code(&|c| c.dprob = Operand::default()), Some(ErrorCode::MissingPort));
    assert_eq!(code(&|c| c.m_aligned = 128), Some(ErrorCode::GemmRowAlign));
    assert_eq!(code(&|c| c.sf_vec_size = 32), Some(ErrorCode::GemmScaleBlock));
    assert_eq!(code(&|c| c.acc_dtype = DType::F16), Some(ErrorCode::GemmFixedType));
    assert_eq!(code(&|c| c.sfd_row = Operand::shape(DType::F8E4M3, [1; 4])), Some(ErrorCode::GemmIdleOutput));
    assert_eq!(code(&|c| c.c = Operand::shape(DType::BF16, [M as i64, 16, 1, 1])), Some(ErrorCode::GemmShape));
    // An extent that the operand does not have is no extent to drop.
    assert_eq!(code(&|c| c.alpha = Operand::shape(DType::F32, [1, 2, 1, 1])), Some(ErrorCode::GemmShape));
    assert_eq!(code(&|c| c.c = Operand::shape(DType::BF16, [M as i64, 32, 1, 3])), Some(ErrorCode::GemmShape));
    assert_eq!(code(&|c| c.b_ptrs = Operand::shape(DType::I64, [1; 4])), Some(ErrorCode::MissingPort));
    assert!(run(|c| c.acc_dtype = DType::F64).is_ok());
}
