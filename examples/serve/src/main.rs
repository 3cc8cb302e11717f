//! The `tokenrouter` binary with one router more.

use std::error::Error;
use std::process::ExitCode;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut registry = tokenrouter_server::Registry::builtin();
    margin_router::register(&mut registry)?;
    Ok(tokenrouter_server::cli::run(&registry))
}
