//! Exhaustive checks of the formats against tables, against `float4` and `float8`, and of the special values.

use super::{e2m1, e4m3, e5m2, e8m0};
use float4::{E8M0, F4E2M1};
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

/// Every bf16 and every f16 value, the neighbourhood of every given point, and a few million bit patterns in between.
fn inputs(points: &[f32]) -> impl Iterator<Item = f32> + '_ {
    let bf16s = (0..=u16::MAX).map(|b| bf16::from_bits(b).to_f32());
    let f16s = (0..=u16::MAX).map(|b| f16::from_bits(b).to_f32());
    let near = points.iter().flat_map(|&p| [p.next_down(), p, p.next_up()]).flat_map(|x| [x, -x]);
    let spread = (0..1u32 << 20).map(|i| f32::from_bits(i.wrapping_mul(4093).rotate_left(7)));
    bf16s.chain(f16s).chain(near).chain(spread)
}

/// The values of a format's non-negative finite codes, ascending, and the midpoints between neighbours (exact in f32).
fn midpoints(values: &[f32]) -> Vec<f32> {
    values.windows(2).map(|w| (w[0] + w[1]) / 2.0).collect()
}

/// Nearest code by search over the midpoints; a tie goes to the even code. The oracle of all three signed formats.
fn nearest(x: f32, mids: &[f32], sign_bit: u8, nan: u8) -> u8 {
    if x.is_nan() {
        return nan;
    }
    let a = x.abs();
    let below = mids.partition_point(|&m| m < a) as u8;
    let code = if mids.get(usize::from(below)) == Some(&a) { below + (below & 1) } else { below };
    if x.is_sign_negative() {
        code | sign_bit
    } else {
        code
    }
}

#[test]
fn e2m1_is_nearest_even_saturating_with_the_hardware_nan() {
    let mids = midpoints(&e2m1::VALUES[..8]);
    assert_eq!(mids, [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]);
    for x in inputs(&mids) {
        let want = nearest(x, &mids, 8, 7);
        assert_eq!(e2m1::encode(x), want, "{x:e}");
        assert_eq!(e2m1::round(x).to_bits(), e2m1::decode(want).to_bits(), "{x:e}");
        assert_eq!(F4E2M1::from_f64(x.into()).to_bits(), want, "float4 of {x:e}");
    }
    for (x, want) in [(0.25, 0), (0.75, 2), (1.25, 2), (1.75, 4), (2.5, 4), (3.5, 6), (5.0, 6), (-5.0, 14), (5.0f32.next_up(), 7)]
    {
        assert_eq!(e2m1::encode(x), want, "{x}");
    }
    assert_eq!([e2m1::encode(f32::NAN), e2m1::encode(-f32::NAN)], [7, 7]);
    assert_eq!([e2m1::encode(f32::INFINITY), e2m1::encode(f32::NEG_INFINITY)], [7, 15]);
    assert_eq!([e2m1::encode(0.0), e2m1::encode(-0.0), e2m1::encode(-0.1)], [0, 8, 8]);
    for code in 0..16 {
        assert_eq!(e2m1::encode(e2m1::decode(code)), code);
        assert_eq!(F4E2M1::from_bits(code).to_f64(), f64::from(e2m1::decode(code)));
    }
}

