//! Which endpoint a method and a path name.

use super::frontend::ApiCall;
use super::http::head::Method;
use super::http::write::Response;

/// An endpoint of the HTTP port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Whether the process can make progress.
    Health,
    /// Whether requests are taken.
    Ready,
    /// Counters and gauges for Prometheus.
    Metrics,
    /// How steps are scheduled.
    Scheduling,
    /// The list of served names.
    Models,
    /// One served name, as it is in the path.
    Model(String),
    /// Which version runs.
    Version,
    /// Whether the process can make progress, without a body (probes of model hosters).
    Ping,
    /// What is served and how, for clients that set themselves up by it.
    Props,
    /// Requests in progress.
    Load,
    /// Ends requests by their id.
    Abort,
    /// The page to try the server with.
    TryPage,
    /// The page that shows what the server does.
    StatusPage,
    /// The numbers behind [`Endpoint::StatusPage`].
    StatusData,
    /// An answer through the tokenizer threads: generation, tokens, rendered templates.
    Call(ApiCall),
    /// `OPTIONS` on a path that exists.
    Options(&'static str),
}

impl Endpoint {
    /// Whether a configured API key is asked for. What a load balancer, a probe or a browser's first look needs is
    /// free, everything that shows or does work is not. `/metrics` has a switch of its own.
    pub fn needs_key(&self) -> bool {
        match self {
            Self::Models | Self::Model(_) | Self::Scheduling | Self::Props => true,
            Self::Abort | Self::StatusData | Self::Call(_) => true,
            Self::Health | Self::Ready | Self::Metrics | Self::Version | Self::Ping | Self::Load => false,
            Self::TryPage | Self::StatusPage | Self::Options(_) => false,
        }
    }
}

impl Endpoint {
    /// Whether the answer is the same before there is anything to serve.
    pub fn is_fixed(&self) -> bool {
        matches!(self, Self::Version | Self::TryPage | Self::StatusPage | Self::Options(_))
    }
}

const READ: &str = "GET, HEAD, OPTIONS";
const WRITE: &str = "POST, OPTIONS";

/// Finds the endpoint. A trailing slash does not matter.
///
/// # Errors
/// The answer to send: 404, or 405 with `Allow`.
pub fn find(method: Method, path: &str) -> Result<Endpoint, Response> {
    let trimmed = path.strip_suffix('/').unwrap_or(path);
    let (endpoint, allow) = match trimmed {
        "/health" | "/healthz" | "/v1/health" => (Endpoint::Health, READ),
        "/ready" | "/readyz" => (Endpoint::Ready, READ),
        "/metrics" => (Endpoint::Metrics, READ),
        "/v1/scheduling" => (Endpoint::Scheduling, READ),
        "/v1/models" => (Endpoint::Models, READ),
        "/version" => (Endpoint::Version, READ),
        "/ping" => (Endpoint::Ping, READ),
        "/props" | "/server_info" | "/get_server_info" => (Endpoint::Props, READ),
        "/load" => (Endpoint::Load, READ),
        "/abort_request" => (Endpoint::Abort, WRITE),
        "" => (Endpoint::TryPage, READ),
        "/status" => (Endpoint::StatusPage, READ),
        "/v1/status" => (Endpoint::StatusData, READ),
        "/v1/completions" => (Endpoint::Call(ApiCall::Completion), WRITE),
        "/v1/chat/completions" => (Endpoint::Call(ApiCall::Chat), WRITE),
        "/v1/chat/completions/render" | "/apply-template" => (Endpoint::Call(ApiCall::Render), WRITE),
        "/tokenize" => (Endpoint::Call(ApiCall::Tokenize), WRITE),
        "/detokenize" => (Endpoint::Call(ApiCall::Detokenize), WRITE),
        _ => match trimmed.strip_prefix("/v1/models/") {
            Some(name) => (Endpoint::Model(name.to_owned()), READ),
            None => return Err(absent(trimmed)),
        },
    };
    match method {
        Method::Options => Ok(Endpoint::Options(allow)),
        Method::Get | Method::Head if allow == READ => Ok(endpoint),
        Method::Post if allow == WRITE => Ok(endpoint),
        _ => {
            let text = format!("this path takes {allow}");
            Err(Response::error(405, None, &text).with("Allow", allow))
        }
    }
}

