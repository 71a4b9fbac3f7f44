//! NVFP4 attention for quantisation-aware training: what its forward and its backward share, and the definition of both.
//!
//! Q, K and V are fake-quantised to NVFP4 along the head dim, 16 values a block ([`crate::codec::nvfp4`]), and used as Q^, K^, V^ in every
//! product. With the mask and the softmax scale of the node:
//!
//! ```text
//! LSE     = log sum over kept keys of exp(scale Q^ K^T)                  natural log, f32
//! P       = exp(scale Q^ K^T - LSE), 0 where masked                      f32
//! P~      = fake_nvfp4(P) along the keys, blocks of 16 that begin at keys which are multiples of 16
//! O_hp    = P V^                  O = P~ V^                              forward
//! delta   = rowsum(O_hp dO)       dS = P (dO V^T - delta)                backward
//! dQ      = scale dS K^           dK = scale dS^T Q^         dV = P~^T dO
//! ```
//!
//! dQ and dK pass the quantisers straight through (STE); dV does not see the P that was not quantised.
//!
//! # The forward is this project's own
//! The specification of the backward names its auxiliaries and no forward that makes them. The forward here quantises exactly the P that
//! the backward recomputes: **normalised**, from the final LSE. An online softmax that quantised against a running maximum would
//! quantise other numbers (a block scale is no power of two, so the later rescaling does not commute with it), and dV would then be the
//! gradient of another function. The price is a second pass over the scores; the gain is that dV is the exact derivative of O by V^, and
//! that the pair cannot be mismatched.
//!
//! # Rows without keys, and what is not a number
//! A query row without kept keys has O = O_hp = 0, LSE = -inf, and takes part in no gradient. NaN and infinities in Q, K and V follow the
//! quantiser, which saturates them; in dO and in the auxiliaries they reach what they touch.

pub mod check;
pub mod oracle;

use crate::caps::HeadDims;
use crate::Feature as F;

/// Head dims of the CPU rows: any that the analyzer lets through, which are multiples of the 16 values of a block.
pub(crate) const ANY_HEAD_DIM: HeadDims = HeadDims { native: &[], pad_multiple: 0, dqk_ge_dv: false };

/// Features that the CPU rows of both families serve.
pub(crate) const CPU_FEATURES: &[F] = &[
    F::Causal,
    F::RightBand,
    F::BottomRight,
    F::Window,
    F::Padding,
    F::SeqQTrim,
    F::StridedStats,
    F::Gqa,
    F::Decode,
    F::UnequalHeadDims,
    F::StridedHeadDim,
    F::BroadcastInput,
];
