//! The f64 oracle itself: gradients against finite differences of its forward, and closed forms.

mod support;

use frostgraph_engines::sdpa::oracle::Problem;
use support::*;

/// sum(O * dO), the function whose gradients the backward returns.
fn loss(p: &Problem, d_o: &[f64]) -> f64 {
    p.forward().o.iter().zip(d_o).map(|(o, g)| o * g).sum()
}

fn check(name: &str, case: &Case, got: &[f64], at: impl Fn(&mut Problem) -> &mut Vec<f64>) {
    const STEP: f64 = 1e-5;
    let mut p = case.problem.clone();
    for (i, &got) in got.iter().enumerate() {
        let mut side = |by: f64| {
            at(&mut p)[i] += by;
            let value = loss(&p, &case.d_o);
            at(&mut p)[i] -= by;
            value
        };
        let want = (side(STEP) - side(-STEP)) / (2.0 * STEP);
        assert!(
            (got - want).abs() <= 1e-7 * (1.0 + want.abs()),
            "{name}[{i}]: {got} but finite differences give {want}\n{:?}",
            case.spec
        );
    }
}

#[test]
fn gradients_are_the_finite_differences_of_the_forward() {
    for (i, mask) in masks().into_iter().enumerate() {
        for j in 0..4 {
            let lens = if j % 2 == 1 { Some((vec![4, 2], vec![3, 5])) } else { None };
            let sink = if j >= 2 { Some(vec![0.5, -1.0]) } else { None };
            let bias = [None, Some((1, 2)), Some((2, 1)), Some((1, 1))][(i + j) % 4];
            let bias = bias.map(|(b, h)| (b, h, frostgraph_engines::DType::F32));
            let spec = Spec { mask, lens, sink, bias, dv: 2, scale: 0.6, ..Spec::new(2, 2, 1, 4, 5, 3) };
            let case = Case::new(spec);
            let f = case.problem.forward();
            let g = case.problem.backward(&f.o, &f.stats, &case.d_o);
            check("dQ", &case, &g.dq, |p| &mut p.q);
            check("dK", &case, &g.dk, |p| &mut p.k);
            check("dV", &case, &g.dv, |p| &mut p.v);
            if case.problem.bias.is_some() {
                check("dBias", &case, &g.dbias, |p| &mut p.bias.as_mut().unwrap().0);
            }
            if case.problem.sink.is_some() {
                check("dSink", &case, &g.dsink, |p| p.sink.as_mut().unwrap());
            }
        }
    }
}

/// Two queries and keys worked by hand: scores 0 and ln 3 give weights 1/4 and 3/4.
#[test]
fn a_worked_example() {
    let mut case = Case::new(Spec { dv: 1, scale: 1.0, ..Spec::new(1, 1, 1, 1, 2, 1) });
    case.problem.q = vec![1.0];
    case.problem.k = vec![0.0, 3f64.ln()];
    case.problem.v = vec![8.0, 4.0];
    let f = case.problem.forward();
    assert!((f.o[0] - 5.0).abs() < 1e-12);
    assert!((f.stats[0] - 4f64.ln()).abs() < 1e-12);
    assert!((f.stats_log2()[0] - 2.0).abs() < 1e-12);
    assert!((f.score_max[0] - 3f64.ln()).abs() < 1e-12);
    assert!((f.score_sum_exp[0] - 4.0 / 3.0).abs() < 1e-12);
    let g = case.problem.backward(&f.o, &f.stats, &[1.0]);
    // dS = P (V - O) = (3/4, -3/4); dQ = dS K; dK = dS q; dV = P.
    assert!((g.dq[0] + 0.75 * 3f64.ln()).abs() < 1e-12);
    assert!((g.dk[0] - 0.75).abs() < 1e-12 && (g.dk[1] + 0.75).abs() < 1e-12);
    assert!((g.dv[0] - 0.25).abs() < 1e-12 && (g.dv[1] - 0.75).abs() < 1e-12);
}

/// The cells kept by `q + diag - W <= k <= q + diag + R`, counted by hand (report 53: S = 16, window length 4 keeps 58 cells, FA's
/// window 4 keeps 70).
#[test]
fn cells_kept_by_a_window() {
    let count = |left: i64| {
        let mask = frostgraph_engines::sdpa::Mask { left: Some(left), right: Some(0), bottom_right: false };
        let p = Case::new(Spec { mask, ..Spec::new(1, 1, 1, 16, 16, 8) }).problem;
        (0..16).flat_map(|i| (0..16).map(move |j| (i, j))).filter(|&(i, j)| p.keeps(0, i, j)).count()
    };
    assert_eq!(count(3), 58);
    assert_eq!(count(4), 70);
}
