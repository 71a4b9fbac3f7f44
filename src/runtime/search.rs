//! Where the CUDA libraries may lie, as plain data: nothing here opens a library or reads a process variable except [`SearchPath::from_env`].

use std::path::{Path, PathBuf};

/// Places to look for `libnvrtc` and `libcuda`, in order. Tests build one by hand; programs use [`SearchPath::from_env`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SearchPath {
    /// `FROSTGRAPH_NVRTC`: a file, its folder, a toolkit or the target of a `pip install`. When set, nothing else is tried for NVRTC: a wrong setting must be seen, not repaired.
    pub nvrtc_override: Option<PathBuf>,
    /// Ask the system loader by bare name (`LD_LIBRARY_PATH`, `ld.so.cache`).
    pub loader: bool,
    /// Toolkit roots whose `lib64`, `lib` and `targets/*/lib` are searched: `CUDA_HOME`, `CUDA_PATH`, `/usr/local/cuda*`.
    pub toolkits: Vec<PathBuf>,
    /// `site-packages` folders that a `pip install nvidia-cuda-nvrtc` may have filled.
    pub sites: Vec<PathBuf>,
    /// Further folders for the driver library, such as `/usr/lib/wsl/lib`.
    pub driver_dirs: Vec<PathBuf>,
}

/// One thing to hand to the loader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Candidate {
    /// A bare name that the loader resolves.
    Name(&'static str),
    /// A file.
    File(PathBuf),
}

impl std::fmt::Display for Candidate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Candidate::Name(name) => write!(f, "{name} (system loader)"),
            Candidate::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Bare names of NVRTC, newest first. Runtime-only images carry versioned names alone (field report 143).
const NVRTC_NAMES: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];
/// Bare names of the driver library. `libcuda.so` comes last: toolkits ship a stub under that name.
const DRIVER_NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// Subfolders of `dir`, sorted, whose names satisfy `keep`; an unreadable folder has none.
fn subfolders(dir: &Path, keep: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries.filter(|e| e.file_name().to_str().is_some_and(&keep)).map(|e| e.path()).collect();
    found.sort();
    found
}

/// Where wheels below a `site-packages` folder keep their libraries.
fn wheel_dirs(site: &Path) -> Vec<PathBuf> {
    subfolders(&site.join("nvidia"), |n| n.starts_with("cu")).into_iter().rev().map(|d| d.join("lib")).collect()
}

/// Where a CUDA toolkit keeps its libraries.
fn toolkit_dirs(root: &Path) -> Vec<PathBuf> {
    let targets = subfolders(&root.join("targets"), |_| true).into_iter().map(|t| t.join("lib"));
    [root.join("lib64"), root.join("lib")].into_iter().chain(targets).collect()
}

/// Version in a shared-object name: `libnvrtc.so.13.0.88` has `[13, 0, 88]`, `libnvrtc.so` has `[]`, anything else is no match.
fn so_version(name: &str, stem: &str) -> Option<Vec<u32>> {
    let rest = name.strip_prefix(stem)?.strip_prefix(".so")?;
    if rest.is_empty() {
        return Some(Vec::new());
    }
    rest.strip_prefix('.')?.split('.').map(|p| p.parse().ok()).collect()
}

/// Files of one folder that are versions of `stem`, newest first, the unversioned name last.
pub(crate) fn libraries_in(dir: &Path, stem: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut found: Vec<(Vec<u32>, PathBuf)> =
        entries.filter_map(|e| Some((so_version(e.file_name().to_str()?, stem)?, e.path()))).collect();
    found.sort_by(|a, b| b.cmp(a));
    found.into_iter().map(|(_, path)| path).collect()
}

impl SearchPath {
    /// The search path of this process: its environment, the usual system folders, and the Python installations it can see.
    ///
    /// No Python is started: a `python3` on `PATH`, `VIRTUAL_ENV`, `CONDA_PREFIX`, pyenv versions and the user's site are read as folders.
    pub fn from_env() -> SearchPath {
        let var = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let mut toolkits: Vec<PathBuf> = ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(|v| var(v)).collect();
        let mut installed = subfolders(Path::new("/usr/local"), |n| n.starts_with("cuda"));
        installed.reverse();
        toolkits.extend(installed);

        let mut prefixes: Vec<PathBuf> = ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(|v| var(v)).collect();
        for dir in std::env::var_os("PATH").iter().flat_map(std::env::split_paths) {
            // bin/python3 belongs to the prefix above bin/, and so does what its links point to.
            let exe = dir.join("python3");
            if exe.is_file() {
                prefixes.extend(dir.parent().map(Path::to_path_buf));
                prefixes.extend(exe.canonicalize().ok().and_then(|e| Some(e.parent()?.parent()?.to_path_buf())));
            }
        }
        let home = var("HOME");
        if let Some(root) = var("PYENV_ROOT").or_else(|| home.as_ref().map(|h| h.join(".pyenv"))) {
            prefixes.extend(subfolders(&root.join("versions"), |_| true));
        }
        prefixes.extend(home.map(|h| h.join(".local")));
        prefixes.extend([PathBuf::from("/usr/local"), PathBuf::from("/usr")]);

        let mut sites: Vec<PathBuf> = std::env::var_os("PYTHONPATH").iter().flat_map(std::env::split_paths).collect();
        for prefix in &prefixes {
            for python in subfolders(&prefix.join("lib"), |n| n.starts_with("python3")) {
                sites.extend(["site-packages", "dist-packages"].map(|s| python.join(s)).into_iter().filter(|p| p.is_dir()));
            }
        }
        let mut seen = std::collections::BTreeSet::new();
        sites.retain(|s| seen.insert(s.clone()));
        toolkits.retain(|t| seen.insert(t.clone()));
        SearchPath {
            nvrtc_override: var("FROSTGRAPH_NVRTC"),
            loader: true,
            toolkits,
            sites,
            driver_dirs: ["/usr/lib/wsl/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"]
                .map(PathBuf::from)
                .to_vec(),
        }
    }

