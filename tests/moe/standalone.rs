//! The function without a graph.

use frostgraph::prelude::*;
use frostgraph::standalone::{moe_grouped_matmul, moe_grouped_matmul_workspace_bytes, MoeGroupedMatmulCall, Operand};
use frostgraph::ErrorCode;
use half::bf16;

/// Two tokens (1, 2) and (3, 4); expert 0 sums the coordinates, expert 1 takes their difference.
struct Data {
    token: [bf16; 4],
    weight: [bf16; 4],
    offsets: [i32; 3],
    index: [i32; 3],
    output: [f32; 3],
    status: [i32; 1],
}

fn data() -> Data {
    Data {
        token: [1.0, 2.0, 3.0, 4.0].map(bf16::from_f32),
        weight: [1.0, 1.0, -1.0, 1.0].map(bf16::from_f32),
        offsets: [0, 1, 3],
        index: [1, 0, 1],
        output: [f32::NAN; 3],
        status: [-1],
    }
}

fn run(x: &mut Data, edit: impl for<'a> FnOnce(&mut MoeGroupedMatmulCall<'a>)) -> frostgraph::Result<()> {
    let mut call = MoeGroupedMatmulCall::new(
        Operand::read(&x.token, [1, 2, 2, 1]),
        Operand::read(&x.weight, [2, 2, 1, 1]).strides([2, 1, 2, 1]),
        Operand::read(&x.offsets, [3, 1, 1, 1]),
        Operand::write(&mut x.output, [1, 3, 1, 1]),
    );
    call.mode = MoeMode::Gather;
    call.token_index = Operand::read(&x.index, [1, 3, 1, 1]);
    call.status = Operand::write(&mut x.status, [1, 1, 1, 1]);
    edit(&mut call);
    assert_eq!(moe_grouped_matmul_workspace_bytes(&Device::cpu(), &call)?, 0);
    moe_grouped_matmul(&Device::cpu(), &Stream::cpu(), call, &mut Workspace::none())
}

#[test]
fn a_product_by_hand() {
    let mut x = data();
    run(&mut x, |_| {}).unwrap();
    assert_eq!((x.output, x.status), ([7.0, 1.0, 1.0], [0]));
    // A row that no group has is not touched.
    let mut x = Data { offsets: [0, 1, 2], ..data() };
    run(&mut x, |c| c.acc_dtype = DType::F64).unwrap();
    assert!(x.output[..2] == [7.0, 1.0] && x.output[2].is_nan());
}

#[test]
fn faults_are_coded_and_no_rows_is_no_work() {
    let code = |edit: fn(&mut MoeGroupedMatmulCall<'_>)| run(&mut data(), edit).map_err(|e| e.code);
    assert_eq!(code(|c| c.token_index = Operand::default()), Err(ErrorCode::MissingPort));
    assert_eq!(code(|c| c.output = Operand::default()), Err(ErrorCode::MissingPort));
    assert_eq!(code(|c| c.mode = MoeMode::Scatter), Err(ErrorCode::MissingPort));
    assert_eq!(code(|c| c.token_scale = Operand::shape(DType::F8E8M0, [1, 128, 4, 1])), Err(ErrorCode::MissingPort));
    assert_eq!(code(|c| c.acc_dtype = DType::F16), Err(ErrorCode::MoeFixedType));
    assert_eq!(code(|c| c.output = Operand::shape(DType::F32, [1, 4, 1, 1])), Err(ErrorCode::MoeShape));
    assert_eq!(code(|c| c.token_index = Operand::shape(DType::I32, [1, 0, 1, 1])), Ok(()));
    // An extent that the operand does not have is no extent to drop.
    assert_eq!(code(|c| c.token = Operand::shape(DType::BF16, [1, 2, 2, 2])), Err(ErrorCode::MoeShape));
    assert_eq!(code(|c| c.status = Operand::shape(DType::I32, [1, 1, 2, 1])), Err(ErrorCode::MoeShape));
}
