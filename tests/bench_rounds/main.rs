//! The benchmark's rounds and its protocol with the peers' scripts, without a GPU: fake peers speak through `benches/peers_timing.py`.

#[path = "../../benches/gpu_bench/args.rs"]
mod args;
#[path = "../../benches/gpu_bench/paces.rs"]
mod paces;
#[path = "../../benches/gpu_bench/peers.rs"]
mod peers;
mod planned;
#[path = "../../benches/gpu_bench/rounds.rs"]
mod rounds;

use peers::Peers;
use rounds::{about, alternate, case, line, median, Aside, Own, Pace, Turn, METHOD};
use serde_json::{json, Value};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const PACE: Pace = Pace {
    rounds: 3,
    turn: Turn { warm_ms: 6.0, measure_ms: 4.0 },
    seldom: &["b"],
    aside: Aside { turn: BRIEF, names: &["x8", "y"] },
};
const BRIEF: Turn = Turn { warm_ms: 2.0, measure_ms: 1.0 };
/// For one answer: a start of Python on a busy machine is within it, and a test that waits for it is still quick.
const LIMIT: Duration = Duration::from_secs(5);

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().expect("a temporary folder"))
    }

    fn log(&self, title: &str) -> PathBuf {
        self.0.path().join(title)
    }

    /// A script with these peers.
    fn script(&self, title: &str, names: &str) -> Peers {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let words = [
            "python3".into(),
            root.join("tests/bench_rounds/fake_peers.py").into_os_string(),
            root.join("benches").into_os_string(),
            self.log(title).into_os_string(),
            names.into(),
        ];
        Peers::new(title, words.into(), LIMIT)
    }

    fn lines(&self, title: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.log(title)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn count(&self, title: &str, line: &str) -> usize {
        self.lines(title).iter().filter(|l| *l == line).count()
    }
}

/// Whether the peers' language is here.
fn have_python() -> bool {
    let found = std::process::Command::new("python3").arg("--version").output().is_ok_and(|o| o.status.success());
    if !found {
        eprintln!("SKIPPED, NOT TESTED: no python3");
    }
    found
}

/// A plan of ours that takes these milliseconds, turn by turn.
fn own(name: &str, mut turns: Vec<f64>) -> Own<'static> {
    turns.reverse();
    let take = move |turn: Turn| {
        assert_eq!(turn, PACE.turn);
        turns.pop().ok_or_else(|| "more turns than rounds".to_owned())
    };
    Own { name: name.into(), about: json!({ "plan": name }), flops: 3e9, turn: Some(Box::new(take)) }
}

fn run(groups: &mut [Peers], asked: Value) -> Value {
    case("c", "ms", PACE, vec![own("ours", vec![2.0, 2.2, 1.9])], groups, &asked)
}

fn order(names: &[&str], pace: Pace) -> Vec<usize> {
    pace.turns(names).into_iter().map(|(who, _)| who).collect()
}

/// Who fails is not asked again; of five rounds a seldom one has three.
#[test]
fn rounds_alternate() {
    let mut asked = Vec::new();
    let outcomes = alternate(&["a", "b", "c"], PACE, |who, turn| {
        assert_eq!(turn, PACE.turn);
        asked.push(who);
        if who == 1 && asked.len() > 3 {
            return Err("late".into());
        }
        Ok(who as f64 + 1.0)
    });
    assert_eq!(asked, [0, 1, 2, 0, 2, 1, 0, 2]);
    assert_eq!((outcomes[0].ms(), outcomes[0].spread()), (Some(1.0), Some(0.0)));
    assert_eq!((outcomes[1].ms(), outcomes[1].error.as_deref()), (None, Some("late")));
    assert_eq!(outcomes[2].turns, [3.0; 3]);
    assert_eq!([&[][..], &[3.0], &[5.0, 2.0], &[9.0, 1.0, 4.0]].map(median), [None, Some(3.0), Some(3.5), Some(4.0)]);
    let five = Pace { rounds: 5, ..PACE };
    assert_eq!(order(&["a", "b", "c"], five), [0, 1, 2, 0, 2, 0, 1, 2, 0, 2, 0, 1, 2]);
    assert_eq!(order(&["a"], PACE), [0, 0, 0]);
    assert!(order(&[], PACE).is_empty());
    assert!(METHOD.contains("following another one in each round"));
    let told = json!({
        "rounds": 5, "warm_ms": 6.0, "measure_ms": 4.0, "in_every_second_round": ["b"],
        "aside": { "rounds": 3, "warm_ms": 2.0, "measure_ms": 1.0, "names": ["x8", "y"] },
    });
    assert_eq!(five.json(), told);
    assert_eq!(Pace { aside: Aside::NOBODY, ..five }.json()["aside"], Value::Null);
}

