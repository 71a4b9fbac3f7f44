//! How each suite is timed.
//!
//! Under the power limit a clock overshoots for 100 to 200 ms before it settles (`kernels/PERFORMANCE.md`, section 17): with 60 ms of warm-up the
//! turns of one plan were 9 to 13 % apart, with 250 ms 2 to 4 %. So whoever decides a comparison gets [`SETTLED`] turns. Portable rows and
//! FlashAttention-2, whose `mma.sync` draws too little power to be slowed much, take [`BRIEF`] ones with the peers that are never first.
//!
//! What that costs on an H200, by the turns of the recorded times (`planned_seconds` of `tests/bench_rounds` prints these and fails when a suite
//! outgrows its budget), with 1.5 s a case to prepare and let go, and what comes before the first:
//!
//! | suite | cases | turns s | all s |
//! |---|---|---|---|
//! | `sdpa_bwd` | 14 | 117 | 146 |
//! | `sdpa_fwd` | 41 | 75 | 149 |
//! | `nvfp4_qat` | 4 | 26 | 52 |
//! | `grouped_gemm` | 6 | 52 | 74 |
//!
//! With `--warm 200` the backward takes 128 s. Two of its cases took 10 s each on 2026-11-30, with turns 2 to 5 % apart.

use crate::rounds::{Aside, Pace, Turn};

/// Past the overshoot.
const SETTLED: f64 = 250.0;
/// As long as a row of `mma.sync` needs to forget what ran before.
const BRIEF: Turn = Turn { warm_ms: 40.0, measure_ms: 10.0 };

const BACKWARD: Pace = Pace {
    rounds: 5,
    turn: Turn { warm_ms: SETTLED, measure_ms: 12.0 },
    seldom: &["cudnn_graph_deterministic"],
    aside: Aside { turn: BRIEF, names: &["default", "default_sm120_tiles", "deterministic", "fa2", "cudnn"] },
};

/// The backward: cases of a millisecond and more.
pub fn backward(d_qk: i64) -> Pace {
    // Up to this head dim FlashAttention-4's deterministic mode is the faster one by a tenth to three times.
    const BEHIND: i64 = 128;
    const NAMES: &[&str] = &["default", "default_sm120_tiles", "deterministic", "fa2", "cudnn", "cudnn_graph_deterministic"];
    match d_qk {
        ..=BEHIND => Pace { seldom: &[], aside: Aside { names: NAMES, ..BACKWARD.aside }, ..BACKWARD },
        _ => BACKWARD,
    }
}

/// The forward's cases of the peers' table.
pub const FORWARD: Pace = Pace {
    rounds: 5,
    turn: Turn { warm_ms: SETTLED, measure_ms: 12.0 },
    seldom: &[],
    aside: Aside { turn: BRIEF, names: &["default", "fa2", "efficient", "cudnn"] },
};

/// Decode, and problems of microseconds: no clock sinks under them.
pub const SHORT: Pace =
    Pace { rounds: 5, turn: Turn { warm_ms: 10.0, measure_ms: 8.0 }, seldom: &["efficient"], aside: Aside::NOBODY };

/// NVFP4 QAT: one peer, which the portable row is compared with too.
pub const QAT: Pace = Pace {
    rounds: 5,
    turn: Turn { warm_ms: SETTLED, measure_ms: 40.0 },
    seldom: &["backward", "nvfp4_qat_fwd_sm120"],
    aside: Aside::NOBODY,
};

/// The grouped products; two peers are there for orientation.
pub const GROUPED: Pace = Pace {
    rounds: 5,
    turn: Turn { warm_ms: SETTLED, measure_ms: 25.0 },
    seldom: &[],
    aside: Aside { turn: BRIEF, names: &["torch_dsrelu_even", "torch_fp8_product"] },
};
