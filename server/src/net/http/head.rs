//! The head of one request: finding its end, and turning it into a checked [`Head`].

use super::{HttpFault, HttpLimits, MAX_HEADERS};
use crate::net::access::Secret;

/// Request methods this server tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Read a resource.
    Get,
    /// Like GET, the answer has no body.
    Head,
    /// Generate.
    Post,
    /// Which methods are there.
    Options,
    /// Everything else, always refused.
    Other,
}

/// How the body of a request is delimited (RFC 9112 section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// So many bytes; 0 when no body was announced.
    Length(usize),
    /// `Transfer-Encoding: chunked`.
    Chunked,
}

/// The checked head of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Method.
    pub method: Method,
    /// Path with the query cut off, still percent-encoded.
    pub path: String,
    /// False for HTTP/1.0, which knows no chunked answers.
    pub http11: bool,
    /// Whether the client wants the connection kept after the answer.
    pub keep_alive: bool,
    /// Body framing.
    pub framing: Framing,
    /// The client waits for `100 Continue` before it sends the body.
    pub expect_continue: bool,
    /// `x-request-id`, when it is 1 to 128 printable ASCII characters.
    pub request_id: Option<String>,
    /// `X-Token-Routing`, when it is 1 to 128 printable ASCII characters.
    pub token_routing: Option<String>,
    /// `Authorization`.
    pub authorization: Option<Secret>,
    /// `Origin`: the request comes from a page.
    pub origin: Option<String>,
    /// A browser asks whether a page may send its request: there is an origin and `Access-Control-Request-Method`.
    pub preflight: bool,
    /// `Access-Control-Request-Headers`.
    pub wanted_headers: Option<String>,
    /// Why the request is refused although its head could be read. Its body is not looked at, since its length may
    /// be unknown; `framing` then means nothing.
    pub fault: Option<HttpFault>,
}

impl Head {
    /// True when the client announced body bytes.
    pub fn has_body(&self) -> bool {
        self.framing != Framing::Length(0)
    }
}

/// Looks for the end of the head in `buf`, which starts at the request line. `scanned` remembers how far
/// earlier calls looked, so that byte-wise arrival costs linear time.
///
/// Returns the length of the head with its empty line, or `None` when more bytes are needed.
///
/// # Errors
/// 414 or 431 when a limit is crossed; the outcome does not depend on how the bytes were split.
pub fn find_end(buf: &[u8], scanned: &mut usize, limits: &HttpLimits) -> Result<Option<usize>, HttpFault> {
    // An end that straddles the old border starts at most three bytes before it.
    let from = scanned.saturating_sub(3);
    let end = buf[from..].iter().enumerate().filter(|(_, byte)| **byte == b'\n').find_map(|(at, _)| {
        let after = from + at + 1;
        match buf.get(after..) {
            Some([b'\n', ..]) => Some(after + 1),
            Some([b'\r', b'\n', ..]) => Some(after + 2),
            _ => None,
        }
    });
    let line_unchecked = *scanned <= limits.request_line && buf.len() > limits.request_line;
    *scanned = buf.len();
    if line_unchecked && !buf[..limits.request_line].contains(&b'\n') {
        return Err(HttpFault::new(414, "the request line is too long"));
    }
    match end {
        Some(end) if end <= limits.head => Ok(Some(end)),
        None if buf.len() <= limits.head => Ok(None),
        _ => Err(HttpFault::new(431, "the request headers are too large")),
    }
}

/// Parses a complete head.
///
/// # Errors
/// 400, 431 or 505: nothing of the head can be used. Other faults are in [`Head::fault`].
pub fn parse(bytes: &[u8], limits: &HttpLimits) -> Result<Head, HttpFault> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) if length == bytes.len() => {}
        Err(httparse::Error::TooManyHeaders) => return Err(HttpFault::new(431, "more than 100 headers")),
        Err(httparse::Error::Version) => {
            return Err(HttpFault::new(505, "only HTTP/1.0 and HTTP/1.1 are served"));
        }
        _ => return Err(HttpFault::new(400, "this is not a well-formed HTTP/1.1 request head")),
    }
    let http11 = request.version == Some(1);
    let fields = Fields::collect(request.headers);
    let checked = fields.check(http11, limits);
    let owned = |text: Option<&str>| text.map(str::to_owned);
    Ok(Head {
        method: method(request.method.unwrap_or_default()),
        path: path(request.path.unwrap_or_default()),
        http11,
        keep_alive: fields.keep_alive(http11),
        framing: checked.map_or(Framing::Length(0), |(framing, _)| framing),
        expect_continue: checked.is_ok_and(|(_, expects)| expects),
        request_id: owned(fields.request_id),
        token_routing: owned(fields.token_routing),
        authorization: fields.authorization.map(Secret::new),
        origin: owned(fields.origin),
        preflight: fields.origin.is_some() && fields.wants_method,
        wanted_headers: owned(fields.wanted_headers),
        fault: checked.err(),
    })
}

fn method(name: &str) -> Method {
    match name {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "POST" => Method::Post,
        "OPTIONS" => Method::Options,
        _ => Method::Other,
    }
}

/// Path of a request target: query and fragment are cut, and so is the authority of the absolute form that
/// proxies send.
fn path(target: &str) -> String {
    let target = target.split(['?', '#']).next().unwrap_or_default();
    let absolute = target.strip_prefix("http://").or_else(|| target.strip_prefix("https://"));
    match absolute {
        Some(rest) => rest.find('/').map_or_else(|| "/".to_owned(), |slash| rest[slash..].to_owned()),
        None => target.to_owned(),
    }
}

