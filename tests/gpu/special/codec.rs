//! The NVFP4 conversions of the GPU beside those of Rust: equal bits, exhaustively.

use super::{failed, test_kernel};
use crate::rng::Rng;
use crate::run::Gpu;
use frostgraph::engines::codec::{e2m1, e4m3, nvfp4};
use frostgraph::engines::launch::{Arg, Base};
use frostgraph::runtime::{DeviceBuffer, DeviceRange, Program};
use frostgraph::Result;
use half::bf16;

/// Every bf16 value under all 126 positive scales; every E2M1 midpoint of every scale with 64 neighbours on either side; every bf16 magnitude,
/// and every E4M3 midpoint with its neighbours, as the largest of a block; blocks at the floor; whole blocks with NaN, Inf and zeros.
pub fn nvfp4_bits(gpu: &Gpu, seed: u64) -> Result<()> {
    signed(gpu)?;
    positive(gpu)?;
    floor(gpu)?;
    scales(gpu)?;
    blocks(gpu, seed)
}

fn run(gpu: &Gpu, entry: &'static str, grid: [u32; 3], inputs: &[&[u32]], out: usize, n: Option<usize>) -> Result<Vec<u32>> {
    let result = DeviceBuffer::new(&gpu.device, 4 * out as u64)?;
    let mut buffers = Vec::new();
    for data in inputs {
        buffers.push(DeviceBuffer::from_slice(&gpu.device, data)?);
    }
    buffers.push(result);
    let mut args: Vec<Arg> = (0..buffers.len()).map(|i| Arg::Ptr(Base::Tensor(i as i64))).collect();
    args.extend(n.map(|n| Arg::I32(n as i32)));
    let program = Program::compile(&gpu.device, &[&test_kernel("test/nvfp4.cu", entry, grid, 256, args)])?;
    program.execute(gpu.stream.raw(), &|uid| buffers.get(uid as usize).map(|b| b.range()), DeviceRange::default())?;
    gpu.stream.synchronize()?;
    let bytes = buffers[inputs.len()].to_vec()?;
    Ok(bytes.chunks_exact(4).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect())
}

fn elements(gpu: &Gpu, entry: &'static str, inputs: &[&[u32]], out: usize, n: usize) -> Result<Vec<u32>> {
    run(gpu, entry, [n.div_ceil(256) as u32, 1, 1], inputs, out, Some(n))
}

fn compare(what: &str, got: &[u32], want: impl Fn(usize) -> u32, describe: impl Fn(usize) -> String) -> Result<()> {
    for (i, &bits) in got.iter().enumerate() {
        let want = want(i);
        if bits != want {
            return Err(failed(format!("{what} {}: bits {bits:08x}", describe(i)), format!("{want:08x}")));
        }
    }
    Ok(())
}

fn signed(gpu: &Gpu) -> Result<()> {
    let got = run(gpu, "fg_test_nvfp4_signed", [126, 128, 1], &[], 126 << 15, None)?;
    let value = |pair: usize, scale: f32| -> u32 {
        let q = |x: usize| u32::from(nvfp4::quantise(bf16::from_bits(x as u16).to_f32(), scale).to_bits());
        q(2 * pair) | q(2 * pair + 1) << 16
    };
    let scale = |i: usize| e4m3::decode((i >> 15) as u8 + 1);
    compare("a pair", &got, |i| value(i & 0x7fff, scale(i)), |i| format!("{:#x} / {}", 2 * (i & 0x7fff), scale(i)))
}

