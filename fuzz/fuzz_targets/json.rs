//! Bodies of requests through the front end with the demo pair's tokenizer: anything is answered or refused, never
//! with a panic; what is taken up has sound engine requests, and its answer is JSON whatever the tokens are.
#![no_main]

use std::path::Path;
use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use tokenrouter_engine::TokenLogprobs;
use tokenrouter_scheduler::{FinishReason, Usage};
use tokenrouter_server::api::{
    AnswerContext, ApiLimits, ChatSettings, ReasoningField, ServedModel, ServedRoute, ToolFormat,
};
use tokenrouter_server::frontend::ApiFrontend;
use tokenrouter_server::net::frontend::{ApiCall, CallContext, Frontend, Prepared, Refusal};
use tokenrouter_server::text::TextModel;

const CONTEXT: usize = 256;
const CALLS: [ApiCall; 6] = [
    ApiCall::Completion,
    ApiCall::Chat,
    ApiCall::Line,
    ApiCall::Tokenize,
    ApiCall::Detokenize,
    ApiCall::Render,
];

/// One that takes thoughts and tool calls out of answers, and one that leaves them.
struct Setup {
    front_ends: [ApiFrontend; 2],
    text: Arc<TextModel>,
}

static SETUP: LazyLock<Setup> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/demo/slm");
    let text = Arc::new(TextModel::load(&folder).expect("the demo pair's tokenizer"));
    let model = |index: u8| ServedModel { index, name: format!("m{index}"), role: "entry" };
    let front_end = |chat: ChatSettings| {
        let route = ServedRoute {
            name: "pair".into(),
            algorithm: "r2r".into(),
            entry: 0,
            models: vec![model(0), model(1)],
        };
        let limits = ApiLimits { chat, ..ApiLimits::new(&text, CONTEXT, vec!["pair".into()]) };
        let context = AnswerContext {
            eos_ids: text.eos_ids().to_vec(),
            text: text.clone(),
            routes: vec![route],
            models: vec!["m0".into(), "m1".into()],
            prices: vec![Some(1.0)],
            system_fingerprint: "fp".into(),
        };
        ApiFrontend::new(limits, Arc::new(context))
    };
    let parsing = ChatSettings {
        reasoning: true,
        reasoning_field: ReasoningField::Both,
        tools: Some(ToolFormat::Hermes),
        request_template: false,
    };
    Setup { front_ends: [front_end(ChatSettings::default()), front_end(parsing)], text }
});

fuzz_target!(|data: &[u8]| {
    let Some((seed, body)) = data.split_first_chunk::<2>() else { return };
    let call = CALLS[usize::from(seed[0]) % CALLS.len()];
    let front_end = &SETUP.front_ends[usize::from(seed[1] >> 1 & 1)];
    let context = CallContext {
        unique: "1".into(),
        request_id: "r".into(),
        token_routing: (seed[1] & 1 == 1).then(|| "tokens".into()),
        client: ([127, 0, 0, 1], 1).into(),
    };
    if call.generates() {
        match front_end.prepare(call, body, &context) {
            Ok(prepared) => answer(prepared, call, body),
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

/// Writes an answer that a model could have written, the body of the request itself, and ends every choice.
fn answer(prepared: Prepared, call: ApiCall, body: &[u8]) {
    let Prepared { choices, stream, answer: mut writer } = prepared;
    assert!(!choices.is_empty());
    let tokens = SETUP.text.encode_prompt(&String::from_utf8_lossy(body), false).unwrap_or_default();
    let mut out = Vec::new();
    for (index, request) in choices.iter().enumerate() {
        let whole = request.prompt.len() + request.max_new_tokens as usize;
        assert!(!request.prompt.is_empty() && whole <= CONTEXT, "{whole} tokens");
        assert!(request.prompt.iter().all(|id| (*id as usize) < SETUP.text.real_vocab()));
        let scores = |token: u32, most: u8| TokenLogprobs {
            logprob: -1.5,
            top: (0..u32::from(most)).map(|at| ((token + at) % 50, -1.0 - at as f32)).collect(),
        };
        if request.prompt_logprobs {
            let all = request.prompt[1..].iter().map(|id| scores(*id, request.logprobs.unwrap_or(0)));
            writer.on_prompt(index, 1, all.collect(), &mut out);
        }
        let own = tokens.iter().copied().skip(index).take(request.max_new_tokens as usize);
        for (at, token) in own.enumerate() {
            let logprobs = request.logprobs.map(|most| Box::new(scores(token, most)));
            if writer.on_token(index, token, (at % 2) as u8, logprobs, &mut out).is_some() {
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