/// What ran before shows in a time, so everyone follows everyone else equally often: a prime number of them exactly, others nearly.
#[test]
fn everyone_follows_everyone() {
    let names = ["a", "c", "d", "e", "f", "g", "h"];
    for count in [2, 3, 5, 7] {
        let turns = order(&names[..count], Pace { rounds: count - 1, ..PACE });
        let mut pairs: Vec<(usize, usize)> = turns.iter().copied().zip(turns.iter().copied().cycle().skip(1)).collect();
        pairs.sort_unstable();
        let all = (0..count).flat_map(|a| (0..count).map(move |b| (a, b))).filter(|(a, b)| a != b);
        assert_eq!(pairs, all.collect::<Vec<_>>());
    }
    for count in [4, 6] {
        let turns = order(&names[..count], Pace { rounds: 5, ..PACE });
        assert_eq!(turns.len(), 5 * count);
        for who in 0..count {
            let before = turns.windows(2).filter(|w| w[1] == who).map(|w| w[0]);
            let different: std::collections::BTreeSet<usize> = before.collect();
            assert!(different.len() >= 3, "{who} of {count} follows {different:?}");
        }
    }
}

/// Those aside have short turns among themselves before the others, in three rounds, and are marked.
#[test]
fn some_take_short_turns_aside() {
    let five = Pace { rounds: 5, ..PACE };
    assert_eq!(order(&["x8", "a", "y"], five), [0, 2, 0, 2, 0, 2, 1, 1, 1, 1, 1]);
    let turns = five.turns(&["x8", "a", "y"]);
    assert!(turns.iter().all(|(who, turn)| *turn == if *who == 1 { PACE.turn } else { BRIEF }), "{turns:?}");
    if !have_python() {
        return;
    }
    let folder = Folder::new();
    let mut groups = [folder.script("one", "a3,x8")];
    let timed = run(&mut groups, json!({ "name": "c" }));
    assert_eq!(timed["peers"]["x8"]["aside"], true);
    assert_eq!(timed["peers"]["x8"]["turns"], json!([8.0, 8.0, 16.0]));
    assert_eq!((&timed["peers"]["a3"]["aside"], &timed["ours"]["ours"]["aside"]), (&Value::Null, &Value::Null));
    let expected = ["prepare c", "turn x8 2.0 1.0", "turn x8 2.0 1.0", "turn x8 2.0 1.0"];
    assert_eq!(folder.lines("one")[..4], expected);
    assert_eq!(folder.lines("one")[4..], ["turn a3 6.0 4.0", "turn a3 6.0 4.0", "turn a3 6.0 4.0", "free"]);
}

