//! Text, sockets, configuration and the command line.
//!
//! A binary with its own router registers it and calls [`cli::run`] (`docs/routers.md`, `examples/`):
//!
//! ```no_run
//! let mut registry = tokenrouter_server::Registry::builtin();
//! // registry.register("mine", ...)
//! tokenrouter_server::cli::run(&registry);
//! ```
#![forbid(unsafe_code)]

pub mod api;
pub mod bench;
pub mod calibrate;
mod chart;
pub mod cli;
pub mod config;
pub mod convert;
pub mod demo;
pub mod deploy;
pub mod eval;
pub mod frontend;
pub mod generate;
mod logging;
mod metrics;
pub mod net;
pub mod pages;
pub mod paint;
pub mod plan;
pub mod profile;
mod progress;
pub mod serve;
pub mod simulate;
pub mod sources;
pub mod text;

pub use tokenrouter_scheduler::router::Registry;

/// The code of the page about routers, compiled. Here and not in the scheduler, because it also serves one.
#[cfg(doctest)]
#[doc = include_str!("../../docs/routers.md")]
mod routers_page {}