/// The headers that matter, taken from the list in one pass.
#[derive(Default)]
struct Fields<'a> {
    hosts: usize,
    length: Option<&'a [u8]>,
    lengths_differ: bool,
    codings: usize,
    chunked: bool,
    close: bool,
    keep: bool,
    expect: Option<&'a [u8]>,
    request_id: Option<&'a str>,
    token_routing: Option<&'a str>,
    authorization: Option<&'a str>,
    origin: Option<&'a str>,
    wants_method: bool,
    wanted_headers: Option<&'a str>,
    /// What the body is, when it is nothing for this server.
    media: Option<HttpFault>,
}

/// Longest values of headers that are kept: ids, which come back in every answer, and others.
const MAX_ID: usize = 128;
const MAX_VALUE: usize = 4096;

impl<'a> Fields<'a> {
    fn collect(headers: &[httparse::Header<'a>]) -> Self {
        let mut fields = Fields::default();
        for header in headers {
            let value = header.value;
            let is = |name: &str| header.name.eq_ignore_ascii_case(name);
            if is("host") {
                fields.hosts += 1;
            } else if is("content-length") {
                fields.lengths_differ |= fields.length.is_some_and(|earlier| earlier != value);
                fields.length = Some(value);
            } else if is("transfer-encoding") {
                fields.codings += 1;
                fields.chunked = value.eq_ignore_ascii_case(b"chunked");
            } else if is("connection") {
                for word in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                    fields.close |= word.eq_ignore_ascii_case(b"close");
                    fields.keep |= word.eq_ignore_ascii_case(b"keep-alive");
                }
            } else if is("expect") {
                fields.expect = Some(value);
            } else if is("content-encoding") && !value.eq_ignore_ascii_case(b"identity") {
                fields.media = Some(HttpFault::new(415, "compressed request bodies are not supported"));
            } else if is("content-type") && starts_with_ignore_case(value, b"multipart/") {
                fields.media = Some(HttpFault::new(415, "the body must be JSON (application/json)"));
            } else if is("x-request-id") {
                fields.request_id = word(value, MAX_ID);
            } else if is("x-token-routing") {
                fields.token_routing = word(value, MAX_ID);
            } else if is("authorization") {
                fields.authorization = text(value);
            } else if is("origin") {
                fields.origin = word(value, MAX_VALUE);
            } else if is("access-control-request-method") {
                fields.wants_method = true;
            } else if is("access-control-request-headers") {
                fields.wanted_headers = text(value);
            }
        }
        fields
    }

    /// The framing, and whether the client waits before its body.
    fn check(&self, http11: bool, limits: &HttpLimits) -> Result<(Framing, bool), HttpFault> {
        self.check_host(http11)?;
        let framing = self.framing(http11, limits)?;
        let expects = self.expect_continue(http11)?;
        self.media.map_or(Ok((framing, expects)), Err)
    }

    fn check_host(&self, http11: bool) -> Result<(), HttpFault> {
        match self.hosts {
            1 => Ok(()),
            0 if !http11 => Ok(()),
            _ => Err(HttpFault::new(400, "an HTTP/1.1 request needs exactly one Host header")),
        }
    }

    fn keep_alive(&self, http11: bool) -> bool {
        !self.close && (http11 || self.keep)
    }

    fn framing(&self, http11: bool, limits: &HttpLimits) -> Result<Framing, HttpFault> {
        if self.codings > 0 {
            if self.length.is_some() {
                return Err(HttpFault::new(400, "Content-Length and Transfer-Encoding exclude each other"));
            }
            if !http11 {
                return Err(HttpFault::new(400, "HTTP/1.0 has no Transfer-Encoding"));
            }
            if self.codings > 1 || !self.chunked {
                return Err(HttpFault::new(501, "the only supported transfer coding is chunked"));
            }
            return Ok(Framing::Chunked);
        }
        let Some(text) = self.length else { return Ok(Framing::Length(0)) };
        if self.lengths_differ {
            return Err(HttpFault::new(400, "two Content-Length headers that differ"));
        }
        let length = decimal(text).ok_or(HttpFault::new(400, "Content-Length must be a decimal number"))?;
        match usize::try_from(length) {
            Ok(length) if length <= limits.body => Ok(Framing::Length(length)),
            _ => Err(TOO_LARGE),
        }
    }

    fn expect_continue(&self, http11: bool) -> Result<bool, HttpFault> {
        match self.expect {
            None => Ok(false),
            Some(value) if value.eq_ignore_ascii_case(b"100-continue") => Ok(http11),
            Some(_) => Err(HttpFault::new(417, "the only known expectation is 100-continue")),
        }
    }
}

/// The answer to a body above the limit.
pub(crate) const TOO_LARGE: HttpFault = HttpFault::new(413, "the request body is too large");

/// Digits only: no sign, no space, no overflow.
fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |value, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    })
}

fn starts_with_ignore_case(value: &[u8], prefix: &[u8]) -> bool {
    value.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

/// A value of printable characters without a space.
fn word(value: &[u8], most: usize) -> Option<&str> {
    let fits = (1..=most).contains(&value.len()) && value.iter().all(u8::is_ascii_graphic);
    if fits { std::str::from_utf8(value).ok() } else { None }
}

/// A value of printable characters and spaces.
fn text(value: &[u8]) -> Option<&str> {
    let is_plain = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
    let fits = (1..=MAX_VALUE).contains(&value.len()) && value.iter().all(is_plain);
    if fits { std::str::from_utf8(value).ok() } else { None }
}