fn positive(gpu: &Gpu) -> Result<()> {
    let (mut x, mut s) = (Vec::new(), Vec::new());
    for scale in (1..0x7f).map(e4m3::decode) {
        for pair in e2m1::VALUES[..8].windows(2) {
            let mid: f32 = (pair[0] + pair[1]) / 2.0 * scale;
            for ulp in -64i32..=64 {
                x.push(mid.to_bits().wrapping_add_signed(ulp));
                s.push(scale.to_bits());
            }
        }
        for special in [0.0, f32::INFINITY, f32::NAN, f32::MAX, f32::from_bits(1)] {
            x.push(special.to_bits());
            s.push(scale.to_bits());
        }
    }
    let got = elements(gpu, "fg_test_nvfp4_positive", &[&x, &s], x.len(), x.len())?;
    let (x, s) = (|i: usize| f32::from_bits(x[i]), |i: usize| f32::from_bits(s[i]));
    compare("fp4_fake", &got, |i| nvfp4::quantise(x(i), s(i)).to_f32().to_bits(), |i| format!("{:e} / {}", x(i), s(i)))
}

fn floor(gpu: &Gpu) -> Result<()> {
    let limit = (6.0 * nvfp4::FLOOR).to_bits();
    let mut x: Vec<u32> = (0..=limit).step_by(509).chain([limit]).collect();
    for pair in e2m1::VALUES[..8].windows(2) {
        let mid = ((pair[0] + pair[1]) / 2.0 * nvfp4::FLOOR).to_bits();
        x.extend(mid - 64..=mid + 64);
    }
    let got = elements(gpu, "fg_test_nvfp4_floor", &[&x], x.len(), x.len())?;
    let want = |i: usize| nvfp4::quantise(f32::from_bits(x[i]), nvfp4::FLOOR).to_f32().to_bits();
    compare("fp4_fake_floor", &got, want, |i| format!("{:e}", f32::from_bits(x[i])))
}

fn scales(gpu: &Gpu) -> Result<()> {
    let mut x: Vec<u32> = (0..=0x7f80u32).map(|b| b << 16).collect();
    for code in 1..0x7e {
        let mid = (e4m3::decode(code) + e4m3::decode(code + 1)) / 2.0 * 6.0;
        x.extend((-64i32..=64).map(|ulp| mid.to_bits().wrapping_add_signed(ulp)));
    }
    x.extend([-1.0f32, f32::NAN, 0.0, f32::MAX].map(f32::to_bits));
    let got = elements(gpu, "fg_test_nvfp4_scales", &[&x], x.len(), x.len())?;
    compare("the scale of", &got, |i| nvfp4::scale(f32::from_bits(x[i])).to_bits(), |i| format!("{:e}", f32::from_bits(x[i])))
}

fn blocks(gpu: &Gpu, seed: u64) -> Result<()> {
    const N: usize = 1 << 14;
    let mut rng = Rng(seed);
    let values: Vec<u16> = (0..N * 16)
        .map(|i| {
            let bits = rng.next() as u16;
            match i / 16 % 8 {
                // Any bits, infinities and NaN of both signs among them.
                0 => bits,
                1 => 0x8000 & bits,
                // Around the floor's reach, around 1, and near one another.
                2 | 3 => 0x3a00 + (bits & 0x83ff),
                4 | 5 => 0x3e00 + (bits & 0x83ff),
                _ => 0x4000 + (bits & 0x803f),
            }
        })
        .collect();
    let x: Vec<u32> = values.chunks_exact(2).map(|p| u32::from(p[0]) | u32::from(p[1]) << 16).collect();
    let got = elements(gpu, "fg_test_nvfp4_blocks", &[&x], x.len(), N)?;
    let want: Vec<u32> = values
        .chunks_exact(16)
        .flat_map(|block| {
            let mut row: Vec<f32> = block.iter().map(|&b| bf16::from_bits(b).to_f32()).collect();
            nvfp4::fake_quant_block(&mut row, |_| true);
            let bits: Vec<u32> = row.iter().map(|&v| u32::from(bf16::from_f32(v).to_bits())).collect();
            bits.chunks_exact(2).map(|p| p[0] | p[1] << 16).collect::<Vec<_>>()
        })
        .collect();
    compare("block", &got, |i| want[i], |i| format!("{} of {:04x?}", i / 8, &values[i / 8 * 16..i / 8 * 16 + 16]))
}
