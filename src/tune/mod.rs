//! Host tuning: what of a host helps or hinders the broker, changing it and changing it back, and
//! what its devices can do. Beside the broker's path: `highwater tune` runs it, the broker only
//! reads the profile of a device (`config::disk_profile`).
//!
//! * [`host`] the files of a host, real or made up;
//! * [`finding`] what a check says; [`wanted`] what it judges by;
//! * `limits`, `kernel`, `processors`, `memory`, `devices`, `network` the checks;
//! * [`apply`] making changes, and taking them back;
//! * [`disk`] measuring a device.

pub mod apply;
mod devices;
pub mod disk;
pub mod finding;
pub mod host;
mod kernel;
mod limits;
mod memory;
mod network;
mod processors;
#[cfg(test)]
mod tests;
pub mod wanted;

pub use devices::names_below;
use finding::Finding;
use host::Host;
use wanted::Wanted;

/// Everything that the checks say of a host, in the order in which it is told.
pub fn check(host: &Host, wanted: &Wanted) -> Vec<Finding> {
    let mut out = Vec::new();
    kernel::check(host, &mut out);
    limits::check(host, wanted, &mut out);
    processors::check(host, wanted, &mut out);
    memory::check(host, wanted, &mut out);
    devices::check(host, wanted, &mut out);
    network::check(host, wanted, &mut out);
    out
}
