//! The grouped product with the dsReLU epilogue, from the builder to the results.

mod json;
mod rules;
mod run;
mod standalone;
mod support;
