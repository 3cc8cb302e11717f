//! Text, sockets, configuration and the command line.
#![forbid(unsafe_code)]

pub mod api;
pub mod net;
pub mod text;
