//! Runs a selection of a suite on the GPU, prints what came of it, writes the evidence.

use crate::args::Args;
use crate::cases::{
    Case, Lens, Logits, MaskKind, ScaleKind, BWD, BWD_SM90, HOPPER, PREFILL, QAT_BWD, QAT_BWD_SM90, QAT_FWD, QAT_FWD_SM90,
};
use crate::special::Beside;
use crate::suite::{Listing, Suite};
use crate::verdict::{Tally, Verdict};
use crate::work::{self, Item};
use crate::{evidence, rng};
use frostgraph::runtime::CudaDevice;
use frostgraph::Result;
use std::collections::BTreeMap;

pub fn seed(args: &Args) -> u64 {
    args.seed.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        rng::Rng(now.map_or(1, |d| d.as_nanos() as u64)).next() >> 24
    })
}

/// Group of the short table that is printed last.
fn group(case: &Case) -> String {
    let base = match (&case.lens, case.bias, case.sink) {
        _ if case.fwd.pages.is_some() => "paged",
        _ if case.fwd.logits != Logits::Normal || case.fwd.scale != ScaleKind::Usual => "logits and scales",
        (Lens::Thd { .. }, ..) => "THD",
        (Lens::Padded { .. }, ..) => "padding",
        (_, Some(_), _) => "bias",
        (_, _, true) => "sink",
        _ if !case.knobs.is_empty() => "knobs",
        _ => match case.mask {
            MaskKind::None => "no mask",
            MaskKind::Causal => "causal",
            MaskKind::CausalBottomRight => "bottom-right",
            MaskKind::Band(_) => "right band",
            MaskKind::Window(_) => "window",
            MaskKind::CausalWindow(_) => "causal window",
            MaskKind::BottomRightWindow(_) => "bottom-right window",
            MaskKind::TwoSided(..) => "two-sided window",
        },
    };
    let kind = match case.engine {
        BWD if case.deterministic => "backward, deterministic",
        BWD => "backward, default",
        BWD_SM90 if case.deterministic => "backward on wgmma, deterministic",
        BWD_SM90 => "backward on wgmma, default",
        PREFILL => "prefill",
        HOPPER => "prefill on Hopper",
        QAT_FWD => "NVFP4 QAT forward",
        QAT_FWD_SM90 => "NVFP4 QAT forward on Hopper",
        QAT_BWD if case.deterministic => "NVFP4 QAT backward, deterministic",
        QAT_BWD => "NVFP4 QAT backward, default",
        QAT_BWD_SM90 if case.deterministic => "NVFP4 QAT backward on Hopper, deterministic",
        QAT_BWD_SM90 => "NVFP4 QAT backward on Hopper, default",
        _ => "decode",
    };
    format!("{kind}: {base}")
}

/// Cases of a list that were declined, by reason.
pub fn print_declined(suite: Suite, listing: &Listing) {
    println!("{}: {} cases accepted, {} different kernels", suite.name(), listing.features.len(), listing.kernels);
    for (why, n) in &listing.declined {
        println!("  {n} declined: {why}");
    }
}

/// `part` is appended to the suite's name in the evidence: a part of a suite is not the suite.
pub fn run(args: &Args, items: &[Item], suite: Suite, part: &str, listing: &Listing) -> Result<bool> {
    let device = CudaDevice::open(0)?;
    let seed = seed(args);
    let cores = std::thread::available_parallelism().map_or(4, usize::from);
    let workers = args.workers.unwrap_or((cores * 3 / 4).clamp(1, 12)).min(items.len());
    println!(
        "{}: {} ({}), driver for CUDA {}, seed {seed}, {} items, {workers} workers",
        suite.name(),
        device.name(),
        device.arch(),
        device.driver_version(),
        items.len()
    );
    print_declined(suite, listing);
    let beside = |i: &Item| match i {
        Item::Case(..) => Beside::All,
        Item::Special(s, n) => s.specials()[*n].beside(),
    };
    let of = |kind: Beside| items.iter().copied().filter(|i| beside(i) == kind).collect::<Vec<Item>>();
    let (mut listed, large, quiet) = (of(Beside::All), of(Beside::Cases), of(Beside::Nothing));
    // Specials take longer than a case and begin first.
    listed.sort_by_key(|i| matches!(i, Item::Case(..)));
    let (mut verdicts, of_large) = std::thread::scope(|s| {
        let large = s.spawn(|| work::run_all(&large, 1, seed, true));
        let listed = work::run_all(&listed, workers, seed, true);
        (listed, large.join())
    });
    let failed = |_| vec![Verdict::Failed("the thread that runs them panicked".to_owned()); large.len()];
    verdicts.extend(of_large.unwrap_or_else(failed));
    verdicts.extend(work::run_all(&quiet, 1, seed, true));
    let all = suite.cases();
    let mut table: BTreeMap<String, Tally> = BTreeMap::new();
    let mut results = Vec::new();
    for (item, verdict) in listed.iter().chain(&large).chain(&quiet).zip(&verdicts) {
        let (name, what) = match item {
            Item::Case(_, i) => {
                if let Some(f) = listing.features.get(i) {
                    results.push((all[*i].engine, f.clone(), verdict));
                }
                (group(&all[*i]), format!("case {i} ({})", all[*i]))
            }
            Item::Special(_, i) => {
                let special = &suite.specials()[*i];
                results.push((special.engine, vec!["special".to_owned()], verdict));
                (special.name.to_owned(), format!("special {i} ({})", special.name))
            }
        };
        table.entry(name).or_default().add(verdict);
        if let Verdict::Failed(why) = verdict {
            println!("FAILED {} {what}\n  {}", suite.name(), why.replace('\n', "\n  "));
        }
    }
    if let Some(dir) = &args.evidence {
        let name = format!("{}{part}", suite.name());
        let path = dir.join(format!("{}-{name}.json", evidence::short_name(device.name())));
        let text = serde_json::to_string_pretty(&evidence::records(&device, &name, seed, &results)?).unwrap_or_default();
        std::fs::create_dir_all(dir).and_then(|()| std::fs::write(&path, text + "\n")).map_err(|e| {
            frostgraph::Error::new(frostgraph::ErrorCode::FileWrite, e.to_string(), "a folder that can be written")
                .at(path.display().to_string())
        })?;
        println!("evidence: {}", path.display());
    }
    let mut sum = Tally::default();
    println!("{:<70} passed failed skipped worst error", "group");
    for (name, line) in &table {
        print_line(name, line);
    }
    verdicts.iter().for_each(|v| sum.add(v));
    print_line("all", &sum);
    Ok(sum.failed == 0)
}

fn print_line(name: &str, l: &Tally) {
    println!("{name:<70} {:>6} {:>6} {:>7} {:>11.2e}", l.passed, l.failed, l.skipped, l.worst);
}
