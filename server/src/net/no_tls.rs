//! What stands for TLS in a program without it: there is never a session.

use std::io;

use mio::net::TcpStream;

use super::config::TlsFiles;
use super::transport::Got;

/// There is none.
pub(crate) enum Acceptor {}

/// There is none.
pub(crate) enum Session {}

impl Acceptor {
    /// # Errors
    /// Always.
    pub(crate) fn load(_: &TlsFiles) -> io::Result<Self> {
        Err(io::Error::other("TLS is configured, but this program was built without the feature \"tls\""))
    }

    pub(crate) fn session(&self) -> io::Result<Session> {
        match *self {}
    }
}

impl Session {
    pub(crate) fn read(&mut self, _: &mut TcpStream, _: &mut [u8]) -> io::Result<Got> {
        match *self {}
    }

    pub(crate) fn write(&mut self, _: &mut TcpStream, _: &[u8]) -> io::Result<usize> {
        match *self {}
    }

    pub(crate) fn flush(&mut self, _: &mut TcpStream) -> io::Result<()> {
        match *self {}
    }

    pub(crate) fn wants_flush(&self) -> bool {
        match *self {}
    }

    pub(crate) fn close(&mut self, _: &mut TcpStream) {
        match *self {}
    }
}
