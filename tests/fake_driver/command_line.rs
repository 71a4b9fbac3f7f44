//! The program on the stand-in.

use crate::scenario::product;
use crate::TRACE;
use std::path::Path;
use std::process::Command;

/// It tunes, saves, replays, writes; and what a fault looks like there.
pub fn command_line(dir: &Path, bundle: &Path) {
    let Some(program) = option_env!("CARGO_BIN_EXE_frostgraph") else { return };
    let file = |name: &str| dir.join(name).display().to_string();
    let (graph, record, outputs) = (file("g.json"), file("record.json"), file("o.safetensors"));
    std::fs::write(&graph, product().0.to_json().unwrap()).unwrap();
    let run = |args: &[&str], fail: &str| {
        let out = Command::new(program)
            .args(args)
            .args(["--device", "cuda:1"])
            .env("LD_LIBRARY_PATH", dir)
            .env("FROSTGRAPH_CACHE_DIR", dir.join("cache"))
            .env("FROSTGRAPH_BUNDLE", bundle)
            .env("FROSTGRAPH_NVRTC", dir.join("none"))
            .env(TRACE, dir.join("trace-program"))
            .env("FAKE_CUDA_FAIL", fail)
            .output()
            .unwrap();
        let text = [out.stdout, out.stderr].map(|b| String::from_utf8(b).unwrap());
        (out.status.code(), text[0].clone(), text[1].clone())
    };
    let (code, out, err) = run(&["tune", &graph, "--seconds", "0.001", "--save", &record], "");
    assert!(code == Some(0) && out.contains("fastest moe_grouped_matmul_sm90\n"), "{out}{err}");
    assert!(out.contains("moe_grouped_matmul_sm90      1.500     1.500"), "{out}");
    assert_eq!(std::fs::read_to_string(&record).unwrap().matches("21000").count(), 1);
    let (code, out, err) = run(&["run", &graph, "--record", &record, "--outputs", &outputs], "");
    assert!(code == Some(0) && out.contains("chosen moe_grouped_matmul_sm90\ntime 1.500 ms"), "{out}{err}");
    assert!(std::fs::metadata(&outputs).unwrap().len() > 64 * 16 * 2);
    // The stand-in computes nothing: the check must see it.
    let (code, out, _) = run(&["run", &graph, "--check"], "");
    assert!(code == Some(1) && out.contains("FAILED"), "{out}");
    for call in
        ["cuMemAlloc_v2", "cuMemcpyHtoD_v2", "cuLaunchKernelEx", "cuEventSynchronize", "cuMemcpyDtoH_v2", "cuModuleLoadData"]
    {
        let (code, _, err) = run(&["run", &graph], call);
        assert!(code == Some(6) && err.starts_with("error: FG6003"), "{call}: {err}");
    }
    let (code, _, err) = run(&["tune", &graph, "--seconds", "0.001"], "cuLaunchKernelEx");
    assert!(code == Some(6) && err.contains("plan moe_grouped_matmul_sm90, launch main"), "{err}");
}
