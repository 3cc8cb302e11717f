//! The way of a request in and of a token out: HTTP head and body, JSON of a chat, detokenizer, event stream.
//!
//! `copy` is the floor of the first and the third: the same bytes, copied. `cargo bench --bench requests`.

#[path = "support/requests.rs"]
mod requests;
#[path = "support/setup.rs"]
mod setup;

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tokenrouter_server::api::parse_chat;
use tokenrouter_server::net::http::write::stream_events;
use tokenrouter_server::text::Detokenizer;

use crate::requests::{BODY, EVENT, answer, parse, parser, text, wire};

const TOKENS: usize = 512;

fn request(c: &mut Criterion) {
    let (text, limits) = text();
    let (wire, mut http) = (wire(), parser());
    let mut group = c.benchmark_group("request");
    group.throughput(Throughput::Bytes(wire.len() as u64));
    group.bench_function("copy", |b| b.iter(|| black_box(&wire).to_vec()));
    group.bench_function("http_parse", |b| b.iter(|| parse(&mut http, black_box(&wire))));
    group.bench_function("json_parse", |b| b.iter(|| parse_chat(black_box(BODY.as_bytes()), &limits, &text)));
    group.finish();
}

fn token(c: &mut Criterion) {
    let (text, _) = text();
    let mut group = c.benchmark_group("token");
    group.throughput(Throughput::Bytes(EVENT.len() as u64));
    let mut out = Vec::with_capacity(1 << 10);
    group.bench_function("copy", |b| b.iter(|| black_box(EVENT).to_vec()));
    group.bench_function("event", |b| {
        b.iter(|| {
            out.clear();
            stream_events(black_box(&mut out), EVENT, true);
        });
    });
    group.throughput(Throughput::Elements(TOKENS as u64));
    let ids = answer(&text, TOKENS);
    let mut out = String::with_capacity(16 * TOKENS);
    group.bench_function("detokenizer_512", |b| {
        b.iter(|| {
            let mut detokenizer = Detokenizer::new(text.clone(), true);
            out.clear();
            ids.iter().for_each(|id| detokenizer.push(*id, &mut out));
            black_box(out.len())
        });
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = setup::samples(20);
    targets = request, token
}
criterion_main!(benches);