/// The template of a path and the method, as requests are counted; what is no endpoint is `none`.
pub(crate) fn template(method: Method, path: &str) -> (&'static str, &'static str) {
    let name = match find(method, path) {
        Err(_) | Ok(Endpoint::Options(_)) => return ("none", "other"),
        Ok(endpoint) => match endpoint {
            Endpoint::Health => "/health",
            Endpoint::Ready => "/ready",
            Endpoint::Metrics => "/metrics",
            Endpoint::Scheduling => "/v1/scheduling",
            Endpoint::Models => "/v1/models",
            Endpoint::Model(_) => "/v1/models/{id}",
            Endpoint::Version => "/version",
            Endpoint::Ping => "/ping",
            Endpoint::Props => "/props",
            Endpoint::Load => "/load",
            Endpoint::Abort => "/abort_request",
            Endpoint::TryPage => "/",
            Endpoint::StatusPage => "/status",
            Endpoint::StatusData => "/v1/status",
            Endpoint::Call(ApiCall::Completion) => "/v1/completions",
            Endpoint::Call(ApiCall::Chat) => "/v1/chat/completions",
            Endpoint::Call(ApiCall::Render) => "/v1/chat/completions/render",
            Endpoint::Call(ApiCall::Tokenize) => "/tokenize",
            Endpoint::Call(ApiCall::Detokenize) => "/detokenize",
            // Comes on the other port.
            Endpoint::Call(ApiCall::Line) | Endpoint::Options(_) => "none",
        },
    };
    (name, if method == Method::Post { "POST" } else { "GET" })
}

/// Interfaces that users of this one's clients try, and that are not here.
const ABSENT: &[&str] = &["/v1/embeddings", "/v1/responses", "/v1/audio", "/v1/images", "/v1/moderations"];

fn absent(path: &str) -> Response {
    let is_below = |known: &str| match path.strip_prefix(known) {
        Some(rest) => rest.is_empty() || rest.starts_with('/'),
        None => false,
    };
    match ABSENT.iter().find(|known| is_below(known)) {
        Some(known) => {
            let text =
                format!("this server has no {known}; it serves /v1/completions and /v1/chat/completions");
            Response::error(404, None, &text)
        }
        None => Response::error(404, None, "there is no such path; see /v1/models"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        let get = |path| find(Method::Get, path);
        assert_eq!(get("/health/"), Ok(Endpoint::Health));
        assert_eq!(get("/v1/health"), Ok(Endpoint::Health));
        assert_eq!(find(Method::Head, "/readyz"), Ok(Endpoint::Ready));
        assert_eq!(get("/v1/models/"), Ok(Endpoint::Models));
        assert_eq!(get("/metrics"), Ok(Endpoint::Metrics));
        assert_eq!(get("/v1/scheduling/"), Ok(Endpoint::Scheduling));
        assert_eq!(get("/v1/models/Org/Name"), Ok(Endpoint::Model("Org/Name".into())));
        assert_eq!(get("/"), Ok(Endpoint::TryPage));
        for bad in ["/v1", "/healthy", "//"] {
            assert_eq!(get(bad).unwrap_err().status, 404, "{bad}");
        }
    }

    #[test]
    fn interfaces_that_are_not_here_say_so() {
        for path in ["/v1/embeddings", "/v1/responses/", "/v1/audio/speech", "/v1/responses/resp_1"] {
            let answer = find(Method::Post, path).unwrap_err();
            let body: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
            assert_eq!((answer.status, answer.content_type), (404, "application/json"), "{path}");
            let message = body["error"]["message"].as_str().unwrap();
            assert!(message.contains("no /v1/") && body["error"]["code"].is_null(), "{message}");
        }
        assert!(
            !String::from_utf8(find(Method::Get, "/v1/audiobook").unwrap_err().body)
                .unwrap()
                .contains("no /v1/")
        );
    }

    #[test]
    fn requests_are_counted_by_template() {
        let got = |path| template(Method::Get, path);
        assert_eq!(got("/v1/models/Org/Name"), ("/v1/models/{id}", "GET"));
        assert_eq!(template(Method::Head, "/healthz/"), ("/health", "GET"));
        assert_eq!(template(Method::Post, "/apply-template"), ("/v1/chat/completions/render", "POST"));
        for (method, path) in [(Method::Get, "/x"), (Method::Options, "/health"), (Method::Get, "/tokenize")]
        {
            assert_eq!(template(method, path), ("none", "other"));
        }
        // Every endpoint has its series.
        for path in [
            "/",
            "/status",
            "/v1/status",
            "/ready",
            "/metrics",
            "/v1/scheduling",
            "/v1/models",
            "/version",
            "/ping",
            "/props",
            "/load",
        ] {
            assert!(crate::metrics::HANDLERS.contains(&template(Method::Get, path)), "{path}");
        }
        for path in ["/abort_request", "/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"]
        {
            assert!(crate::metrics::HANDLERS.contains(&template(Method::Post, path)), "{path}");
        }
    }

    #[test]
    fn methods() {
        let refused = find(Method::Post, "/health").unwrap_err();
        assert_eq!((refused.status, &refused.headers[0]), (405, &("Allow", READ.to_owned())));
        assert_eq!(find(Method::Get, "/v1/completions").unwrap_err().headers[0].1, WRITE);
        assert_eq!(find(Method::Other, "/v1/models").unwrap_err().status, 405);
        assert_eq!(find(Method::Options, "/v1/models"), Ok(Endpoint::Options(READ)));
        assert_eq!(find(Method::Options, "/nothing").unwrap_err().status, 404);
    }
}