/// A typing mistake in the command line is an error: it would time nothing, or time it in another way.
#[test]
fn the_command_line_is_read_strictly() {
    let read = |line: &str| args::Args::parse(line.split_whitespace().map(str::to_owned), &["sdpa_bwd", args::CROSSOVER]);
    let good =
        read("--bench --suite sdpa_bwd --only S4096,d64 --modes sm90 --rounds 9 --warm 200 --once word").expect("a command line");
    assert!(good.runs("sdpa_bwd") && !good.runs(args::CROSSOVER) && good.once && good.words == ["word"]);
    assert!(
        good.wants("B1 S4096") && !good.wants("B1 S8192") && good.wants_mode("sm90") && !good.wants_mode("sm90_deterministic")
    );
    let pace = good.pace(PACE);
    assert_eq!((pace.rounds, pace.turn, pace.aside.turn), (9, Turn { warm_ms: 200.0, measure_ms: 4.0 }, BRIEF));
    assert!(
        read("").is_ok_and(|a| a.runs("sdpa_bwd") && !a.runs(args::CROSSOVER) && a.groups("none.py", &[("x", &[])]).is_empty())
    );
    for (line, why) in [
        ("--suite sdpa", "sdpa is no suite; there are sdpa_bwd, crossover"),
        ("--suite", "--suite without a value"),
        ("--round 5", "--round is no option"),
        ("--rounds x", "--rounds x; a number of at least 1 is expected"),
        ("--rounds 0", "--rounds 0; a number of at least 1 is expected"),
        ("--warm -1", "--warm -1; a number of at least 0 is expected"),
        ("--measure NaN", "--measure NaN; a number of at least 0 is expected"),
    ] {
        assert_eq!(read(line).err().as_deref(), Some(why), "{line}");
    }
}

/// Two scripts and ours: medians, spreads, notes, ratios, versions, and the order of the questions.
#[test]
fn peers_take_turns_between_ours() {
    if !have_python() {
        return;
    }
    let folder = Folder::new();
    let mut groups = [folder.script("one", "a3,unable,chatty"), folder.script("two", "b4")];
    let timed = run(&mut groups, json!({ "name": "c" }));
    let mine = &timed["ours"]["ours"];
    assert_eq!((&mine["ms"], &mine["turns"], &mine["plan"]), (&json!(2.0), &json!([2.0, 2.2, 1.9]), &json!("ours")));
    assert!((mine["spread"].as_f64().expect("a spread") - 0.15).abs() < 1e-12 && mine["tflops"] == 1.5);
    assert_eq!(
        timed["peers"]["a3"],
        json!({ "ms": 3.0, "turns": [3.0, 3.0, 6.0], "spread": 1.0, "tflops": 1.0, "tiles": [64, 32] })
    );
    assert_eq!(timed["peers"]["b4"]["ms"], 4.0);
    // What a library writes to stdout is no answer.
    assert_eq!(timed["peers"]["chatty"]["turns"], json!([7.0, 7.0, 14.0]));
    assert_eq!(timed["peers"]["unable"], json!({ "error": "not this one" }));
    assert_eq!(timed["throughput_ratio"], json!({ "ours/a3": 1.5, "ours/b4": 2.0, "ours/chatty": 3.5 }));
    let turns = |names: [&str; 2]| names.map(|n| format!("turn {n} 6.0 4.0"));
    let (there, back) = (turns(["a3", "chatty"]), turns(["chatty", "a3"]));
    let expected: Vec<String> =
        [vec!["prepare c".to_owned()], there.to_vec(), back.to_vec(), there.to_vec(), vec!["free".to_owned()]].concat();
    assert_eq!(folder.lines("one"), expected);
    let told = about(&mut groups);
    assert_eq!(told, json!([{ "versions": "fake a3+unable+chatty, fake b4" }, { "ceiling": "nothing", "tflops": 1.5 }]));
    assert!(line(&timed, "ms").contains("ours 2.0000 ms ±7.5%"), "{}", line(&timed, "ms"));
}

/// A peer that hangs costs its case only: ours, its neighbours of other scripts, and the next case are timed.
#[test]
fn a_hanging_peer_costs_its_case_only() {
    if !have_python() {
        return;
    }
    let folder = Folder::new();
    let mut groups = [folder.script("one", "a3,hanging"), folder.script("two", "b4")];
    let began = Instant::now();
    let timed = run(&mut groups, json!({ "name": "c" }));
    assert!(began.elapsed() < 2 * LIMIT + LIMIT, "{:?}", began.elapsed());
    assert_eq!(timed["peers"]["hanging"], json!({ "tiles": [64, 32], "error": "stopped after 5 s" }));
    // It had one turn, and lost its process with the neighbour.
    assert_eq!(timed["peers"]["a3"]["error"], "its process has ended");
    assert_eq!((&timed["peers"]["b4"]["ms"], &timed["ours"]["ours"]["ms"]), (&json!(4.0), &json!(2.0)));
    let next = Peers::prepare(&mut groups, &json!({ "name": "next" }));
    assert_eq!(next[0].able, ["a3", "hanging"]);
    assert_eq!(folder.lines("one"), ["prepare c", "turn a3 6.0 4.0", "turn hanging 6.0 4.0", "prepare next"]);
    assert_eq!(folder.count("two", "free"), 1);
}

