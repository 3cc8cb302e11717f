//! Who may ask: API keys, and the web origins whose pages may read answers.

use std::fmt;
use std::hint::black_box;

use super::http::head::Head;
use super::http::write::{Headers, Response};

/// Longest time in seconds that a browser may remember a preflight.
const PREFLIGHT_AGE: &str = "600";
/// Headers of ours that a page may read beside the ones that every page may.
const EXPOSED: &str =
    "x-request-id, x-token-routing, x-token-routing-fraction, x-token-routing-degraded, retry-after";

/// A text that no log and no debug print shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hides a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The key in a value of `Authorization`: what follows the scheme `Bearer`, in any case of its letters.
    fn bearer(&self) -> Option<&[u8]> {
        let (scheme, key) = self.0.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| key.trim_ascii().as_bytes())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// What is configured.
#[derive(Clone, Debug, Default)]
pub struct Access {
    keys: Vec<Secret>,
    origins: Vec<String>,
}

impl Access {
    /// No keys: everybody may ask. No origins: no page of another origin may read answers; `*` allows all.
    pub fn new(keys: Vec<Secret>, origins: Vec<String>) -> Self {
        let keys = keys.into_iter().filter(|key| !key.is_empty()).collect();
        // An origin ends before the first slash of a path, but is often copied with it.
        let origins = origins.iter().map(|origin| origin.trim_end_matches('/').to_owned()).collect();
        Self { keys, origins }
    }

    /// Whether a key must be given.
    pub fn needs_key(&self) -> bool {
        !self.keys.is_empty()
    }

    /// Whether this is one of the keys. Takes the same time for every wrong key of a length, so that it tells
    /// nothing about how far a guess was right.
    pub fn accepts(&self, key: &Secret) -> bool {
        self.is_key(key.0.as_bytes())
    }

    fn is_key(&self, given: &[u8]) -> bool {
        self.keys.iter().fold(false, |found, key| found | is_same(given, key.0.as_bytes()))
    }

    /// The answer to a request without a right key; `None` when it may go on.
    pub fn check(&self, head: &Head) -> Option<Response> {
        let given = head.authorization.as_ref().and_then(Secret::bearer);
        if !self.needs_key() || given.is_some_and(|key| self.is_key(key)) {
            return None;
        }
        let text = match given {
            Some(_) => "the API key is not right",
            None => "an API key is needed: send the header \"Authorization: Bearer <key>\"",
        };
        Some(Response::error(401, Some("invalid_api_key"), text).with("WWW-Authenticate", "Bearer"))
    }

    /// Headers that let a page read the answer, whatever the answer is.
    pub fn cors(&self, head: &Head) -> Headers {
        let any = self.origins.iter().any(|origin| origin == "*");
        let mut headers = Headers::new();
        if self.origins.is_empty() {
            return headers;
        }
        // Caches must not give one origin's answer to another.
        if !any {
            headers.push(("Vary", "Origin".into()));
        }
        if let Some(origin) = head.origin.as_ref().filter(|_| self.allows_origin(head)) {
            let allowed = if any { "*" } else { origin };
            headers.push(("Access-Control-Allow-Origin", allowed.into()));
            headers.push(("Access-Control-Expose-Headers", EXPOSED.into()));
        }
        headers
    }

    fn allows_origin(&self, head: &Head) -> bool {
        let Some(origin) = &head.origin else { return false };
        self.origins.iter().any(|allowed| allowed == "*" || allowed.eq_ignore_ascii_case(origin))
    }

    /// The answer to `OPTIONS` on a path with these methods. [`cors`](Self::cors) comes on top of it.
    pub fn options(&self, head: &Head, allow: &'static str) -> Response {
        let plain = Response::empty(204).with("Allow", allow);
        if !head.preflight || self.origins.is_empty() {
            return plain;
        }
        if !self.allows_origin(head) {
            return Response::error(403, None, "pages of this origin may not use this server");
        }
        let plain = plain
            .with("Access-Control-Allow-Methods", "GET, POST, OPTIONS")
            .with("Access-Control-Max-Age", PREFLIGHT_AGE);
        match &head.wanted_headers {
            Some(wanted) => plain.with("Access-Control-Allow-Headers", wanted.clone()),
            None => plain,
        }
    }
}

