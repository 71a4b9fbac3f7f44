use super::*;
use crate::runtime::test_util::image;

/// A kernel of the crate, so that its sources have a digest.
fn spec(entry: &'static str) -> KernelSpec {
    KernelSpec { source: "test/spin.cu", entry, defines: Vec::new() }
}

fn cubin(entry: &'static str, arch: &str, code: &[u8]) -> Cubin {
    Cubin::new(&spec(entry), arch, "13.0", image(entry, &[(0, 8)], code), "log").unwrap()
}

fn bundle() -> Bundle {
    let mut b = Bundle::default();
    for (entry, arch) in [("b", "sm_90a"), ("a", "sm_120a"), ("a", "sm_90a")] {
        b.insert(&spec(entry), &cubin(entry, arch, arch.as_bytes())).unwrap();
    }
    b
}

#[test]
fn round_trip_through_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.fgb");
    bundle().save(&path).unwrap();
    let read = Bundle::load(&path).unwrap();
    assert_eq!(read.kernels().count(), 3);
    assert_eq!(read.get("sm_120a", &spec("a")).unwrap(), Some(cubin("a", "sm_120a", b"sm_120a")));
    assert_eq!(read.get("sm_121a", &spec("a")).unwrap(), None);
    let other = KernelSpec { defines: vec![("N", 2)], ..spec("a") };
    assert_eq!(read.get("sm_90a", &other).unwrap(), None, "other switches are another kernel");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file is left");
}

#[test]
fn equal_bundles_have_equal_bytes_whatever_the_order() {
    let mut again = Bundle::default();
    for (entry, arch) in [("a", "sm_90a"), ("b", "sm_90a"), ("a", "sm_120a"), ("a", "sm_90a")] {
        again.insert(&spec(entry), &cubin(entry, arch, arch.as_bytes())).unwrap();
    }
    assert_eq!(again.to_bytes(), bundle().to_bytes());
}

#[test]
fn damaged_files_are_errors_with_the_path() {
    let good = bundle().to_bytes();
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        assert!(Bundle::from_bytes(&bad).is_err(), "byte {at}");
        assert!(Bundle::from_bytes(&good[..at]).is_err(), "cut at {at}");
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.fgb");
    std::fs::write(&path, b"hello").unwrap();
    let e = Bundle::load(&path).unwrap_err();
    assert_eq!((e.code, e.at.clone()), (ErrorCode::FileRead, path.display().to_string()));
    assert_eq!(Bundle::load(&dir.path().join("none")).unwrap_err().code, ErrorCode::FileRead);
}

#[test]
fn a_bundle_of_other_sources_is_refused() {
    let mut old = bundle();
    for (header, _) in &mut old.entries {
        header.sources = "0".repeat(64);
    }
    let e = old.get("sm_90a", &spec("a")).unwrap_err();
    assert!(e.to_string().contains("from other kernel sources"), "{e}");
    assert!(e.help.contains("frostgraph compile"), "{e}");
}

/// What a machine without NVRTC does: an installed bundle answers before anything looks for NVRTC.
#[test]
fn an_installed_bundle_serves_compile_kernel() {
    let mut b = Bundle::default();
    let only = KernelSpec { source: "test/spin.cu", entry: "only_in_the_bundle", defines: Vec::new() };
    let made = Cubin::new(&only, "sm_90a", "13.0", image(only.entry, &[], b"code"), "").unwrap();
    b.insert(&only, &made).unwrap();
    b.install();
    assert_eq!(*crate::runtime::compile_kernel("sm_90a", &only).unwrap(), made);
}