    /// Folders searched for NVRTC, in order.
    pub fn nvrtc_dirs(&self) -> Vec<PathBuf> {
        if let Some(given) = &self.nvrtc_override {
            // Whatever the folder is: that of the library, a toolkit, or one that `pip install --target` filled.
            let below = if given.is_dir() { [wheel_dirs(given), toolkit_dirs(given)].concat() } else { Vec::new() };
            return std::iter::once(given.clone()).chain(below).collect();
        }
        // Python first: a wheel is what our own message tells people to install, and it is newer than most toolkits.
        let wheels = self.sites.iter().flat_map(|site| wheel_dirs(site));
        wheels.chain(self.toolkits.iter().flat_map(|root| toolkit_dirs(root))).collect()
    }

    /// Everything to try for NVRTC, in order; only files that exist, and the bare names.
    pub fn nvrtc_candidates(&self) -> Vec<Candidate> {
        match &self.nvrtc_override {
            Some(file) if !file.is_dir() => return vec![Candidate::File(file.clone())],
            Some(_) | None => {}
        }
        let mut found = Vec::new();
        if self.loader && self.nvrtc_override.is_none() {
            found.extend(NVRTC_NAMES.map(Candidate::Name));
        }
        for dir in self.nvrtc_dirs() {
            found.extend(libraries_in(&dir, "libnvrtc").into_iter().map(Candidate::File));
        }
        found
    }

    /// Everything to try for the driver, in order.
    pub fn driver_candidates(&self) -> Vec<Candidate> {
        let mut found = Vec::new();
        if self.loader {
            found.extend(DRIVER_NAMES.map(Candidate::Name));
        }
        for dir in &self.driver_dirs {
            found.extend(libraries_in(dir, "libcuda").into_iter().map(Candidate::File));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(path: &Path) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, b"").unwrap();
    }

    /// Report 143: versioned names only, newest first; builtins and the alternative build are not NVRTC.
    #[test]
    fn a_folder_lists_versions_newest_first_143() {
        let dir = tempfile::tempdir().unwrap();
        for name in [
            "libnvrtc.so.12",
            "libnvrtc.so.13.0.88",
            "libnvrtc.so",
            "libnvrtc.alt.so.13",
            "libnvrtc-builtins.so.13.0",
            "libnvrtc.so.x",
        ] {
            touch(&dir.path().join(name));
        }
        let names: Vec<String> =
            libraries_in(dir.path(), "libnvrtc").iter().map(|p| p.file_name().unwrap().to_str().unwrap().to_owned()).collect();
        assert_eq!(names, ["libnvrtc.so.13.0.88", "libnvrtc.so.12", "libnvrtc.so"]);
    }

    #[test]
    fn wheels_of_both_layouts_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let new = dir.path().join("nvidia/cu13/lib/libnvrtc.so.13");
        let old = dir.path().join("nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
        touch(&new);
        touch(&old);
        let path = SearchPath { sites: vec![dir.path().to_path_buf()], ..SearchPath::default() };
        let found = path.nvrtc_candidates();
        assert!(found.contains(&Candidate::File(new)) && found.contains(&Candidate::File(old)), "{found:?}");
    }

    #[test]
    fn toolkit_roots_are_searched_in_lib64_lib_and_targets() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("targets/x86_64-linux/lib/libnvrtc.so.12");
        touch(&file);
        let path = SearchPath { toolkits: vec![dir.path().to_path_buf()], ..SearchPath::default() };
        assert_eq!(path.nvrtc_candidates(), [Candidate::File(file)]);
    }

    #[test]
    fn an_override_replaces_every_other_place() {
        let dir = tempfile::tempdir().unwrap();
        touch(&dir.path().join("libnvrtc.so.13"));
        let other = tempfile::tempdir().unwrap();
        touch(&other.path().join("lib64/libnvrtc.so.12"));
        let mut path = SearchPath {
            nvrtc_override: Some(dir.path().to_path_buf()),
            loader: true,
            toolkits: vec![other.path().to_path_buf()],
            ..SearchPath::default()
        };
        assert_eq!(path.nvrtc_candidates(), [Candidate::File(dir.path().join("libnvrtc.so.13"))]);
        // A toolkit, and what `pip install --target` fills.
        path.nvrtc_override = Some(other.path().to_path_buf());
        assert_eq!(path.nvrtc_candidates(), [Candidate::File(other.path().join("lib64/libnvrtc.so.12"))]);
        let wheel = dir.path().join("target/nvidia/cu13/lib/libnvrtc.so.13");
        touch(&wheel);
        path.nvrtc_override = Some(dir.path().join("target"));
        assert_eq!(path.nvrtc_candidates(), [Candidate::File(wheel)]);
        path.nvrtc_override = Some("/nowhere/libnvrtc.so.13".into());
        assert_eq!(path.nvrtc_candidates(), [Candidate::File("/nowhere/libnvrtc.so.13".into())]);
    }
}
