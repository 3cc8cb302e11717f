//! Text, sockets, configuration and the command line.
#![forbid(unsafe_code)]

pub mod net;
pub mod text;