/// A peer that fails is out of its case, with the first line of its reason; the process stays and the others go on.
#[test]
fn an_erring_peer_is_a_result() {
    if !have_python() {
        return;
    }
    let folder = Folder::new();
    let mut groups = [folder.script("one", "erring,a3")];
    let timed = run(&mut groups, json!({ "name": "c" }));
    assert_eq!(timed["peers"]["erring"]["error"], "the second turn");
    assert!(timed["peers"]["erring"]["ms"].is_null());
    assert_eq!(timed["peers"]["a3"]["turns"], json!([3.0, 3.0, 6.0]));
    assert_eq!(folder.count("one", "turn erring 6.0 4.0"), 2);
    let refused = Peers::prepare(&mut groups, &json!({ "name": "odd", "refuse": true }));
    assert_eq!(refused[0].errors["a3"], "no such case");
    assert_eq!(Peers::prepare(&mut groups, &json!({ "name": "next" }))[0].able, ["erring", "a3"]);
}

/// A process that ends, by itself or because its device is unusable, is started again for the next case, but not for ever.
#[test]
fn a_dying_peer_is_started_again_and_at_last_given_up() {
    if !have_python() {
        return;
    }
    let folder = Folder::new();
    let mut groups = [folder.script("one", "breaking,dying")];
    let timed = run(&mut groups, json!({ "name": "first" }));
    assert_eq!(timed["peers"]["breaking"]["error"], "an illegal address");
    assert!(["the process ended", "its process has ended"].map(Value::from).contains(&timed["peers"]["dying"]["error"]));
    let died = Peers::prepare(&mut groups, &json!({ "name": "second", "die": true }));
    assert_eq!(
        (&died[0].errors["breaking"], &died[0].errors["dying"]),
        (&json!("the process ended"), &json!("the process ended"))
    );
    let hung = Peers::prepare(&mut groups, &json!({ "name": "third", "hang": true }));
    assert_eq!(hung[0].errors["dying"], "stopped after 5 s");
    let last = Peers::prepare(&mut groups, &json!({ "name": "fourth" }));
    assert_eq!(last[0].errors["dying"], "given up after its earlier failures");
    assert_eq!(folder.lines("one").iter().filter(|l| l.starts_with("prepare")).count(), 3);
}

/// A script that offers nothing has no peers; one that cannot be started says so under its title; ours are timed beside both.
#[test]
fn nothing_to_offer_and_nothing_to_start() {
    if !have_python() {
        return;
    }
    let folder = Folder::new();
    let absent = Peers::new("absent", vec![folder.log("no such program").into_os_string()], LIMIT);
    let mut groups = [folder.script("none", ""), absent];
    let timed = run(&mut groups, json!({ "name": "c" }));
    assert_eq!(timed["ours"]["ours"]["ms"], 2.0);
    let peers = timed["peers"].as_object().expect("an object");
    assert_eq!(peers.keys().collect::<Vec<_>>(), ["absent"]);
    assert!(peers["absent"]["error"].as_str().is_some_and(|e| e.contains("no such program")), "{peers:?}");
    let failed = Own { name: "ours".into(), about: json!({ "error": "E_NO_PLAN" }), flops: 0.0, turn: None };
    let alone = case("c", "ms", PACE, vec![failed], &mut [], &Value::Null);
    assert_eq!(alone, json!({ "case": "c", "ours": { "ours": { "error": "E_NO_PLAN" } }, "peers": {}, "throughput_ratio": {} }));
}