/// Looks at every given byte, wherever the first difference is.
fn is_same(given: &[u8], key: &[u8]) -> bool {
    let mut differs = given.len() ^ key.len();
    for (at, byte) in given.iter().enumerate() {
        let other = key.get(at % key.len().max(1)).copied().unwrap_or_default();
        differs |= usize::from(byte ^ other);
    }
    black_box(differs) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::http::{HttpLimits, head};

    fn head(headers: &str) -> Head {
        let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{headers}\r\n");
        head::parse(text.as_bytes(), &HttpLimits::default()).unwrap()
    }

    fn access(keys: &[&str], origins: &[&str]) -> Access {
        let keys = keys.iter().map(|key| Secret::new(*key)).collect();
        Access::new(keys, origins.iter().map(|origin| (*origin).to_owned()).collect())
    }

    fn names(headers: &Headers) -> Vec<&'static str> {
        headers.iter().map(|(name, _)| *name).collect()
    }

    #[test]
    fn keys() {
        let two = access(&["sk-one", "", "sk-two"], &[]);
        for good in ["Bearer sk-one", "bearer sk-two", "BEARER  sk-two "] {
            assert_eq!(two.check(&head(&format!("Authorization: {good}\r\n"))), None, "{good}");
        }
        for bad in [
            "Bearer",
            "Bearer ",
            "Bearer sk-on",
            "Bearer sk-onesk-one",
            "sk-one",
            "Basic sk-one",
            "Bearer sk-onE",
        ] {
            let answer = two.check(&head(&format!("authorization: {bad}\r\n"))).unwrap();
            assert_eq!((answer.status, answer.headers[0].0), (401, "WWW-Authenticate"), "{bad}");
            let text = String::from_utf8(answer.body).unwrap();
            assert!(text.contains("invalid_api_key") && !text.contains("sk-"), "{text}");
        }
        assert!(two.check(&head("")).is_some());
        assert_eq!(access(&[], &[]).check(&head("")), None);
        assert_eq!(access(&[""], &[]).check(&head("")), None, "an empty key is none");
        assert!(!access(&["k"], &[]).accepts(&Secret::new("")));
        let debug = format!("{:?} {:?}", two, head("Authorization: Bearer sk-one\r\n"));
        assert!(!debug.contains("sk-"), "{debug}");
    }

    #[test]
    fn origins() {
        let page = head("Origin: https://chat.example\r\n");
        assert_eq!(access(&[], &[]).cors(&page), Headers::new());
        let some = access(&[], &["https://other.example", "https://Chat.example/"]);
        let headers = some.cors(&page);
        assert_eq!(names(&headers), ["Vary", "Access-Control-Allow-Origin", "Access-Control-Expose-Headers"]);
        assert_eq!(headers[1].1, "https://chat.example");
        assert_eq!(names(&some.cors(&head(""))), ["Vary"]);
        assert_eq!(names(&some.cors(&head("Origin: https://evil.example\r\n"))), ["Vary"]);
        let any = access(&[], &["*"]).cors(&page);
        assert_eq!((names(&any)[0], any[0].1.as_str()), ("Access-Control-Allow-Origin", "*"));
    }

    #[test]
    fn preflights() {
        let ask = |origin: &str| {
            head(&format!(
                "Origin: {origin}\r\nAccess-Control-Request-Method: POST\r\n\
                 Access-Control-Request-Headers: authorization, x-custom\r\n"
            ))
        };
        let some = access(&["key"], &["https://chat.example"]);
        let answer = some.options(&ask("https://chat.example"), "POST, OPTIONS");
        assert_eq!((answer.status, answer.body.len()), (204, 0));
        let value = |name: &str| &answer.headers.iter().find(|(n, _)| *n == name).unwrap().1;
        assert_eq!(value("Access-Control-Allow-Headers"), "authorization, x-custom");
        assert_eq!(value("Access-Control-Allow-Methods"), "GET, POST, OPTIONS");
        assert_eq!(value("Access-Control-Max-Age"), "600");
        let refused = some.options(&ask("https://evil.example"), "POST, OPTIONS");
        assert_eq!(refused.status, 403);
        assert!(String::from_utf8(refused.body).unwrap().contains("permission_error"));
        for off in [access(&[], &[]).options(&ask("https://x.example"), "A"), some.options(&head(""), "A")] {
            assert_eq!((off.status, names(&off.headers)), (204, vec!["Allow"]));
        }
    }
}
