//! Whether a warp tells an mbarrier that it has read a buffer while the load from it is still on its way, in the machine code of a Hopper kernel.
//!
//! PTX orders the two, but only the words that somebody has waited for are certain to have left shared memory: where wgmma takes all of its
//! bandwidth, an LDSM waits hundreds of clocks, the arrive does not, and TMA refills the buffer underneath (`kernels/sdpa/fwd/sm90`, its log).
//! A use of the loaded registers before the arrive, such as a vote, makes the wait.
//!
//! Read here is what ptxas leaves of it: a load from shared memory names one of six scoreboards, and who needs its registers waits for that one.
//! Loads of a warp return in order, so a wait for a later one is a wait for all before it.

use frostgraph::runtime::Cubin;

/// One machine instruction: 16 bytes; the opcode with its predicate in the lowest, scheduling from bit 105 on.
#[derive(Clone, Copy)]
struct Instruction(u128);

/// What matters here of an instruction.
#[derive(Debug, PartialEq, Eq)]
enum Kind {
    /// LDS, LDSM.
    SharedLoad,
    /// SYNCS.ARRIVE.
    Arrive,
    /// BRA, EXIT, RET without a condition: what follows is reached from elsewhere.
    End,
    Other,
}

/// Scoreboard field of an instruction that signals none.
const NONE: u32 = 7;

impl Instruction {
    fn kind(self) -> Kind {
        match (self.0 & 0xfff, self.0 >> 12 & 0xf) {
            (0x984 | 0x83b, _) => Kind::SharedLoad,
            (0x9a7, _) => Kind::Arrive,
            (0x947 | 0x94d | 0x950, 7) => Kind::End,
            _ => Kind::Other,
        }
    }

    /// The scoreboard that its result is signalled on.
    fn signals(self) -> u32 {
        (self.0 >> 110) as u32 & 7
    }

    fn awaits(self, scoreboard: u32) -> bool {
        self.0 >> (116 + scoreboard) & 1 == 1
    }
}

/// Places (byte in the code) of arrives that stand behind a load from shared memory for which nobody has waited.
fn over_loads(code: &[u8]) -> Vec<usize> {
    let mut found = Vec::new();
    let mut pending: Vec<u32> = Vec::new(); // scoreboards, in the order of the loads
    for (n, bytes) in code.chunks_exact(16).enumerate() {
        let i = Instruction(u128::from_le_bytes(bytes.try_into().expect("16 bytes")));
        if let Some(last) = pending.iter().rposition(|s| i.awaits(*s)) {
            pending.drain(..=last);
        }
        match i.kind() {
            Kind::SharedLoad if i.signals() != NONE => pending.push(i.signals()),
            Kind::Arrive if !pending.is_empty() => found.push(16 * n),
            Kind::End => pending.clear(),
            Kind::SharedLoad | Kind::Arrive | Kind::Other => {}
        }
    }
    found
}

/// The faults of an image.
pub fn faults(cubin: &Cubin) -> Vec<String> {
    let Some(code) = cubin.machine_code() else { return vec![format!("no machine code of {}", cubin.entry)] };
    let places = over_loads(code).into_iter();
    places
        .map(|at| format!("at {at:#x} an mbarrier is told of a read that is still on its way; expected a use of it before"))
        .collect()
}

#[test]
fn an_arrive_behind_a_load_that_nobody_awaits_is_found() {
    let op = |opcode: u128, signals: u128, awaits: u128| (opcode | signals << 110 | awaits << 116).to_le_bytes();
    let (lds, ldsm, arrive, add) = (0x7984, 0x783b, 0x79a7, 0x7210);
    let code = |list: &[[u8; 16]]| list.concat();
    let none = u128::from(NONE);
    assert_eq!(over_loads(&code(&[op(lds, 1, 0), op(arrive, none, 0)])), [16]);
    assert_eq!(
        over_loads(&code(&[op(ldsm, 0, 0), op(add, none, 2), op(arrive, none, 0)])),
        [32],
        "waited for another scoreboard"
    );
    assert_eq!(over_loads(&code(&[op(lds, 1, 0), op(add, none, 2), op(arrive, none, 0)])), [0_usize; 0], "used before");
    assert_eq!(over_loads(&code(&[op(lds, 1, 0), op(arrive, none, 2)])), [0_usize; 0], "the arrive itself waits");
    // In order: the later load is there, so is the earlier one; not the other way round.
    assert_eq!(over_loads(&code(&[op(lds, 1, 0), op(lds, 2, 0), op(add, none, 4), op(arrive, none, 0)])), [0_usize; 0]);
    assert_eq!(over_loads(&code(&[op(lds, 1, 0), op(lds, 2, 0), op(add, none, 2), op(arrive, none, 0)])), [48]);
    // Behind an unconditional branch other code begins; a predicated one goes on.
    assert_eq!(over_loads(&code(&[op(lds, 1, 0), op(0x7947, none, 0), op(arrive, none, 0)])), [0_usize; 0]);
    assert_eq!(over_loads(&code(&[op(lds, 1, 0), op(0x0947, none, 0), op(arrive, none, 0)])), [32]);
}
