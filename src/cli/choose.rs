//! Which plan is meant: by place, by engine and knobs, by record, or the best one.

use frostgraph::engines::{row_by_id, row_by_name, Knob, Knobs, MANIFEST};
use frostgraph::plan::{Built, Plan, PlanRecord};
use frostgraph::{Error, ErrorCode, Result};
use std::path::PathBuf;

/// Options that choose one plan; without any the best plan that builds is taken.
#[derive(Debug, Clone, clap::Args)]
pub struct ChoiceArgs {
    /// Place in the list that `plans` prints, for bench also `all`; it is used or the command fails.
    #[arg(long, allow_negative_numbers = true, value_name = "INDEX", conflicts_with_all = ["engine", "record"])]
    pub plan: Option<PlanArg>,
    /// Engine by name or id.
    #[arg(long, conflicts_with = "record")]
    pub engine: Option<String>,
    /// Knob of the engine as NAME=VALUE, by name or public number; may be repeated.
    #[arg(long = "knob", requires = "engine", value_name = "NAME=VALUE")]
    pub knobs: Vec<String>,
    /// Position (in execution order) of the node that --engine is for, when the graph has several.
    #[arg(long, allow_negative_numbers = true, requires = "engine", default_value_t = 0)]
    pub node: usize,
    /// Plan record that `tune --save` wrote.
    #[arg(long)]
    pub record: Option<PathBuf>,
}

/// Value of `--plan`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlanArg {
    /// Place in the list.
    Index(usize),
    /// Every plan; for `bench`.
    All,
}

impl std::str::FromStr for PlanArg {
    type Err = String;
    fn from_str(s: &str) -> Result<PlanArg, String> {
        match s {
            "all" => Ok(PlanArg::All),
            _ => s.parse().map(PlanArg::Index).map_err(|_| "a place in the list, or all for bench, is expected".into()),
        }
    }
}

impl ChoiceArgs {
    /// The plan that is meant.
    pub fn choose(&self, built: &Built) -> Result<Plan> {
        match self.plan {
            Some(PlanArg::Index(i)) => return built.select_plan(i),
            Some(PlanArg::All) => return Err(Error::new(ErrorCode::Usage, "--plan all", "one plan; only bench takes all")),
            None => {}
        }
        if let Some(engine) = &self.engine {
            return built.create_plan_for(self.node, engine_id(engine)?, &knobs(&self.knobs)?);
        }
        if let Some(path) = &self.record {
            return built.replay(&records(path)?);
        }
        built.best()
    }
}

fn engine_id(s: &str) -> Result<u32> {
    let row = match s.parse::<u32>() {
        Ok(id) => row_by_id(id),
        Err(_) => row_by_name(s),
    };
    row.map(|r| r.id).ok_or_else(|| {
        let known: Vec<String> = MANIFEST.iter().flat_map(|f| f.rows).map(|r| format!("{} {}", r.id, r.name)).collect();
        Error::new(ErrorCode::UnknownEngine, format!("engine '{s}'"), format!("an id or name: {}", known.join(", ")))
    })
}

fn knobs(list: &[String]) -> Result<Knobs> {
    let mut out = Knobs::NONE;
    for text in list {
        let bad = |given: String| {
            let known: Vec<String> = Knob::ALL.iter().map(|k| format!("{} ({})", k.name(), k.number())).collect();
            Error::new(ErrorCode::BadKnob, given, format!("NAME=VALUE with an integer value, NAME being {}", known.join(", ")))
        };
        let (name, value) = text.split_once('=').ok_or_else(|| bad(format!("'{text}'")))?;
        let knob = match name.parse::<u32>() {
            Ok(n) => Knob::from_number(n),
            Err(_) => Knob::from_name(name),
        };
        let knob = knob.ok_or_else(|| bad(format!("knob '{name}'")))?;
        let value = value.parse::<i64>().map_err(|_| bad(format!("value '{value}' of knob {name}")))?;
        if out.get(knob).is_some() {
            return Err(bad(format!("knob {name} twice")));
        }
        out = out.with(knob, value);
    }
    Ok(out)
}

fn records(path: &std::path::Path) -> Result<Vec<PlanRecord>> {
    let at = path.display().to_string();
    let text = frostgraph::tensor_file::read_text_file(path, "a readable plan record")?;
    serde_json::from_str(&text).map_err(|e| {
        Error::new(ErrorCode::JsonValue, e.to_string(), "a list of plan records, as `frostgraph tune --save` writes").at(at)
    })
}
