//! Planning: ranked lists, declines, selection, switches.

use crate::support::catalogue::{all, forward_backward};
use crate::support::{backward, forward, Shape, SMALL};
use frostgraph::engines::{row_by_name, Arch, Caps, Knob, Knobs, Mode, MANIFEST};
use frostgraph::plan::{BuildOptions, Built};
use frostgraph::{Device, ErrorCode};

fn built(g: &frostgraph::graph::Graph, device: &str, options: &BuildOptions) -> Built {
    g.build_with(&Device::describe(device).unwrap(), options).unwrap()
}

/// Every graph of the catalogue on every device that serves it: names of both, and what was built of it.
pub fn built_everywhere() -> impl Iterator<Item = (String, &'static str, Built)> {
    all().into_iter().flat_map(|(name, g)| {
        let options = BuildOptions { allow_empty: true, ..BuildOptions::all_engines() };
        ["cpu", "sm_90", "sm_120"].into_iter().filter_map(move |device| {
            let built = g.build_with(&Device::describe(device).unwrap(), &options).ok()?;
            Some((name.to_string(), device, built))
        })
    })
}

pub fn plain() -> Built {
    built(&backward(SMALL, |_, _, _, _| {}), "cpu", &BuildOptions::all_engines())
}

#[test]
fn unsupported_graphs_name_every_engine_with_value_and_limit_field_report_123() {
    let mut text = String::new();
    let mut count = 0;
    for (name, g) in all() {
        for device in ["cpu", "sm_90"] {
            let Err(e) = g.build_with(&Device::describe(device).unwrap(), &BuildOptions::default_engines()) else { continue };
            if e.code != ErrorCode::NoPlan {
                continue;
            }
            let message = e.to_string();
            let rows = MANIFEST.iter().filter(|f| message.contains(&format!("family {}", f.name))).flat_map(|f| f.rows);
            for row in rows {
                let line = message.lines().find(|l| l.trim_start().starts_with(&format!("{}:", row.name)));
                let line = line.unwrap_or_else(|| panic!("{name}: {} is not listed in\n{message}", row.name));
                assert!(line.contains("[D") && line.contains('='), "code and deciding fact: {line}");
            }
            assert!(message.contains(&format!("on {device} (")), "{message}");
            assert!(message.contains("d_qk=") && message.contains("S_kv="), "{message}");
            count += usize::from(device == "cpu");
            if device == "cpu" {
                text.push_str(&format!("{name}: {message}\n"));
            }
        }
    }
    assert!(count >= 25, "{count} unsupported graphs on the CPU");
    crate::support::golden::check("no_plan.txt", &text);
}

#[test]
fn ranked_rows_and_declined_rows_together_are_the_family() {
    for (name, g) in all() {
        for device in ["cpu", "sm_80", "sm_90", "sm_100", "sm_120"] {
            for options in [BuildOptions::all_engines(), BuildOptions::default_engines()] {
                let Ok(b) = g.build_with(&Device::describe(device).unwrap(), &BuildOptions { allow_empty: true, ..options })
                else {
                    continue;
                };
                for n in b.nodes() {
                    let family = MANIFEST.iter().find(|f| Some(f.name) == n.family()).unwrap();
                    let mut ids: Vec<u32> = n.ranked().iter().map(|r| r.row.id).collect();
                    ids.dedup();
                    ids.extend(n.declined().iter().map(|d| row_by_name(d.engine).unwrap().id));
                    ids.sort();
                    let mut want: Vec<u32> = family.rows.iter().map(|r| r.id).collect();
                    want.sort();
                    assert_eq!(ids, want, "{name} on {device}");
                    let mut seen: Vec<String> = n.ranked().iter().map(ToString::to_string).collect();
                    let len = seen.len();
                    seen.sort();
                    seen.dedup();
                    assert_eq!(seen.len(), len, "{name}: a plan is listed twice");
                }
            }
        }
    }
}

