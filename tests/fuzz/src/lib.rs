//! The wire room by itself, for the fuzz targets.

#[path = "../../../src/types.rs"]
pub mod types;
#[path = "../../../src/wire/mod.rs"]
pub mod wire;
