//! The bytes of a connection: as they are, or through TLS.

use std::io::{self, Read, Write};
use std::net::Shutdown;

use mio::net::TcpStream;

#[cfg(not(feature = "tls"))]
pub(crate) use super::no_tls::{Acceptor, Session};
#[cfg(feature = "tls")]
pub(crate) use super::tls::{Acceptor, Session};

/// What a read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Got {
    /// So many bytes.
    Bytes(usize),
    /// The peer has closed its half.
    End,
    /// Text of an unencrypted protocol where TLS was to begin. From now on the connection is plain, so that the peer
    /// can read an answer.
    #[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "only a session finds it"))]
    Plain,
}

/// A socket, with the TLS session on it if there is one.
pub(crate) struct Transport {
    socket: TcpStream,
    session: Option<Box<Session>>,
}

impl Transport {
    /// A fresh connection; the peer begins.
    pub(crate) fn new(socket: TcpStream, session: Option<Session>) -> Self {
        Self { socket, session: session.map(Box::new) }
    }

    /// The socket, for the event queue.
    pub(crate) fn socket(&mut self) -> &mut TcpStream {
        &mut self.socket
    }

    /// Whether a read may give the other direction something to do.
    pub(crate) fn is_tls(&self) -> bool {
        self.session.is_some()
    }

    /// Reads what is there: the socket is asked until it would block, and what a session has decrypted comes first.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is there; others when the connection is broken.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<Got> {
        let got = match &mut self.session {
            Some(session) => session.read(&mut self.socket, buffer),
            None => match self.socket.read(buffer)? {
                0 => Ok(Got::End),
                count => Ok(Got::Bytes(count)),
            },
        };
        if matches!(got, Ok(Got::Plain)) {
            self.session = None;
        }
        got
    }

    /// Writes the beginning of `bytes`. After `WouldBlock` the next call must bring the same bytes again.
    ///
    /// # Errors
    /// `WouldBlock` when the socket takes nothing; others when the connection is broken.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.session {
            Some(session) => session.write(&mut self.socket, bytes),
            None => self.socket.write(bytes),
        }
    }

    /// Writes what the session has to say itself.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        match &mut self.session {
            Some(session) => session.flush(&mut self.socket),
            None => Ok(()),
        }
    }

    /// Whether [`flush`](Self::flush) has something to write.
    pub(crate) fn wants_flush(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.wants_flush())
    }

    /// Closes our half.
    ///
    /// # Errors
    /// When the connection is broken.
    pub(crate) fn shutdown(&mut self) -> io::Result<()> {
        if let Some(session) = &mut self.session {
            session.close(&mut self.socket);
        }
        self.socket.shutdown(Shutdown::Write)
    }
}
