//! The way of a request in and of a token out: HTTP, JSON, detokenizer, event stream.

use std::hint::black_box;

use tokenrouter_server::api::parse_chat;
use tokenrouter_server::net::http::write::stream_events;
use tokenrouter_server::text::Detokenizer;

use crate::requests::{BODY, EVENT, answer, parse, parser, text, wire};
use crate::{tokenrouter_counted, tokenrouter_scenario_ends};

const TIMES: u64 = 50;
const TOKENS: usize = 512;

/// Counts every scenario.
pub(crate) fn run() {
    let (text, limits) = text();
    let (wire, mut http) = (wire(), parser());
    count("HTTP, parse", || {
        black_box(parse(&mut http, black_box(&wire)));
    });
    count("JSON, parse a chat", || {
        black_box(parse_chat(black_box(BODY.as_bytes()), &limits, &text)).ok();
    });
    let mut out = Vec::with_capacity(1 << 10);
    count("HTTP, write an event", || {
        out.clear();
        stream_events(black_box(&mut out), EVENT, true);
    });
    let ids = answer(&text, TOKENS);
    let mut out = String::with_capacity(8 * TOKENS);
    let mut detokenizer = Detokenizer::new(text, true);
    tokenrouter_counted(&mut || ids.iter().for_each(|id| detokenizer.push(*id, &mut out)));
    tokenrouter_scenario_ends("detokenizer", "token", TOKENS as u64);
    assert!(black_box(out).contains("The answer is 63."), "the text of the answer");
}

fn count(name: &str, mut work: impl FnMut()) {
    work();
    tokenrouter_counted(&mut || (0..TIMES).for_each(|_| work()));
    tokenrouter_scenario_ends(name, "time", TIMES);
}
