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
    /// Generation.
    Generate(ApiCall),
    /// `OPTIONS` on a path that exists.
    Options(&'static str),
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
        "/v1/completions" => (Endpoint::Generate(ApiCall::Completion), WRITE),
        "/v1/chat/completions" => (Endpoint::Generate(ApiCall::Chat), WRITE),
        _ => match trimmed.strip_prefix("/v1/models/") {
            Some(name) => (Endpoint::Model(name.to_owned()), READ),
            None => return Err(Response::error(404, None, "there is no such path; see /v1/models")),
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
        for bad in ["/", "", "/v1", "/healthy"] {
            assert_eq!(get(bad).unwrap_err().status, 404, "{bad}");
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
