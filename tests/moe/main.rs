//! The plain grouped product end to end: graphs, rules, JSON, runs, the function without a graph.

mod json;
mod rules;
mod run;
mod standalone;
mod support;
