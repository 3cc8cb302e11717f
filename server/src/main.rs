//! The `tokenrouter` binary: the built-in routers and the command line of the server crate.

use std::process::ExitCode;

fn main() -> ExitCode {
    tokenrouter_server::cli::run(&tokenrouter_server::Registry::builtin())
}
