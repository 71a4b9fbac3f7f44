//! cudnn-frontend's graph JSON: versions 1.0 and 2.0 are read, 2.0 is written.
//!
//! The format in short: an envelope (`json_version`, `context`, `nodes`, `tensors`), C++ floats as eight hexadecimal digits of their
//! IEEE-754 bits, unset optionals as `null`, tensors named by uid. One table (`tables.rs`) says which keys exist and what they hold; the
//! reader checks against it, and the published JSON Schema is printed from it, so the two cannot disagree.
//!
//! Deliberate differences from cudnn-frontend's own reader:
//! - an unknown enum string is an error; cudnn-frontend takes the first entry of its table;
//! - an unknown node tag is an error that names node and tag; cudnn-frontend skips the node;
//! - `implementation: AUTO` loads; cudnn-frontend refuses it, although it never influences what is computed;
//! - a key that occurs twice in one object is an error;
//! - `NVFP4_ATTENTION_QAT` and `NVFP4_ATTENTION_QAT_BWD` are tags of frostgraph's own, in the same style: cudnn-frontend has that operation
//!   outside its graphs only;
//! - `BLOCK_SCALE_DEQUANTIZE` is read and written where `MOE_GROUPED_MATMUL` reads its result: the pair is one operation on block-scaled
//!   operands, and what the file calls the dequantisation and the virtual tensor between the two is kept for writing. Elsewhere the tag is
//!   refused;
//! - mode `COMBINE` of `MOE_GROUPED_MATMUL` is refused: cudnn-frontend writes its TopKScores operand under the key `Token`, over the token
//!   operand, so such a file does not say what the graph was;
//! - hexadecimal digits of either case and plain numbers are taken for floats, for files written by hand.

mod check;
mod dequantize;
mod nodes;
mod read;
mod schema;
mod spelling;
mod tables;
mod tensors;
mod text;
mod write;

pub use schema::schema;
pub use write::{to_string, to_value};

use crate::graph::Graph;
use crate::{Error, ErrorCode, Result};

/// What to do with keys that the format does not define.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Strictness {
    /// Report them as warnings.
    #[default]
    Lenient,
    /// Refuse them (FG2007).
    Strict,
}

/// Something in the file that was not taken into the graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// JSON pointer (RFC 6901).
    pub pointer: String,
    /// What was left out and why.
    pub message: String,
}

impl std::fmt::Display for Warning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.pointer.is_empty() {
            write!(f, "{}", self.message)
        } else {
            write!(f, "{}: {}", self.pointer, self.message)
        }
    }
}

/// A graph read from JSON and what was left out of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// The graph, not frozen yet.
    pub graph: Graph,
    /// In file order.
    pub warnings: Vec<Warning>,
}

/// Reads a graph from bare JSON, or from log text in which one line holds it.
///
/// Errors: FG2001 syntax (with line and column), FG2002 version, FG2003 missing key, FG2004 wrong value, FG2005 node tag, FG2006 uid,
/// FG2007 unknown key under [`Strictness::Strict`], FG1108 a scale or probability that is no finite number; each names its place.
pub fn from_str(text: &str, strictness: Strictness) -> Result<Loaded> {
    let found = text::find(text)?;
    let mut loaded = read::read(&found.value, strictness)?;
    if found.graphs > 1 {
        let message = format!("the text holds {} graphs; the first one is taken", found.graphs);
        if strictness == Strictness::Strict {
            return Err(Error::new(ErrorCode::JsonValue, format!("text with {} graphs", found.graphs), "one graph"));
        }
        loaded.warnings.push(Warning { pointer: String::new(), message });
    }
    Ok(loaded)
}

/// Reads a graph from a file; see [`from_str`]. FG5001 when the file cannot be read or is not UTF-8.
pub fn from_path(path: &std::path::Path, strictness: Strictness) -> Result<Loaded> {
    from_str(&crate::files::read_text_file(path, "a readable UTF-8 file with a graph")?, strictness)
}

impl Graph {
    /// Reads a graph from JSON, ignoring unknown keys; see [`from_str`] for the warnings.
    pub fn from_json(text: &str) -> Result<Graph> {
        Ok(from_str(text, Strictness::Lenient)?.graph)
    }

    /// Writes the graph as JSON 2.0; see [`to_string`].
    pub fn to_json(&self) -> Result<String> {
        to_string(self)
    }
}
