//! HTTP/1.1 by hand: an incremental request parser and a response writer. No sockets here.

pub mod chunked;
pub mod date;
pub mod head;
pub mod parse;
pub mod write;

#[cfg(test)]
mod parse_tests;
#[cfg(test)]
mod write_tests;

/// A request that cannot be understood as HTTP, or that crosses a limit. It is answered with this status
/// and `Connection: close`, because after a framing error the place of the next request is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpFault {
    /// Status code of the answer.
    pub status: u16,
    /// What is wrong and what would be right. Fixed text: bytes of the client are never echoed.
    pub message: &'static str,
}

impl HttpFault {
    /// A fault with a status and a fixed text.
    pub const fn new(status: u16, message: &'static str) -> Self {
        Self { status, message }
    }
}

/// Sizes above which a request is refused.
#[derive(Clone, Copy, Debug)]
pub struct HttpLimits {
    /// Request line, bytes with its line end (414 above).
    pub request_line: usize,
    /// Request line and headers together, bytes (431 above).
    pub head: usize,
    /// Body after chunk decoding, bytes (413 above).
    pub body: usize,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self { request_line: 8 << 10, head: 64 << 10, body: 32 << 20 }
    }
}

/// Most headers a request may carry (431 above); a constant because `httparse` needs an array.
pub const MAX_HEADERS: usize = 100;