#[test]
fn e4m3_is_nearest_even_saturating_with_the_hardware_nan() {
    let mids = midpoints(&e4m3::VALUES[..0x7f]);
    for x in inputs(&mids) {
        let want = nearest(x, &mids, 0x80, 0x7f);
        assert_eq!(e4m3::encode(x), want, "{x:e}");
        // `float8` keeps the sign of a NaN and agrees on the rest.
        if !x.is_nan() {
            assert_eq!(F8E4M3::from_f64(x.into()).to_bits(), want, "float8 of {x:e}");
        }
    }
    for (x, want) in
        [(1.0, 0x38), (448.0, 0x7e), (464.0, 0x7e), (1e9, 0x7e), (0.001_953_125, 1), (0.000_976_562_5, 0), (-1.5, 0xbc)]
    {
        assert_eq!(e4m3::encode(x), want, "{x}");
    }
    assert_eq!([e4m3::encode(f32::NAN), e4m3::encode(-f32::NAN)], [0x7f, 0x7f]);
    assert_eq!([e4m3::encode(f32::INFINITY), e4m3::encode(f32::NEG_INFINITY)], [0x7e, 0xfe]);
    for code in 0..=255u8 {
        let (ours, theirs) = (e4m3::decode(code), F8E4M3::from_bits(code).to_f32());
        assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{code:#x}: {ours} {theirs}");
        assert_eq!(ours.is_nan(), code & 0x7f == 0x7f);
        if !ours.is_nan() {
            assert_eq!(e4m3::encode(ours), code);
        }
    }
}

#[test]
fn e5m2_is_nearest_even_saturating_with_the_hardware_nan() {
    let mids = midpoints(&e5m2::VALUES[..0x7c]);
    for x in inputs(&mids) {
        let want = nearest(x, &mids, 0x80, 0x7f);
        assert_eq!(e5m2::encode(x), want, "{x:e}");
        if !x.is_nan() {
            assert_eq!(F8E5M2::from_f64(x.into()).to_bits(), want, "float8 of {x:e}");
        }
    }
    for (x, want) in [(1.0, 0x3c), (57344.0, 0x7b), (61440.0, 0x7b), (1e9, 0x7b), (-1.5, 0xbe)] {
        assert_eq!(e5m2::encode(x), want, "{x}");
    }
    assert_eq!([e5m2::encode(f32::NAN), e5m2::encode(-f32::NAN)], [0x7f, 0x7f]);
    assert_eq!([e5m2::encode(f32::INFINITY), e5m2::encode(f32::NEG_INFINITY)], [0x7b, 0xfb]);
    for code in 0..=255u8 {
        // E5M2 is the upper byte of f16.
        let f16 = f16::from_bits(u16::from(code) << 8).to_f32();
        assert!(e5m2::decode(code).to_bits() == f16.to_bits() || e5m2::decode(code).is_nan() && f16.is_nan(), "{code:#x}");
        if e5m2::decode(code).is_finite() {
            assert_eq!(e5m2::encode(f16), code);
        }
    }
}

#[test]
fn e8m0_decodes_every_power_and_inverts_it() {
    for code in 0..=254u8 {
        let value = e8m0::decode(code);
        assert_eq!(f64::from(value), 2f64.powi(i32::from(code) - 127));
        assert_eq!(f64::from(value), E8M0::from_bits(code).to_f64());
        assert_eq!(f64::from(e8m0::reciprocal(code)), 2f64.powi(127 - i32::from(code)));
        assert_eq!([e8m0::encode_up(value), e8m0::encode_nearest(value)], [code; 2]);
        let up = code.saturating_add(1).min(254);
        assert_eq!(e8m0::encode_up(value.next_up()), up, "{code}");
        assert_eq!(e8m0::encode_up(value.next_down()), code, "{code}");
        let middle = value as f64 * 1.5;
        if code < 254 {
            assert_eq!(e8m0::encode_nearest(middle as f32), up, "{code}");
            assert_eq!(e8m0::encode_nearest((middle as f32).next_down()), code, "{code}");
        }
    }
    assert!(e8m0::decode(e8m0::NAN).is_nan() && e8m0::reciprocal(e8m0::NAN).is_nan());
    assert_eq!(e8m0::decode(e8m0::ONE), 1.0);
}

#[test]
fn e8m0_special_values() {
    for encode in [e8m0::encode_up, e8m0::encode_nearest] {
        assert_eq!([encode(0.0), encode(-0.0), encode(f32::from_bits(1))], [0, 0, 0]);
        assert_eq!([encode(f32::MAX), encode(f32::INFINITY)], [254, 254]);
        assert_eq!([encode(f32::NAN), encode(-f32::NAN)], [255, 255]);
        assert_eq!(encode(-3.0), encode(3.0), "the magnitude counts");
    }
    assert_eq!([e8m0::encode_up(3.0), e8m0::encode_nearest(3.0), e8m0::encode_nearest(2.9)], [129, 129, 128]);
    for x in inputs(&[]).filter(|x| !x.is_sign_negative()) {
        assert_eq!(e8m0::encode_up(x), E8M0::from_f64(x.into()).to_bits(), "float4 of {x:e}");
    }
}

#[test]
fn packed_elements_start_in_the_low_nibble() {
    let mut packed = [0u8; 3];
    for (i, code) in [1, 2, 3, 4, 5].into_iter().enumerate() {
        e2m1::set(&mut packed, i, code);
    }
    assert_eq!(packed, [0x21, 0x43, 0x05]);
    e2m1::set(&mut packed, 1, 0xff);
    assert_eq!(packed, [0xf1, 0x43, 0x05]);
    assert_eq!((0..6).map(|i| e2m1::get(&packed, i)).collect::<Vec<_>>(), [1, 15, 3, 4, 5, 0]);
    assert_eq!(F4E2M1::from_bits(1).to_f64(), f64::from(e2m1::decode(e2m1::get(&packed, 0))));
}
