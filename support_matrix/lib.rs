//! Renders the support matrix from `frostgraph_engines::MANIFEST` and the evidence records.
#![forbid(unsafe_code)]
