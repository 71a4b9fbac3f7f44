use super::tables::e4m3;
use super::*;

/// The search and the codec were written apart; on single-precision values they agree in every bit.
#[test]
fn the_tables_agree_with_the_codec() {
    let tables = Tables::new();
    let mut x = 0x9e37_79b9u32;
    for round in 0..4000 {
        let mut block = [0f32; BLOCK];
        for v in &mut block {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Exponents around the floor, the ordinary range and saturation in turn; few mantissa bits make ties frequent.
            let exponent = [110, 122, 127, 135][round % 4] + (x >> 29);
            let mantissa = if round % 2 == 0 { x & 0x7f_ffff } else { x & 0x70_0000 };
            *v = f32::from_bits((x & 0x8000_0000) | exponent << 23 | mantissa);
        }
        if round % 7 == 0 {
            block[round % BLOCK] = [0.0, -0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY][round / 7 % 5];
        }
        let mut wide: Vec<f64> = block.iter().map(|&v| v.into()).collect();
        let shown = block;
        tables.row(&mut wide);
        crate::codec::nvfp4::fake_quant_row(&mut block);
        for (a, b) in wide.iter().zip(&block) {
            assert_eq!((*a as f32).to_bits(), b.to_bits(), "{shown:?}");
        }
    }
}

#[test]
fn tables_hold_the_formats() {
    let scales: Vec<f64> = e4m3().collect();
    assert_eq!((scales[0], scales[6], scales[7], scales[125]), (2f64.powi(-9), 7.0 / 512.0, 2f64.powi(-6), 448.0));
    assert!(scales.windows(2).all(|w| w[0] < w[1]));
    let t = Tables::new();
    // The tie of the specification: 0.5859375 / 0.46875 is 1.25, which goes to the even code 1.0.
    assert_eq!(t.value(0.585_937_5, 0.468_75), 0.468_75);
    assert_eq!(t.value(-5.0, 1.0), -4.0);
    assert_eq!(t.value(1e9, 1.0), 6.0);
    assert_eq!(t.scales[t.scale(0.0)], 2f64.powi(-9));
    assert_eq!(t.scales[t.scale(f64::INFINITY)], 448.0);
}

/// Away from ties a probability has no reach; within its error of one it reaches the neighbour.
#[test]
fn reach_is_the_step_at_a_tie_and_nothing_elsewhere() {
    let qat = Qat {
        problem: Problem {
            b: 1,
            h_q: 1,
            h_kv: 1,
            s_q: 1,
            s_kv: 1,
            d_qk: 1,
            d_v: 1,
            lens: crate::sdpa::Lengths { q: vec![1], kv: vec![1] },
            left: None,
            right: None,
            bottom_right: false,
            scale: 1.0,
            q: vec![0.0],
            k: vec![0.0],
            v: vec![0.0],
            bias: None,
            sink: None,
        },
        tables: Tables::new(),
        q_norm: vec![],
        k_norm: vec![],
    };
    // amax 6/16 gives the scale 1/16 far from an E4M3 tie; 2.5/16 lies on the tie of 2 and 3.
    let block = |p: f64| [Probability { key: 0, p: 6.0 / 16.0, error: 1e-6 }, Probability { key: 1, p, error: 1e-6 }];
    let mut out = Vec::new();
    qat.block(&block(2.2 / 16.0), &mut out);
    assert_eq!((out[0].reach, out[1].value, out[1].reach), (0.0, 2.0 / 16.0, 0.0));
    out.clear();
    qat.block(&block(2.5 / 16.0 * (1.0 + 1e-7)), &mut out);
    assert_eq!((out[1].value, out[1].reach), (3.0 / 16.0, 1.0 / 16.0));
    out.clear();
    // amax / 6 within its error of the tie between the scales 16/256 and 18/256: the whole block reaches.
    let edge = 6.0 * 17.0 / 256.0 * (1.0 + 1e-7);
    qat.block(&[Probability { key: 0, p: edge, error: 1e-6 }, Probability { key: 1, p: 1.0 / 16.0, error: 1e-6 }], &mut out);
    assert!(out[0].reach > 0.0 && out[1].reach > 0.0);
}
