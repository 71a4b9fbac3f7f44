//! Buffers for a compiled graph: values by the tensor's role, which its name tells.

use frostgraph::engines::Uid;
use frostgraph::exec::{Bindings, Executable, HostWorkspace, Stream};
use frostgraph::{DType, Result};
use std::collections::BTreeMap;

/// Host buffers by uid, 8-byte aligned, exactly as long as the operand asks.
pub struct Data {
    store: BTreeMap<Uid, (Vec<u64>, usize, bool)>,
}

/// A small generator: values must be the same on every machine.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In -1..1.
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

fn fill(bytes: &mut [u8], dtype: DType, rng: &mut Rng, f: impl Fn(&mut Rng, usize) -> f32) {
    match dtype {
        DType::F32 => bytemuck::cast_slice_mut::<u8, f32>(bytes).iter_mut().enumerate().for_each(|(i, x)| *x = f(rng, i)),
        DType::BF16 => bytemuck::cast_slice_mut::<u8, half::bf16>(bytes)
            .iter_mut()
            .enumerate()
            .for_each(|(i, x)| *x = half::bf16::from_f32(f(rng, i))),
        DType::F16 => bytemuck::cast_slice_mut::<u8, half::f16>(bytes)
            .iter_mut()
            .enumerate()
            .for_each(|(i, x)| *x = half::f16::from_f32(f(rng, i))),
        DType::I32 => bytemuck::cast_slice_mut::<u8, i32>(bytes).iter_mut().enumerate().for_each(|(i, x)| *x = f(rng, i) as i32),
        other => panic!("test data of type {other}"),
    }
}

impl Data {
    /// Inputs from a seed; outputs and everything else poisoned with 0xFF (NaN in every float format).
    ///
    /// Names with a meaning: `seq_len_*` (tokens 9, 5, 9, 5, ..), `cu_seq_len_*` and `offset_*` (their running sum), `page_table_*`
    /// (pages in descending order), `ones`. Stats are near the log of the number of keys, so that P is of the usual size.
    pub fn new(exe: &Executable, seed: u64) -> Data {
        let mut rng = Rng(seed);
        let mut store = BTreeMap::new();
        for o in exe.operands() {
            let bytes = o.declared_bytes as usize;
            let mut words = vec![u64::MAX; bytes.div_ceil(8)];
            let view = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut words)[..bytes];
            let count = bytes / o.element_bytes() as usize;
            if !o.written {
                let running = |i: usize| (0..i).map(|j| if j % 2 == 0 { 9 } else { 5 }).sum::<i64>() as f32;
                match o.name.as_str() {
                    n if n.starts_with("seq_len") => fill(view, o.dtype, &mut rng, |_, i| if i % 2 == 0 { 9.0 } else { 5.0 }),
                    n if n.starts_with("cu_seq_len") || n.starts_with("offset") => {
                        fill(view, o.dtype, &mut rng, |_, i| running(i))
                    }
                    n if n.starts_with("page_table") => fill(view, o.dtype, &mut rng, |_, i| (count - 1 - i) as f32),
                    "ones" => fill(view, o.dtype, &mut rng, |_, _| 1.0),
                    n if n.starts_with("stats") => fill(view, o.dtype, &mut rng, |r, _| 2.8 + 0.1 * r.unit()),
                    _ => fill(view, o.dtype, &mut rng, |r, _| r.unit()),
                }
            }
            store.insert(o.uid, (words, bytes, o.written));
        }
        Data { store }
    }

    pub fn bindings(&mut self) -> Bindings<'_> {
        let mut b = Bindings::new();
        for (&uid, (words, bytes, written)) in &mut self.store {
            if *written {
                b.write(uid, &mut bytemuck::cast_slice_mut::<u64, u8>(words)[..*bytes]);
            } else {
                b.read(uid, &bytemuck::cast_slice::<u64, u8>(words)[..*bytes]);
            }
        }
        b
    }

    pub fn bytes(&self, uid: Uid) -> &[u8] {
        let (words, bytes, _) = &self.store[&uid];
        &bytemuck::cast_slice::<u64, u8>(words)[..*bytes]
    }

    pub fn set(&mut self, uid: Uid, value: &[u8]) {
        let (words, bytes, _) = self.store.get_mut(&uid).unwrap();
        bytemuck::cast_slice_mut::<u64, u8>(words)[..*bytes].copy_from_slice(value);
    }

    /// Runs with a workspace of exactly the size asked for, poisoned.
    pub fn run(&mut self, exe: &Executable) -> Result<()> {
        let mut w = HostWorkspace::new(exe.workspace_bytes()).unwrap();
        w.bytes_mut().fill(0xFF);
        exe.execute(&Stream::cpu(), &mut self.bindings(), &mut w.workspace())
    }
}
