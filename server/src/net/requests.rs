//! What the network thread does with a request: answer it here, or hand it to the dispatcher.

use std::time::Instant;

use super::event_loop::EventLoop;
use super::exchange;
use super::frontend::Refusal;
use super::http::head::Head;
use super::http::parse::HttpRequest;
use super::http::write::Response;
use super::line::{LineName, probe};
use super::peers::Protocol;
use super::routes::{self, Endpoint};
use super::tokenize::Source;

/// Lines up to this length are looked at on the network thread, so that a cancel does not queue behind large
/// prompts; longer ones are requests, and the tokenizer threads look at them.
const SHORT_LINE: usize = 16 << 10;

impl EventLoop {
    /// Takes up the next request of a connection. False when there is none.
    pub(crate) fn take_request(&mut self, id: u64, now: Instant) -> bool {
        let open = self.dispatcher.check_open();
        let gate = |head: &Head| match routes::find(head.method, &head.path) {
            Err(refused) => Some(refused),
            Ok(Endpoint::Generate(_)) => open.as_ref().err().map(Refusal::response),
            Ok(_) => None,
        };
        match self.peers.get_mut(id).map(|peer| &mut peer.protocol) {
            Some(Protocol::Http { conn, .. }) => match conn.next_request(now, gate) {
                Some(request) => {
                    self.http_request(id, request, now);
                    true
                }
                None => false,
            },
            Some(Protocol::Line(conn)) => match conn.next_line(now) {
                Some((number, line)) => {
                    self.line(id, number, line, now);
                    true
                }
                None => false,
            },
            None => false,
        }
    }

    fn http_request(&mut self, id: u64, request: HttpRequest, now: Instant) {
        let response = match routes::find(request.head.method, &request.head.path) {
            Err(response) => response,
            Ok(Endpoint::Health) => self.info.health(self.dispatcher.status(), now),
            Ok(Endpoint::Ready) => self.info.ready(self.dispatcher.status(), self.is_draining()),
            Ok(Endpoint::Models) => self.info.list(),
            Ok(Endpoint::Model(name)) => self.info.model(&name),
            Ok(Endpoint::Options(allow)) => Response::empty(204).with("Allow", allow),
            Ok(Endpoint::Generate(call)) => match self.submit_http(id, Source::Http(call), request.body) {
                Ok(()) => return,
                Err(refusal) => refusal.response(),
            },
        };
        if let Some(Protocol::Http { conn, .. }) = self.peers.get_mut(id).map(|peer| &mut peer.protocol) {
            conn.respond(now, &response);
        }
    }

    fn submit_http(&mut self, id: u64, source: Source, body: Vec<u8>) -> Result<(), Refusal> {
        let Some(Protocol::Http { conn, exchange }) = self.peers.get_mut(id).map(|peer| &mut peer.protocol)
        else {
            return Ok(());
        };
        let request_id = conn.request_id().to_owned();
        *exchange = Some(self.dispatcher.submit(id, request_id, source, body)?);
        Ok(())
    }

    fn line(&mut self, id: u64, number: u64, line: Vec<u8>, now: Instant) {
        let mut name = LineName { line: number, id: None };
        if line.len() <= SHORT_LINE {
            match probe(&line) {
                Err(problem) => {
                    let refusal = Refusal::new(400, Some("invalid_json"), problem);
                    return self.answer_line(id, &name, &refusal, now);
                }
                Ok(probe) => {
                    if let Some(op) = probe.op {
                        name.id = probe.id;
                        return self.line_operation(id, &op, name, now);
                    }
                    name.id = Some(probe.id.unwrap_or_else(|| number.to_string()));
                }
            }
        }
        if let Err(refusal) = self.submit_line(id, &name, line) {
            self.answer_line(id, &name, &refusal, now);
        }
    }

    fn line_operation(&mut self, id: u64, op: &str, name: LineName, now: Instant) {
        let Some(Protocol::Line(conn)) = self.peers.get_mut(id).map(|peer| &mut peer.protocol) else {
            return;
        };
        match op {
            "ping" => conn.pong(now, &name),
            "cancel" => {
                // One that has just ended is no longer there: nothing to do and nothing to say.
                if let Some(exchange) = name.id.as_deref().and_then(|id| conn.find(id)) {
                    self.dispatcher.cancel_on_request(exchange, &mut self.peers);
                }
            }
            _ => {
                let refusal = Refusal::new(400, None, "op must be \"cancel\", \"ping\" or absent");
                self.answer_line(id, &name, &refusal, now);
            }
        }
    }

    fn submit_line(&mut self, id: u64, name: &LineName, line: Vec<u8>) -> Result<(), Refusal> {
        let most = self.max_line_requests();
        let Some(Protocol::Line(conn)) = self.peers.get_mut(id).map(|peer| &mut peer.protocol) else {
            return Ok(());
        };
        if conn.running().len() >= most {
            return Err(exchange::queue_full());
        }
        if name.id.as_deref().is_some_and(|id| conn.find(id).is_some()) {
            return Err(exchange::id_in_use());
        }
        let request_id = format!("line-{id}-{}", name.line);
        let exchange = self.dispatcher.submit(id, request_id, Source::Line(name.line), line)?;
        conn.begin(exchange, name.clone());
        Ok(())
    }

    fn answer_line(&mut self, id: u64, name: &LineName, refusal: &Refusal, now: Instant) {
        if let Some(Protocol::Line(conn)) = self.peers.get_mut(id).map(|peer| &mut peer.protocol) {
            conn.answer(now, name, &refusal.response());
        }
    }
}
