//! TLS 1.2 and 1.3 by rustls over a socket whose events are edges.
//!
//! Two rules follow from the edges. A read goes on until the socket would block, and what was decrypted is handed out
//! before the socket is asked again: no event will announce it. And bytes of the application count as written only
//! when the socket has taken their ciphertext, so that a client which reads nothing is seen here as everywhere else.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;
use std::sync::Arc;

use mio::net::TcpStream;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};

use super::config::TlsFiles;
use super::transport::Got;

/// Bytes encrypted at a time: one record.
const RECORD: usize = 16 << 10;

/// Makes sessions with the server's certificate.
pub(crate) struct Acceptor {
    config: Arc<ServerConfig>,
}

impl Acceptor {
    /// Reads certificate and key.
    ///
    /// # Errors
    /// When a file cannot be read, holds no PEM of its kind, or the key is not the certificate's; the text names it.
    pub(crate) fn load(files: &TlsFiles) -> io::Result<Self> {
        let certs = CertificateDer::pem_slice_iter(&read(&files.cert)?)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| at_fault(&files.cert, &error))?;
        if certs.is_empty() {
            return Err(at_fault(&files.cert, &"there is no certificate in it"));
        }
        let key = PrivateKeyDer::from_pem_slice(&read(&files.key)?)
            .map_err(|error| at_fault(&files.key, &format!("there is no private key in it ({error})")))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(certs, key))
            .map_err(|error| at_fault(&files.cert, &error))?;
        // The raw port offers no protocol by name; a client of it that asks for none gets none.
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { config: Arc::new(config) })
    }

    /// The session of a new connection.
    ///
    /// # Errors
    /// When rustls refuses the configuration.
    pub(crate) fn session(&self) -> io::Result<Session> {
        let connection = ServerConnection::new(self.config.clone()).map_err(io::Error::other)?;
        Ok(Session { connection, begun: false, unsent: 0 })
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    fs::read(path).map_err(|error| at_fault(path, &error))
}

fn at_fault(path: &Path, what: &dyn std::fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {what}", path.display()))
}

/// TLS on one connection.
pub(crate) struct Session {
    connection: ServerConnection,
    /// The peer's first byte was seen.
    begun: bool,
    /// Bytes of the application whose ciphertext the socket has not taken yet.
    unsent: usize,
}

impl Session {
    /// As [`Transport::read`](super::transport::Transport::read).
    pub(crate) fn read(&mut self, socket: &mut TcpStream, buffer: &mut [u8]) -> io::Result<Got> {
        loop {
            match self.connection.reader().read(buffer) {
                Ok(0) => return Ok(Got::End),
                Ok(count) => return Ok(Got::Bytes(count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // The peer closed the socket without a word of farewell; what is sent says itself where it ends.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(Got::End),
                Err(error) => return Err(error),
            }
            if !self.begun && is_text(socket)? {
                return Ok(Got::Plain);
            }
            self.begun = true;
            // At the end of the socket the reader says so in the next round.
            self.connection.read_tls(socket)?;
            if let Err(error) = self.connection.process_new_packets() {
                // The peer is told why, as far as the socket takes it.
                drop(self.flush(socket));
                return Err(io::Error::new(ErrorKind::InvalidData, error));
            }
        }
    }

    /// As [`Transport::write`](super::transport::Transport::write).
    pub(crate) fn write(&mut self, socket: &mut TcpStream, bytes: &[u8]) -> io::Result<usize> {
        if self.connection.is_handshaking() {
            self.flush(socket)?;
            return Err(ErrorKind::WouldBlock.into());
        }
        if self.unsent == 0 {
            self.unsent = self.connection.writer().write(&bytes[..bytes.len().min(RECORD)])?;
        }
        self.flush(socket)?;
        Ok(std::mem::take(&mut self.unsent))
    }

    /// As [`Transport::flush`](super::transport::Transport::flush).
    pub(crate) fn flush(&mut self, socket: &mut TcpStream) -> io::Result<()> {
        while self.connection.wants_write() {
            match self.connection.write_tls(socket) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// As [`Transport::wants_flush`](super::transport::Transport::wants_flush).
    pub(crate) fn wants_flush(&self) -> bool {
        self.connection.wants_write()
    }

    /// Says farewell, as far as the socket takes it.
    pub(crate) fn close(&mut self, socket: &mut TcpStream) {
        self.connection.send_close_notify();
        drop(self.flush(socket));
    }
}

/// Whether the first byte is a letter or a brace: the line of an HTTP client, or of one of the raw port. A TLS
/// handshake begins with the byte 22.
fn is_text(socket: &TcpStream) -> io::Result<bool> {
    let mut first = [0];
    let count = socket.peek(&mut first)?;
    Ok(count > 0 && (first[0].is_ascii_alphabetic() || first[0] == b'{'))
}
