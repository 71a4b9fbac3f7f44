//! The plain grouped product end to end: graphs, rules, JSON, runs, the function without a graph.

#[path = "../support/cpu_run.rs"]
mod cpu_run;
mod json;
mod rules;
mod run;
mod standalone;
mod support;
