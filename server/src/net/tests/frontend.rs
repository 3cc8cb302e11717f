//! A front end whose requests say what shall happen.

use std::collections::VecDeque;
use std::fmt::Write as _;

use tokenrouter_engine::TokenLogprobs;
use tokenrouter_engine::handle::EngineRequest;
use tokenrouter_scheduler::{FinishReason, Usage};

use crate::net::frontend::{AnswerWriter, ApiCall, CallContext, Frontend, Prepared, Refusal};

/// Body: `{"prompt": script, "n", "max_tokens", "stream", "stop_after", "pad"}`; see the engine for the scripts.
pub(super) struct FakeFrontend;

#[derive(serde::Deserialize)]
struct Body {
    prompt: String,
    #[serde(default)]
    n: Option<usize>,
    #[serde(default)]
    max_tokens: Option<u32>,
    #[serde(default)]
    stream: bool,
    /// A stop string matches after so many tokens.
    #[serde(default)]
    stop_after: Option<u32>,
    #[serde(default)]
    id: serde_json::Value,
    /// Bytes of padding in each event.
    #[serde(default)]
    pad: usize,
}

impl Frontend for FakeFrontend {
    fn prepare(&self, call: ApiCall, body: &[u8], _: &CallContext) -> Result<Prepared, Refusal> {
        let body: Body = serde_json::from_slice(body)
            .map_err(|_| Refusal::new(400, Some("invalid_json"), "the body is not the expected JSON"))?;
        assert!(body.prompt != "panic", "asked to panic");
        if body.prompt == "nap" {
            std::thread::sleep(std::time::Duration::from_millis(300));
        }
        let n = body.n.unwrap_or(1);
        let request = |choice| EngineRequest {
            choice: choice as u32,
            ..EngineRequest::new(body.prompt.bytes().map(u32::from).collect(), body.max_tokens.unwrap_or(3))
        };
        let line = call == ApiCall::Line;
        let answer = FakeAnswer {
            stream: body.stream,
            line_id: line.then_some(body.id),
            stop_after: body.stop_after,
            pad: "x".repeat(body.pad),
            tokens: vec![VecDeque::new(); n],
            ends: vec![None; n],
        };
        let choices = (0..n).map(request).collect();
        Ok(Prepared { choices, stream: body.stream || line, answer: Box::new(answer) })
    }

    fn answer(&self, call: ApiCall, body: &[u8]) -> Result<Vec<u8>, Refusal> {
        match std::str::from_utf8(body) {
            Ok("panic") => panic!("asked to panic"),
            Ok("bad") => Err(Refusal::new(400, None, "a bad call")),
            _ => Ok(format!("{{\"call\":\"{}\",\"bytes\":{}}}", call.name(), body.len()).into_bytes()),
        }
    }
}

struct FakeAnswer {
    stream: bool,
    line_id: Option<serde_json::Value>,
    stop_after: Option<u32>,
    pad: String,
    tokens: Vec<VecDeque<u32>>,
    ends: Vec<Option<String>>,
}

impl FakeAnswer {
    fn event(&self, out: &mut Vec<u8>, text: &str) {
        if let Some(id) = &self.line_id {
            out.extend_from_slice(format!("{{\"id\":{id},\"event\":\"token\",{text}}}\n").as_bytes());
        } else if self.stream {
            let mut event = String::new();
            write!(event, "data: {{{text},\"pad\":\"{}\"}}\n\n", self.pad).unwrap();
            out.extend_from_slice(event.as_bytes());
        }
    }
}

impl AnswerWriter for FakeAnswer {
    fn on_token(
        &mut self,
        choice: usize,
        token: u32,
        model: u8,
        _: Option<Box<TokenLogprobs>>,
        out: &mut Vec<u8>,
    ) -> Option<u32> {
        self.tokens[choice].push_back(token);
        self.event(out, &format!("\"choice\":{choice},\"token\":{token},\"model\":{model}"));
        self.stop_after.filter(|after| *after == self.tokens[choice].len() as u32)
    }

    fn on_finished(&mut self, choice: usize, reason: &FinishReason, _: &Usage, out: &mut Vec<u8>) {
        let reason = format!("{reason:?}").to_lowercase();
        self.event(out, &format!("\"choice\":{choice},\"finish\":\"{reason}\""));
        self.ends[choice] = Some(reason);
        match &self.line_id {
            _ if !self.is_done() => {}
            Some(id) => out.extend_from_slice(format!("{{\"id\":{id},\"event\":\"done\"}}\n").as_bytes()),
            None if self.stream => out.extend_from_slice(b"data: [DONE]\n\n"),
            None => {}
        }
    }

    fn is_done(&self) -> bool {
        self.ends.iter().all(Option::is_some)
    }

    fn final_body(&mut self) -> Vec<u8> {
        serde_json::json!({"tokens": self.tokens, "ends": self.ends}).to_string().into_bytes()
    }

    fn headers(&self) -> Vec<(&'static str, String)> {
        vec![("x-token-routing", "fake".into())]
    }
}
