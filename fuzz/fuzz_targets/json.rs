//! Bodies of requests through the front end with the demo pair's tokenizer: anything is answered or refused, never
//! with a panic; what is taken up has sound engine requests, and its answer is JSON whatever the tokens are.
#![no_main]

use std::path::Path;
use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use tokenrouter_scheduler::{FinishReason, Usage};
use tokenrouter_server::api::{AnswerContext, ApiLimits, ServedModel, ServedRoute};
use tokenrouter_server::frontend::ApiFrontend;
use tokenrouter_server::net::frontend::{ApiCall, CallContext, Frontend, Prepared, Refusal};
use tokenrouter_server::text::TextModel;

const CONTEXT: usize = 64;
const CALLS: [ApiCall; 6] = [
    ApiCall::Completion,
    ApiCall::Chat,
    ApiCall::Line,
    ApiCall::Tokenize,
    ApiCall::Detokenize,
    ApiCall::Render,
];

static FRONT_END: LazyLock<(ApiFrontend, usize)> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/demo/slm");
    let text = Arc::new(TextModel::load(&folder).expect("the demo pair's tokenizer"));
    let vocab = text.real_vocab();
    let model = |index: u8| ServedModel { index, name: format!("m{index}"), role: "entry" };
    let route = ServedRoute {
        name: "pair".into(),
        algorithm: "r2r".into(),
        entry: 0,
        models: vec![model(0), model(1)],
    };
    let limits = ApiLimits::new(&text, CONTEXT, vec!["pair".into()]);
    let context = AnswerContext {
        eos_ids: text.eos_ids().to_vec(),
        text,
        routes: vec![route],
        models: vec!["m0".into(), "m1".into()],
        prices: Vec::new(),
        system_fingerprint: "fp".into(),
    };
    (ApiFrontend::new(limits, Arc::new(context)), vocab)
});

fuzz_target!(|data: &[u8]| {
    let Some((seed, body)) = data.split_first_chunk::<2>() else { return };
    let call = CALLS[usize::from(seed[0]) % CALLS.len()];
    let (front_end, vocab) = &*FRONT_END;
    let context = CallContext {
        unique: "1".into(),
        request_id: "r".into(),
        token_routing: (seed[1] & 1 == 1).then(|| "tokens".into()),
        client: ([127, 0, 0, 1], 1).into(),
    };
    if call.generates() {
        match front_end.prepare(call, body, &context) {
            Ok(prepared) => answer(prepared, call, *vocab, seed[1]),
            Err(refusal) => check(&refusal, body),
        }
    } else {
        match front_end.answer(call, body) {
            Ok(body) => drop(serde_json::from_slice::<Value>(&body).expect("a JSON body")),
            Err(refusal) => check(&refusal, body),
        }
    }
});

fn check(refusal: &Refusal, body: &[u8]) {
    assert!((400..500).contains(&refusal.status), "a fault of the request: {}", refusal.status);
    let error: Value = serde_json::from_slice(&refusal.body).expect("a JSON error");
    assert!(error["error"]["message"].is_string(), "{error}");
    assert!(refusal.body.len() < 4096 + body.len(), "what is refused is not repeated");
}

/// Writes some tokens and ends every choice.
fn answer(prepared: Prepared, call: ApiCall, vocab: usize, seed: u8) {
    let Prepared { choices, stream, answer: mut writer } = prepared;
    assert!(!choices.is_empty());
    let mut out = Vec::new();
    for (index, request) in choices.iter().enumerate() {
        let whole = request.prompt.len() + request.max_new_tokens as usize;
        assert!(!request.prompt.is_empty() && whole <= CONTEXT, "{whole} tokens");
        assert!(request.prompt.iter().all(|id| (*id as usize) < vocab));
        let count = request.max_new_tokens.min(6);
        for at in 0..count {
            let token = (u32::from(seed) * 31 + at * 977 + index as u32) % vocab as u32;
            if writer.on_token(index, token, (at % 2) as u8, None, &mut out).is_some() {
                break;
            }
        }
        writer.on_finished(index, &FinishReason::Length, &Usage::default(), &mut out);
    }
    assert!(writer.is_done());
    if !stream {
        out = writer.final_body();
    }
    let text = std::str::from_utf8(&out).expect("UTF-8");
    let values: Vec<&str> = match (call, stream) {
        (ApiCall::Line, _) => text.lines().collect(),
        (_, true) => {
            let events = text.split("\n\n").filter(|event| !event.is_empty());
            events.map(|event| event.strip_prefix("data: ").expect("an event")).collect()
        }
        (_, false) => vec![text],
    };
    for value in values.into_iter().filter(|value| *value != "[DONE]") {
        assert!(!value.contains('\n'));
        drop(serde_json::from_str::<Value>(value).expect("JSON"));
    }
}
