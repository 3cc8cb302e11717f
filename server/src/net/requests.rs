//! What the network thread does with a request: answer it here, or hand it to the dispatcher.

use std::time::Instant;

use serde_json::Value;

use super::dispatch::Arrival;
use super::event_loop::EventLoop;
use super::exchange;
use super::frontend::{ApiCall, Refusal};
use super::http::head::Head;
use super::http::parse::HttpRequest;
use super::http::write::Response;
use super::line::{self, Probe, SHORT_LINE};
use super::peers::Protocol;
use super::record;
use super::routes::{self, Endpoint};
use crate::pages;

fn version() -> Response {
    Response::json(200, format!("{{\"version\":\"{}\"}}", env!("CARGO_PKG_VERSION")).into_bytes())
}

fn page(body: &[u8]) -> Response {
    Response { content_type: pages::CONTENT_TYPE, ..Response::json(200, body.to_vec()) }
        .with("Content-Security-Policy", pages::CONTENT_SECURITY_POLICY)
        .with("X-Content-Type-Options", "nosniff")
}

impl EventLoop {
    /// Takes up the next request of a connection. False when there is none.
    pub(crate) fn take_request(&mut self, id: u64, now: Instant) -> bool {
        let (open, room) = (self.dispatcher.check_open(), self.dispatcher.check_room());
        let config = self.config();
        let (access, metrics_need_key) = (config.access.clone(), config.metrics_need_key);
        let gate = |head: &Head| match routes::find(head.method, &head.path) {
            Err(refused) => Some(refused),
            Ok(endpoint) => {
                let asks = endpoint.needs_key() || metrics_need_key && endpoint == Endpoint::Metrics;
                let refused = if asks { access.check(head) } else { None };
                let taken = match endpoint {
                    Endpoint::Call(call) if call.generates() => &room,
                    Endpoint::Call(_) => &open,
                    _ => &Ok(()),
                };
                refused.or_else(|| taken.as_ref().err().map(Refusal::response))
            }
        };
        match self.peers.protocol(id) {
            Some(Protocol::Http { conn, .. }) => match conn.next_request(now, gate) {
                Some(request) => {
                    self.http_request(id, request, now);
                    true
                }
                None => false,
            },
            Some(Protocol::Line(conn)) => match conn.next_line(now) {
                Some(line) => {
                    self.line(id, line, now);
                    true
                }
                None => false,
            },
            None => false,
        }
    }

    fn http_request(&mut self, id: u64, request: HttpRequest, now: Instant) {
        let dead = self.dispatcher.is_engine_dead();
        let endpoint = routes::find(request.head.method, &request.head.path);
        let response = match endpoint {
            Err(response) => response,
            Ok(endpoint) if self.is_loading() && !endpoint.is_fixed() => exchange::loading().response(),
            Ok(Endpoint::Health) => self.info.health(self.dispatcher.status(), dead, now),
            Ok(Endpoint::Ready) => self.info.ready(self.dispatcher.status(), dead, self.is_draining()),
            Ok(Endpoint::Metrics) => self.info.metrics(self.dispatcher.status(), self.dispatcher.traffic()),
            Ok(Endpoint::Scheduling) => self.info.scheduling(self.dispatcher.status()),
            // Whoever asks for the list goes by it: better none than one that nobody answers for.
            Ok(Endpoint::Models) if dead => exchange::engine_dead().response(),
            Ok(Endpoint::Models) => self.info.list(),
            Ok(Endpoint::Model(name)) => self.info.model(&name),
            Ok(Endpoint::Version) => version(),
            Ok(Endpoint::Ping) => self.ping(now),
            Ok(Endpoint::Props) => self.info.props(),
            Ok(Endpoint::Load) => self.info.load(self.dispatcher.status()),
            Ok(Endpoint::Abort) => self.abort(&request.body),
            Ok(Endpoint::TryPage) => page(pages::try_page()),
            Ok(Endpoint::StatusPage) => page(pages::status_page()),
            Ok(Endpoint::StatusData) => {
                let (status, traffic) = (self.dispatcher.status(), self.dispatcher.traffic());
                self.info.status_data(status, traffic, dead, self.is_draining())
            }
            Ok(Endpoint::Options(allow)) => self.config().access.options(&request.head, allow),
            Ok(Endpoint::Call(call)) => match self.submit_http(id, call, request) {
                Ok(()) => return,
                Err(refusal) => {
                    self.dispatcher.count_refusal(&refusal);
                    refusal.response()
                }
            },
        };
        if let Some(Protocol::Http { conn, .. }) = self.peers.protocol(id) {
            conn.respond(now, &response);
        }
    }

    /// As `/health`, without a body.
    fn ping(&mut self, now: Instant) -> Response {
        let dead = self.dispatcher.is_engine_dead();
        let health = self.info.health(self.dispatcher.status(), dead, now);
        if health.status == 200 { Response::empty(200) } else { health }
    }

