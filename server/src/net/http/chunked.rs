//! Decoder of `Transfer-Encoding: chunked` bodies (RFC 9112 section 7.1), byte by byte.

use super::HttpFault;
use super::head::TOO_LARGE;

/// Bytes of one chunk-size line: 16 digits and some extension text.
const MAX_SIZE_LINE: usize = 1024;
/// Bytes of all chunk extensions of a body. They are ignored, but must not be a way to send for ever.
const MAX_EXTENSIONS: usize = 16 << 10;
/// Bytes of all trailer lines together.
const MAX_TRAILERS: usize = 16 << 10;

const BAD: HttpFault = HttpFault::new(400, "the chunked body is malformed");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// In the hexadecimal size; how many digits were read.
    Size(usize),
    /// In an extension, which is ignored up to the line end.
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    /// In a trailer line; whether it has no byte yet.
    Trailer {
        empty: bool,
    },
    TrailerLf {
        empty: bool,
    },
    Done,
}

/// The state of one chunked body between reads. Line ends must be CRLF: a bare LF is where two parsers
/// may disagree about the border of a request.
#[derive(Debug)]
pub struct ChunkDecoder {
    state: State,
    size: u64,
    line: usize,
    extensions: usize,
    trailers: usize,
}

impl Default for ChunkDecoder {
    fn default() -> Self {
        Self { state: State::Size(0), size: 0, line: 0, extensions: 0, trailers: 0 }
    }
}

impl ChunkDecoder {
    /// Decodes from `input` and appends data to `body`. Returns how many bytes it took; bytes after the end
    /// of the body are left alone.
    ///
    /// # Errors
    /// 400 when malformed, 413 when the body would pass `limit`.
    pub fn decode(&mut self, input: &[u8], body: &mut Vec<u8>, limit: usize) -> Result<usize, HttpFault> {
        let mut at = 0;
        while at < input.len() && self.state != State::Done {
            if self.state == State::Data {
                let left = usize::try_from(self.size).unwrap_or(usize::MAX);
                let take = left.min(input.len() - at);
                body.extend_from_slice(&input[at..at + take]);
                at += take;
                self.size -= take as u64;
                if self.size == 0 {
                    self.state = State::DataCr;
                }
            } else {
                self.state = self.byte(input[at], body.len(), limit)?;
                at += 1;
            }
        }
        Ok(at)
    }

    /// True when the last chunk and the trailers were read.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    fn byte(&mut self, byte: u8, body: usize, limit: usize) -> Result<State, HttpFault> {
        match (self.state, byte) {
            (State::Size(digits), _) if byte.is_ascii_hexdigit() => self.digit(byte, digits, body, limit),
            (State::Size(1..) | State::Extension, b'\r') => Ok(State::SizeLf),
            (State::Size(1..), b';' | b' ' | b'\t') | (State::Extension, _) if byte != b'\n' => {
                self.line += 1;
                self.extensions += 1;
                if self.line > MAX_SIZE_LINE || self.extensions > MAX_EXTENSIONS {
                    return Err(BAD);
                }
                Ok(State::Extension)
            }
            (State::SizeLf, b'\n') => {
                self.line = 0;
                Ok(if self.size == 0 { State::Trailer { empty: true } } else { State::Data })
            }
            (State::DataCr, b'\r') => Ok(State::DataLf),
            (State::DataLf, b'\n') => Ok(State::Size(0)),
            (State::Trailer { empty }, b'\r') => Ok(State::TrailerLf { empty }),
            (State::Trailer { .. }, _) if byte != b'\n' => {
                self.trailers += 1;
                if self.trailers > MAX_TRAILERS { Err(BAD) } else { Ok(State::Trailer { empty: false }) }
            }
            (State::TrailerLf { empty: true }, b'\n') => Ok(State::Done),
            (State::TrailerLf { empty: false }, b'\n') => Ok(State::Trailer { empty: true }),
            _ => Err(BAD),
        }
    }

    fn digit(&mut self, byte: u8, digits: usize, body: usize, limit: usize) -> Result<State, HttpFault> {
        if digits == 0 {
            self.size = 0;
        }
        if digits == 16 {
            return Err(BAD);
        }
        let value = char::from(byte).to_digit(16).ok_or(BAD)?;
        self.size = self.size << 4 | u64::from(value);
        if self.size > limit.saturating_sub(body) as u64 {
            return Err(TOO_LARGE);
        }
        Ok(State::Size(digits + 1))
    }
}
