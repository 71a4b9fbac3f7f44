//! The grouped product with the dsReLU epilogue, from the builder to the results.

#[path = "../support/cpu_run.rs"]
mod cpu_run;
mod json;
mod rules;
mod run;
mod standalone;
mod support;
