//! Planning and execution on the CPU, their goldens, and the invariants of the architecture page. One program, so that it links once.

mod bindings;
mod execution;
mod goldens;
mod invariants;
mod planning;
mod qat;
mod records;
mod standalone;
mod support;
