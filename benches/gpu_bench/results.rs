//! What a suite measured, and the file that it becomes.

use crate::args::Args;
use crate::device::Gpu;
use crate::peers::Peers;
use crate::rounds;
use frostgraph::engines::row_by_name;
use frostgraph::{Error, ErrorCode, Result};
use serde_json::{json, Map, Value};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Where a suite ran.
pub(crate) struct Machine {
    name: String,
    arch: String,
    driver: String,
}

pub(crate) fn machine(gpu: &Gpu) -> Machine {
    Machine { name: gpu.device.name().to_owned(), arch: gpu.device.arch(), driver: gpu.device.driver_version() }
}

/// What one suite measured.
pub(crate) struct Results {
    pub(crate) suite: &'static str,
    pub(crate) engines: BTreeSet<String>,
    pub(crate) machine: Machine,
    pub(crate) body: Value,
    began: Instant,
}

/// The rows that ran, from the plans of the cases.
fn rows_of<'a>(cases: impl IntoIterator<Item = &'a Value>) -> BTreeSet<String> {
    let lists = cases.into_iter().flat_map(|c| [&c["ours"], &c["forward"]]);
    let modes = lists.flat_map(|l| l.as_object().into_iter().flatten());
    modes.filter_map(|(_, m)| m["plan"].as_str()).filter_map(|p| p.split('[').next()).map(str::to_owned).collect()
}

impl Results {
    pub(crate) fn new(suite: &'static str, machine: Machine, body: Value) -> Results {
        Results { suite, engines: BTreeSet::new(), machine, body, began: Instant::now() }
    }

    /// Of these rows.
    pub(crate) fn of(self, engines: BTreeSet<String>) -> Results {
        Results { engines, ..self }
    }

    /// Adds a case to a list of the body, and writes what there is so far: a run that is cut off leaves it. The peers tell of themselves after
    /// their first case, when all have started.
    pub(crate) fn add(&mut self, args: &Args, list: &str, case: Value, groups: &mut [Peers]) -> Result<()> {
        if self.body["peers"].is_null() {
            self.body["peers"] = rounds::about(groups);
        }
        println!("    {:.0} s since the start of the suite", self.began.elapsed().as_secs_f64());
        self.push(list, case);
        self.save_in(args)
    }

    /// Adds a case to a list of the body.
    pub(crate) fn push(&mut self, list: &str, case: Value) {
        self.engines.extend(rows_of([&case]));
        if !self.body[list].is_array() {
            self.body[list] = json!([]);
        }
        self.body[list].as_array_mut().into_iter().for_each(|l| l.push(case.clone()));
    }

    /// Writes what there is so far, where the command line names a folder.
    pub(crate) fn save_in(&self, args: &Args) -> Result<()> {
        args.out.as_ref().map_or(Ok(()), |dir| self.save(dir).map(drop))
    }

    /// Writes the suite's result file.
    pub(crate) fn save(&self, dir: &Path) -> Result<PathBuf> {
        let mut digests = Map::new();
        for engine in &self.engines {
            let row =
                row_by_name(engine).ok_or_else(|| Error::new(ErrorCode::UnknownEngine, engine.clone(), "a row of MANIFEST"))?;
            let digest = frostgraph_kernels::digest(row.sources)
                .map_err(|e| Error::new(ErrorCode::Nvrtc, e.to_string(), "embedded sources"))?;
            digests.insert(engine.clone(), json!(digest));
        }
        let Machine { name, arch, driver } = &self.machine;
        let mut body = self.body.clone();
        for (key, value) in [
            ("suite", json!(self.suite)),
            ("engines", Value::Object(digests)),
            ("gpu", json!(name)),
            ("arch", json!(arch)),
            ("driver", json!(driver)),
        ] {
            body[key] = value;
        }
        let short: String = name.rsplit(' ').next().unwrap_or("gpu").to_ascii_lowercase();
        let path = dir.join(format!("{short}-{}.json", self.suite));
        let text = serde_json::to_string_pretty(&body).unwrap_or_default() + "\n";
        // Whole or not at all: a run may be cut off here, too.
        let part = path.with_extension("part");
        let written = std::fs::create_dir_all(dir).and_then(|()| std::fs::write(&part, text));
        written.and_then(|()| std::fs::rename(&part, &path)).map_err(|e| {
            Error::new(ErrorCode::FileWrite, e.to_string(), "a folder that can be written").at(path.display().to_string())
        })?;
        Ok(path)
    }
}