    /// Ends all requests with the id that the body names: `{"rid": ".."}` as SGLang has it, or `request_id`.
    fn abort(&mut self, body: &[u8]) -> Response {
        #[derive(serde::Deserialize)]
        struct Abort {
            #[serde(alias = "request_id")]
            rid: String,
        }
        if body.len() > SHORT_LINE {
            return Response::error(413, Some("request_too_large"), "the body is too large");
        }
        match serde_json::from_slice(body) {
            Ok(Abort { rid }) => {
                let aborted = self.dispatcher.abort(&rid, &mut self.peers);
                Response::json(200, format!("{{\"aborted\":{aborted}}}").into_bytes())
            }
            Err(_) => Response::error(400, None, "the body must be {\"rid\": \"<id of a request>\"}"),
        }
    }

    fn submit_http(&mut self, id: u64, call: ApiCall, request: HttpRequest) -> Result<(), Refusal> {
        let Some(peer) = self.peers.get_mut(id) else { return Ok(()) };
        let client = peer.address;
        let Protocol::Http { conn, exchange } = &mut peer.protocol else { return Ok(()) };
        let (request_id, token_routing) = (conn.request_id().to_owned(), request.head.token_routing);
        let arrival = Arrival { conn: id, client, request_id, token_routing };
        match self.dispatcher.submit(call, arrival, request.body) {
            Ok(number) => {
                *exchange = Some(number);
                Ok(())
            }
            Err(refusal) => {
                record::refused(call, conn.request_id(), client, refusal.status);
                Err(refusal)
            }
        }
    }

    /// Short lines are looked at here, so that a cancel does not queue behind large prompts. What is no JSON
    /// object goes on to the front end, which says best what is wrong.
    fn line(&mut self, id: u64, line: Vec<u8>, now: Instant) {
        let mut probe = Probe::default();
        if line.len() <= SHORT_LINE {
            match line::probe(&line) {
                Ok(found) => probe = found,
                Err(problem) => {
                    return self.answer_line(id, &Value::Null, &Refusal::new(400, None, problem), now);
                }
            }
        }
        if probe.op.as_deref() == Some("auth") {
            return self.authorize_line(id, &probe, now);
        }
        if let Some(Protocol::Line(conn)) = self.peers.protocol(id)
            && conn.is_locked()
        {
            return conn.refuse(now, &exchange::no_key());
        }
        if let Some(op) = probe.op {
            return self.line_operation(id, &op, &probe.id, now);
        }
        match self.submit_line(id, &probe.id, line) {
            Ok(()) => {}
            Err(refusal) => {
                self.dispatcher.count_refusal(&refusal);
                self.answer_line(id, &probe.id, &refusal, now);
            }
        }
    }

    fn authorize_line(&mut self, id: u64, probe: &Probe, now: Instant) {
        let access = self.config().access.clone();
        let Some(Protocol::Line(conn)) = self.peers.protocol(id) else { return };
        if !access.needs_key() || probe.key.as_ref().is_some_and(|key| access.accepts(key)) {
            conn.unlock(now, &probe.id);
        } else {
            conn.refuse(now, &exchange::no_key());
        }
    }

    fn line_operation(&mut self, id: u64, op: &str, name: &Value, now: Instant) {
        let Some(Protocol::Line(conn)) = self.peers.protocol(id) else { return };
        match op {
            "ping" => conn.pong(now, name),
            "cancel" => {
                // One that has just ended is no longer there: nothing to do and nothing to say.
                if let Some(exchange) = conn.find(name) {
                    self.dispatcher.cancel_on_request(exchange, &mut self.peers);
                }
            }
            _ => {
                let refusal = Refusal::new(400, None, "op must be \"auth\", \"cancel\", \"ping\" or absent");
                self.answer_line(id, name, &refusal, now);
            }
        }
    }

    fn submit_line(&mut self, id: u64, name: &Value, line: Vec<u8>) -> Result<(), Refusal> {
        let most = self.config().max_line_requests;
        let Some(peer) = self.peers.get_mut(id) else { return Ok(()) };
        let client = peer.address;
        let Protocol::Line(conn) = &mut peer.protocol else { return Ok(()) };
        if conn.running().len() >= most {
            return Err(exchange::queue_full());
        }
        if conn.find(name).is_some() {
            return Err(exchange::id_in_use());
        }
        let request_id = format!("line-{id}-{}", conn.lines());
        let arrival = Arrival { conn: id, client, request_id: request_id.clone(), token_routing: None };
        let taken = self.dispatcher.submit(ApiCall::Line, arrival, line);
        let exchange = taken.inspect_err(|refusal| {
            record::refused(ApiCall::Line, &request_id, client, refusal.status);
        })?;
        conn.begin(exchange, name.clone());
        Ok(())
    }

    /// Answers a line that is not taken up. An error with the id of a running request would end that one, so then
    /// it carries none.
    fn answer_line(&mut self, id: u64, name: &Value, refusal: &Refusal, now: Instant) {
        if let Some(Protocol::Line(conn)) = self.peers.protocol(id) {
            let name = if conn.find(name).is_some() { &Value::Null } else { name };
            conn.answer(now, name, refusal);
        }
    }
}
