//! A request as a client library sends it, and the pair's tokenizer.
#![allow(unreachable_pub, reason = "every bench compiles this module for itself")]

use std::path::Path;
use std::sync::Arc;

use tokenrouter_server::api::ApiLimits;
use tokenrouter_server::net::HttpLimits;
use tokenrouter_server::net::http::parse::{HttpRequest, Progress, RequestParser};
use tokenrouter_server::text::TextModel;

/// The body of a chat.
pub const BODY: &str = r#"{"model":"demo","stream":true,"temperature":0.7,"top_p":0.9,"max_tokens":256,"messages":[{"role":"system","content":"You are a helpful assistant."},{"role":"user","content":"In January Ben has 14 plums. In February Ben finds 49 plums. How many plums does Ben have?"}]}"#;

/// One server-sent event of an answer.
pub const EVENT: &[u8] = b"data: {\"id\":\"chatcmpl-0000000000000000\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"demo\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" plums\"},\"finish_reason\":null}]}\n\n";

/// The whole request on the wire.
pub fn wire() -> Vec<u8> {
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nAccept-Encoding: gzip, deflate\r\n\
         Connection: keep-alive\r\nAccept: application/json\r\nContent-Type: application/json\r\n\
         User-Agent: OpenAI/Python 2.8.1\r\nX-Stainless-Lang: python\r\nX-Stainless-Retry-Count: 0\r\n\
         Authorization: Bearer none\r\nContent-Length: {}\r\n\r\n",
        BODY.len()
    );
    [head.as_bytes(), BODY.as_bytes()].concat()
}

/// Reads the request off the wire.
pub fn parse(parser: &mut RequestParser, wire: &[u8]) -> HttpRequest {
    parser.push(wire);
    loop {
        match parser.poll() {
            Ok(Progress::Request(request)) => return request,
            Ok(Progress::Head) => {}
            other => panic!("a whole request gives {other:?}"),
        }
    }
}

/// A parser at the start of a connection.
pub fn parser() -> RequestParser {
    RequestParser::new(HttpLimits::default())
}

/// The tokenizer of the demo pair, and what a server of it accepts.
pub fn text() -> (Arc<TextModel>, ApiLimits) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|dir| dir.join("models/demo/slm"));
    let dir = dir.into_iter().find(|dir| dir.is_dir()).expect("the demo pair");
    let text = Arc::new(TextModel::load(&dir).expect("a tokenizer"));
    let limits = ApiLimits::new(&text, 512, vec!["demo".into()]);
    (text, limits)
}

/// Ids of the answer to the chat, over and over.
pub fn answer(text: &TextModel, tokens: usize) -> Vec<u32> {
    let words = "In January Ben has 14. In February Ben finds 49. 14+49=63. The answer is 63.\n";
    let ids = text.encode(words, false).expect("plain text");
    ids.into_iter().cycle().take(tokens).collect()
}
