//! Fake-quantisation against exact integer arithmetic: every bf16 value under every positive E4M3 scale.

use super::nvfp4::{amax, code, fake_quant_block, fake_quant_row, quantise, scale, scale_code, FLOOR};
use super::{e2m1, e4m3};
use half::bf16;

/// The 126 positive scales.
fn scales() -> impl Iterator<Item = f32> {
    (1..0x7fu8).map(e4m3::decode)
}

/// E2M1 code of |x| / s by exact comparison of |x| with midpoint times s (both products are exact in f64); no division.
fn exact(x: f64, s: f64) -> u8 {
    const MIDS: [f64; 7] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];
    let below = MIDS.partition_point(|m| m * s < x.abs()) as u8;
    let tie = MIDS.get(usize::from(below)).is_some_and(|m| m * s == x.abs());
    let magnitude = if tie { below + (below & 1) } else { below };
    magnitude | if x.is_sign_negative() { 8 } else { 0 }
}

#[test]
fn every_bf16_under_every_scale_is_exact() {
    let mut ties = 0;
    for s in scales() {
        for bits in 0..=u16::MAX {
            let x = bf16::from_bits(bits).to_f32();
            let want = if x.is_nan() { 7 } else { exact(x.into(), s.into()) };
            let value = f64::from(e2m1::decode(want)) * f64::from(s);
            let got = quantise(x, s);
            assert_eq!(f64::from(got.to_f32()).to_bits(), value.to_bits(), "{x:e} / {s}: the product is exact in bf16");
            ties += u32::from((x / s - 1.25) == 0.0);
        }
    }
    assert!(ties >= 126, "1.25 times every scale is a bf16 value: {ties}");
}

/// Midpoint times scale has at most seven significant bits, so it and its neighbours are inputs that occur.
#[test]
fn every_midpoint_under_every_scale_and_its_neighbours() {
    for s in scales() {
        for (mid, even) in [(0.25, 0.0), (0.75, 1.0), (1.25, 1.0), (1.75, 2.0), (2.5, 2.0), (3.5, 4.0), (5.0, 4.0)] {
            let x: f32 = mid * s;
            let at = |x: f32| e2m1::decode(code(x, s));
            let below = e2m1::VALUES[..8].iter().copied().rfind(|&v| v < mid).expect("a value");
            let above = e2m1::VALUES[..8].iter().copied().find(|&v| v > mid).expect("a value");
            assert_eq!(at(x), even, "{mid} * {s}");
            assert_eq!(at(x * (1.0 - 1.0 / 256.0)), below, "below {mid} * {s}");
            assert_eq!(at(x * (1.0 + 1.0 / 256.0)), above, "above {mid} * {s}");
            // One f32 ulp away the quotient may round to the midpoint itself; it never passes it.
            assert!([even, above].contains(&at(x.next_up())) && [even, below].contains(&at(x.next_down())));
            assert_eq!(at(-x), -even);
        }
    }
}

/// Facts §8.5: a product with the reciprocal does not keep this tie.
#[test]
fn the_quotient_1_25_is_a_tie_that_goes_to_even() {
    let (x, s) = (0.585_937_5f32, 0.468_75f32);
    assert_eq!(e4m3::decode(e4m3::encode(s)), s, "a scale that exists");
    assert_eq!(x / s, 1.25);
    assert_eq!(e2m1::decode(code(x, s)), 1.0);
    assert_eq!(quantise(x, s).to_f32(), s);
    let wrong = scales()
        .flat_map(|s| [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0].map(|m| (m, s)))
        .filter(|&(m, s): &(f32, f32)| e2m1::encode(m * s * (1.0 / s)) != e2m1::encode(m))
        .count();
    assert!(wrong > 0, "a product with the rounded reciprocal misses ties");
}