#[test]
fn modes_keep_the_first_place_of_an_entry() {
    let g = backward(SMALL, |_, _, _, _| {});
    let list = |modes: &[Mode]| -> Vec<String> {
        let options = BuildOptions { modes: modes.to_vec(), ..BuildOptions::all_engines() };
        built(&g, "sm_120", &BuildOptions { allow_empty: true, ..options }).plans().map(|p| p.to_string()).collect()
    };
    let a = list(&[Mode::A]);
    assert_eq!(list(&[Mode::A, Mode::A, Mode::B, Mode::OpenSource])[..a.len()], a);
    assert_eq!(list(&[Mode::A, Mode::Fallback])[..a.len()], a);
    assert_eq!(list(&[]), Vec::<String>::new());
}

#[test]
fn plan_names_and_index_errors() {
    let b = plain();
    assert_eq!(b.plans().next().unwrap().to_string(), "sdpa_bwd_cpu");
    assert_eq!(b.plan_count(), b.plans().len());
    let e = b.select_plan(7).unwrap_err();
    assert_eq!(e.code, ErrorCode::PlanIndex);
    assert_eq!(e.to_string(), "FG3002: plan index 7; expected 0, the only plan");
}

#[test]
fn unknown_engines_and_knobs_are_refused() {
    let b = plain();
    let e = b.create_plan(20699, &Knobs::NONE).unwrap_err();
    assert_eq!(e.code, ErrorCode::UnknownEngine);
    assert!(e.to_string().contains("20650 sdpa_bwd_cpu"), "{e}");
    let e = b.create_plan(20650, &Knobs::new(&[(Knob::TileM, 64)])).unwrap_err();
    assert_eq!(e.code, ErrorCode::BadKnob, "{e}");
    let e = b.create_plan(20550, &Knobs::NONE).unwrap_err();
    assert_eq!(e.code, ErrorCode::Declined, "an engine of another family");
    assert!(e.to_string().contains("D02-operation"), "{e}");
}

#[test]
fn switched_off_engines_are_listed_as_such_and_cannot_be_pinned() {
    let g = backward(SMALL, |_, _, _, _| {});
    let options = BuildOptions { disable: Some(vec!["sdpa_bwd_cpu".into()]), ..BuildOptions::default_engines() };
    let e = g.build_with(&Device::cpu(), &options).unwrap_err();
    assert_eq!(e.code, ErrorCode::NoPlan);
    assert!(e.to_string().contains("sdpa_bwd_cpu: is switched off by"), "{e}");
    let b = built(&g, "cpu", &BuildOptions { allow_empty: true, ..options });
    assert_eq!(b.create_plan(20650, &Knobs::NONE).unwrap_err().code, ErrorCode::UnknownEngine);
    assert_eq!(b.select_plan(0).unwrap_err().code, ErrorCode::NoPlan);
    assert_eq!(b.best().unwrap_err().code, ErrorCode::NoPlan);
    let typo = BuildOptions { disable: Some(vec!["sdpa_bwd_gpu".into()]), ..BuildOptions::default() };
    assert_eq!(g.build_with(&Device::cpu(), &typo).unwrap_err().code, ErrorCode::UnknownEngine);
}

#[test]
fn opt_in_rows_are_offered_only_on_request() {
    for row in MANIFEST.iter().flat_map(|f| f.rows).filter(|r| r.maturity == frostgraph::engines::Maturity::OptIn) {
        let Caps::Sdpa(_) = row.caps else { continue };
        let device = match row.caps.arch() {
            Arch::Cpu => "cpu".to_owned(),
            Arch::Sm { hi, .. } => [80, 90, 100, 120].iter().rev().find(|a| **a <= hi).map(|a| format!("sm_{a}")).unwrap(),
        };
        let s = Shape { dqk: 64, dv: 64, ..SMALL };
        let example = |name: &str| {
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name);
            frostgraph::json::from_path(&path, frostgraph::json::Strictness::Strict).unwrap().graph
        };
        let g = match frostgraph::engines::family_of(row.id).map(|f| f.name) {
            Some("sdpa_fwd") => forward(s, |_, _, _| {}),
            Some("sdpa_bwd") => backward(s, |_, _, _, _| {}),
            Some("nvfp4_qat_fwd") => example("nvfp4_qat_forward.json"),
            Some("nvfp4_qat_bwd") => example("nvfp4_qat_backward.json"),
            other => panic!("no graph for family {other:?}: add one"),
        };
        let with = |o: BuildOptions| built(&g, &device, &BuildOptions { allow_empty: true, ..o });
        let (on, off) = (with(BuildOptions::all_engines()), with(BuildOptions::default_engines()));
        assert!(on.nodes()[0].ranked().iter().any(|r| r.row.id == row.id), "{} on {device}", row.name);
        assert!(off.nodes()[0].ranked().iter().all(|r| r.row.id != row.id));
        let d = off.declined().find(|d| d.engine == row.name).unwrap();
        assert!(d.reason.contains("FROSTGRAPH_ENABLE_FROST_ENGINES=1"), "{d}");
        assert_eq!(off.create_plan(row.id, &Knobs::NONE).unwrap_err().code, ErrorCode::UnknownEngine);
    }
}

