//! The `highwater` command; see `highwater --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    highwater::commands::run()
}