#[test]
fn scale_of_a_block() {
    assert_eq!([scale(0.0), scale(-1.0), scale(FLOOR), scale(f32::NAN)], [FLOOR; 4]);
    assert_eq!([scale_code(0.0), scale_code(448.0 * 6.0), scale_code(f32::INFINITY)], [1, 0x7e, 0x7e]);
    assert_eq!(scale(6.0), 1.0);
    // 6.375 / 6 = 1.0625 is the tie between 1 and 1.125 and goes to the even mantissa.
    assert_eq!([scale(6.375), scale(6.375f32.next_up()), scale(6.375f32.next_down())], [1.0, 1.125, 1.0]);
    // The floor holds while amax / 6 rounds to it: up to 9 * 2^-9, a tie between 2^-9 and 2^-8 that goes to the even code 2.
    assert_eq!([scale(9.0 * FLOOR), scale((9.0 * FLOOR).next_down())], [2.0 * FLOOR, FLOOR]);
    let codes: Vec<u8> = (0..0x7f80u16).map(|b| scale_code(bf16::from_bits(b).to_f32())).collect();
    assert!(codes.windows(2).all(|w| w[0] <= w[1]) && codes[0] == 1 && codes[0x7f7f] == 0x7e, "monotone over every bf16 amax");
}

#[test]
fn a_block_by_hand() {
    let mut x = [6.0, -3.0, 0.24, 0.26, -0.25, 5.0, 5.1, 1.25, 1.75, 2.5, 3.5, 0.0, -0.0, 1.0, -6.0, 0.75];
    assert_eq!(fake_quant_block(&mut x, |_| true), 1.0);
    assert_eq!(x, [6.0, -3.0, 0.0, 0.5, -0.0, 4.0, 6.0, 1.0, 2.0, 2.0, 4.0, 0.0, -0.0, 1.0, -6.0, 1.0]);
    assert!(x[4].is_sign_negative() && x[12].is_sign_negative() && !x[11].is_sign_negative());
}

#[test]
fn masked_lanes_neither_count_nor_survive() {
    let mut x = [1.5f32; 16];
    (x[3], x[7], x[9]) = (1e30, f32::NAN, f32::NEG_INFINITY);
    let valid = |i: usize| ![3, 7, 9].contains(&i);
    assert_eq!(amax(&x, valid), 1.5);
    assert_eq!(fake_quant_block(&mut x, valid), 0.25);
    for (i, v) in x.iter().enumerate() {
        assert_eq!(v.to_bits(), if valid(i) { 1.5f32.to_bits() } else { 0 }, "lane {i}");
    }
    let mut none = [f32::NAN; 16];
    assert_eq!(fake_quant_block(&mut none, |_| false), FLOOR);
    assert_eq!(none, [0.0; 16]);
}

#[test]
fn zero_blocks_short_blocks_and_the_floor() {
    let mut x = [0.0f32; 40];
    fake_quant_row(&mut x);
    assert_eq!(x, [0.0; 40]);
    // Below a quarter of the floor everything is zero; 6 * 2^-9 is the largest value that the floor's scale holds.
    let mut tiny = [FLOOR / 4.0, (FLOOR / 4.0).next_up(), FLOOR, 6.0 * FLOOR];
    fake_quant_row(&mut tiny);
    assert_eq!(tiny, [0.0, FLOOR / 2.0, FLOOR, 6.0 * FLOOR]);
    // Blocks start at the row's start, and each has its own scale.
    let mut row = [0.01f32; 17];
    row[16] = 6.0;
    fake_quant_row(&mut row);
    assert_eq!((row[15], row[16]), (quantise(0.01, FLOOR).to_f32(), 6.0));
}

#[test]
fn huge_infinite_and_nan_lanes() {
    let mut x = [f32::INFINITY, -1e38, 448.0, 1.0, f32::NAN, -f32::NAN];
    assert_eq!(fake_quant_block(&mut x, |_| true), 448.0);
    assert_eq!(x, [2688.0, -2688.0, 448.0, 0.0, 2688.0, 2688.0]);
    let mut nan = [f32::NAN, 3.0];
    assert_eq!(fake_quant_block(&mut nan, |_| true), 0.5);
    assert_eq!(nan, [3.0, 3.0], "NaN becomes 6 times the scale of the others");
    let mut only = [f32::NAN; 2];
    assert_eq!(fake_quant_block(&mut only, |_| true), FLOOR);
    assert_eq!(only, [6.0 * FLOOR; 2]);
}