#[test]
fn a_workspace_limit_declines_with_both_numbers() {
    let g = forward_backward(SMALL, false);
    let b = built(&g, "cpu", &BuildOptions::all_engines());
    let need = b.select_plan(0).unwrap().workspace_bytes().unwrap();
    let limited = |n: u64| built(&g, "cpu", &BuildOptions { workspace_limit: Some(n), ..BuildOptions::all_engines() });
    assert!(limited(need).best().is_ok(), "exactly the limit");
    let e = limited(need - 1).best().unwrap_err();
    assert_eq!(e.code, ErrorCode::NoPlan);
    assert!(
        e.to_string().contains(&format!("needs {need} workspace bytes")) && e.to_string().contains("D16-workspace-limit"),
        "{e}"
    );
    assert_eq!(limited(need - 1).select_plan(0).unwrap_err().code, ErrorCode::Declined, "a pinned plan re-raises its decline");
}

#[test]
fn deterministic_graphs_have_deterministic_plans_field_report_66() {
    for (name, device, b) in built_everywhere() {
        // Forward passes and the plain grouped product add nothing up in the order of arrival, on no device.
        let by_nature = ["sdpa_fwd", "nvfp4_qat_fwd", "moe_grouped_matmul"];
        let expected = b.nodes().iter().all(|n| {
            let asked = n.facts().features().has(frostgraph::engines::Feature::Deterministic);
            asked || device == "cpu" || n.family().is_some_and(|f| by_nature.contains(&f))
        });
        for p in b.plans() {
            assert_eq!(p.is_deterministic(), expected, "{name} on {device}: {p}");
        }
    }
}

#[test]
fn several_nodes_have_several_lists_and_linearly_many_plans() {
    let b = built(&forward_backward(SMALL, false), "cpu", &BuildOptions::all_engines());
    assert_eq!(b.nodes().len(), 2);
    assert_eq!(b.plans().next().unwrap().to_string(), "sdpa_fwd_cpu + sdpa_bwd_cpu");
    let lists: usize = b.nodes().iter().map(|n| n.ranked().len() - 1).sum();
    assert_eq!(b.plan_count(), 1 + lists);
    let mut names: Vec<String> = b.plans().map(|p| p.to_string()).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), b.plan_count(), "all different");
    assert_eq!(b.create_plan(20650, &Knobs::NONE).unwrap_err().code, ErrorCode::UnknownEngine, "which node?");
    assert_eq!(b.create_plan_for(1, 20650, &Knobs::NONE).unwrap().to_string(), "sdpa_fwd_cpu + sdpa_bwd_cpu");
    assert_eq!(b.create_plan_for(2, 20650, &Knobs::NONE).unwrap_err().code, ErrorCode::PlanIndex);
}

#[test]
fn described_devices_plan_and_refuse_to_execute() {
    use frostgraph::exec::{Bindings, Stream, Workspace};
    let b = built(&backward(SMALL, |_, _, _, _| {}), "cpu", &BuildOptions::all_engines());
    let exe = b.select_plan(0).unwrap().compile().unwrap();
    let e = exe.execute(&Stream::cpu(), &mut Bindings::new(), &mut Workspace::none()).unwrap_err();
    assert_eq!(e.code, ErrorCode::BadDevice);
    assert!(exe.launch_text().unwrap().contains("device cpu"));
}

pub fn d128() -> Built {
    built(&backward(Shape { dqk: 128, dv: 128, ..SMALL }, |_, _, _, _| {}), "sm_120", &BuildOptions::all_engines())
}

#[test]
fn a_plan_for_a_device_that_is_not_here_can_be_read_and_compiled_ahead() {
    use frostgraph::exec::{Bindings, Stream, Workspace};
    let plan = d128().best().unwrap();
    let kernels = plan.kernels().unwrap();
    assert!(kernels.len() >= 3 && kernels.windows(2).all(|w| w[0] < w[1]), "the chain's kernels, sorted, each once");
    let exe = plan.compile().unwrap();
    assert_eq!(exe.workspace_bytes(), plan.workspace_bytes().unwrap());
    let text = exe.launch_text().unwrap();
    assert!(text.contains("device sm_120") && text.contains("deterministic no") && text.contains("kernel main"), "{text}");
    let e = exe.execute(&Stream::cuda(0), &mut Bindings::new(), &mut Workspace::none()).unwrap_err();
    assert_eq!(e.code, ErrorCode::BadDevice);
    assert_eq!(
        exe.check(&Bindings::new(), &Workspace::none()).unwrap_err().code,
        ErrorCode::MissingBinding,
        "checks work without the device"
    );
}

#[test]
fn deterministic_is_wired_for_every_kind_of_graph_field_report_66() {
    use frostgraph::engines::Feature;
    let s = Shape { hq: 4, hkv: 2, ..SMALL };
    let bias = |g: &mut frostgraph::graph::Graph| Some(g.tensor(frostgraph::graph::Tensor::new("bias", [2, 4, 16, 16])));
    let sink = |g: &mut frostgraph::graph::Graph| {
        Some(g.tensor(frostgraph::graph::Tensor::new("sink", [1, 4, 1, 1]).dtype(frostgraph::DType::F32)))
    };
    for deterministic in [false, true] {
        let graphs = [
            ("dense", backward(s, |_, _, _, o| o.deterministic = deterministic)),
            ("bias", backward(s, |g, _, _, o| (o.bias, o.dbias, o.deterministic) = (bias(g), true, deterministic))),
            ("sink", backward(s, |g, _, _, o| (o.sink, o.dsink, o.deterministic) = (sink(g), true, deterministic))),
        ];
        for (name, g) in graphs {
            let b = built(&g, "sm_120", &BuildOptions::all_engines());
            for p in b.plans() {
                assert_eq!(p.is_deterministic(), deterministic, "{name}: {p}");
                let yes_no = if deterministic { "deterministic yes" } else { "deterministic no" };
                assert!(p.launch_text().unwrap().contains(yes_no), "{name}: {p}");
            }
            assert_eq!(b.nodes()[0].facts().features().has(Feature::Deterministic), deterministic, "{name}");
        }
    }
}

#[test]
fn ten_thousand_nodes_build_and_list_their_plans() {
    let s = Shape { b: 1, hq: 1, hkv: 1, sq: 8, skv: 8, dqk: 8, dv: 8, ..SMALL };
    let mut g = crate::support::graph(s.io);
    let [q, k, v, o, mut d_o] = ["q", "k", "v", "o", "dO"].map(|n| g.tensor(crate::support::bshd(n, 1, 1, 8, 8)));
    let stats = g.tensor(frostgraph::graph::Tensor::new("stats", [1, 1, 8, 1]).dtype(frostgraph::DType::F32));
    for _ in 0..10_000 {
        let grads = g.sdpa_backward(q, k, v, o, d_o, stats, frostgraph::graph::SdpaBackward::default()).unwrap();
        d_o = grads.dq;
        g.get_mut(d_o).unwrap().dtype = Some(s.io);
    }
    g.output(d_o).unwrap();
    let b = built(&g, "sm_120", &BuildOptions { allow_empty: true, ..BuildOptions::all_engines() });
    assert_eq!(b.nodes().len(), 10_000);
    // Inner dK and dV are virtual and of the intermediate type, which the chain's engine declines: the lists say so, node by node.
    let rows = frostgraph::engines::MANIFEST.iter().find(|f| f.name == "sdpa_bwd").unwrap().rows.len();
    assert!(b.nodes().iter().all(|n| n.ranked().len() + n.declined().len() == rows));
    let b = built(&g, "cpu", &BuildOptions { allow_empty: true, ..BuildOptions::all_engines() });
    assert_eq!(b.declined().count() + b.nodes().iter().map(|n| n.ranked().len()).sum::<usize>(), 10_000 * rows);
}
