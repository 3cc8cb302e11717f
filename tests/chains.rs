//! Stream and whole answer are equal byte for byte at every `max_tokens`, and both are what the script says: with
//! characters split over tokens, stop strings across tokens and models, alone and with handoffs in between (bug log
//! L01, L02, L03).

mod support;

use serde_json::{Value, json};
use support::http::{Response, post};
use support::process::ServerProcess;
use support::scripted::pair_config;
use support::story::{Story, Writer};
use support::tokenizers::START;

/// The routes by the name that a client asks for.
const ROUTES: [(&str, Writer); 3] =
    [("demo", Writer::Stitch), ("small", Writer::Alone(0)), ("large", Writer::Alone(1))];

fn serve(story: &Story) -> ServerProcess {
    let [small, large] = story.write();
    ServerProcess::start(&pair_config(&small, &large, "name = \"r-stitch\"\nthreshold = 0.03", ""))
}

/// What an answer must be.
#[derive(Debug, PartialEq)]
struct Expected {
    text: String,
    finish: &'static str,
    stop_reason: Value,
    tokens: usize,
}

/// By definition: tokens one after the other, and a search in the whole text after each.
fn expected(story: &Story, ids: &[u32], most: usize, stops: &[String], include: bool) -> Expected {
    let end = ids.len() - 1;
    let search = |text: String, tokens: usize| {
        let (at, stop) = (0..=text.len()).filter(|at| text.is_char_boundary(*at)).find_map(|at| {
            let here = stops.iter().filter(|stop| text[..at].ends_with(stop.as_str()));
            here.max_by_key(|stop| stop.len()).map(|stop| (at, stop))
        })?;
        let cut = if include { at } else { at - stop.len() };
        Some(Expected { text: text[..cut].to_owned(), finish: "stop", stop_reason: json!(stop), tokens })
    };
    if let Some(found) = (1..=most.min(end)).find_map(|count| search(story.certain(&ids[..count]), count)) {
        return found;
    }
    let (tokens, finish) = if most > end { (end + 1, "stop") } else { (most, "length") };
    let text = story.tokenizer.text(&ids[..tokens.min(end)]);
    // Half a character is a replacement mark once nothing follows, and a stop string may hold that mark.
    search(text.clone(), tokens).unwrap_or(Expected { text, finish, stop_reason: Value::Null, tokens })
}

fn whole(response: &Response) -> (Expected, Value) {
    assert_eq!(response.status, 200, "{}", response.body);
    let answer = response.json();
    let choice = &answer["choices"][0];
    (ending(choice, piece(choice).to_owned(), &answer["usage"]), choice.clone())
}

/// The text of a choice or of a piece of one, of either endpoint.
fn piece(choice: &Value) -> &str {
    let texts = ["/text", "/message/content", "/delta/content"];
    texts.iter().find_map(|path| choice.pointer(path).and_then(Value::as_str)).unwrap_or_default()
}

fn ending(choice: &Value, text: String, usage: &Value) -> Expected {
    let finish = match choice["finish_reason"].as_str() {
        Some("stop") => "stop",
        Some("length") => "length",
        _ => panic!("{choice}"),
    };
    let tokens = usage["completion_tokens"].as_u64().expect("a count") as usize;
    Expected { text, finish, stop_reason: choice["stop_reason"].clone(), tokens }
}

/// The log-probabilities of all chunks joined: of a completion four lists, of a chat one.
fn scores(events: &[Value]) -> Value {
    let mut joined = Value::Null;
    for said in events.iter().map(|event| &event["choices"][0]["logprobs"]) {
        for (name, list) in said.as_object().into_iter().flatten() {
            let list = list.as_array().expect("a list").clone();
            match joined.get_mut(name).and_then(Value::as_array_mut) {
                Some(joined) => joined.extend(list),
                None => joined[name] = json!(list),
            }
        }
    }
    joined
}

/// A list as runs of equals: each value and how often it comes.
fn runs(list: &[Value]) -> Value {
    list.chunk_by(|a, b| a == b).map(|run| json!([run[0], run.len()])).collect()
}

/// The joined stream; on the way, that no event is empty and that the end is said once.
fn streamed(response: &Response) -> (Expected, Value) {
    assert_eq!(response.status, 200, "{}", response.body);
    let events = response.events();
    let (usage, chunks) = events.split_last().expect("events");
    assert_eq!(usage["choices"], json!([]), "the usage comes last: {}", response.body);
    let (last, before) = chunks.split_last().expect("an end");
    let (mut text, mut ids, mut writers) = (String::new(), Vec::new(), Vec::new());
    let mut list = |choice: &Value| {
        ids.extend(choice["token_ids"].as_array().cloned().unwrap_or_default());
        let part = choice["token_routing"]["model_index"].as_array().cloned().unwrap_or_default();
        writers.extend(part);
    };
    for chunk in before {
        let choice = &chunk["choices"][0];
        let piece = piece(choice);
        // The role is said once, also where an answer has no text.
        assert!(
            (!piece.is_empty() || choice["delta"]["role"].is_string()) && choice["finish_reason"].is_null(),
            "{}",
            response.body
        );
        text.push_str(piece);
        list(choice);
    }
    let choice = &last["choices"][0];
    text.push_str(piece(choice));
    list(choice);
    let mut choice = choice.clone();
    choice["logprobs"] = scores(&events);
    choice["token_ids"] = json!(ids);
    // The runs of the whole answer come with its end.
    assert_eq!(choice["token_routing"]["spans"], runs(&writers), "{choice}");
    choice["token_routing"]["model_index"] = json!(writers);
    (ending(&choice, text, &usage["usage"]), choice)
}

fn body(story: &Story, route: &str, most: usize, stops: &[String], include: bool) -> Value {
    let mut body = json!({
        "model": route, "prompt": [story.tokenizer.control(START)], "max_tokens": most, "temperature": 0,
        "return_token_ids": true, "token_routing": {"return": "tokens"}, "include_stop_str_in_output": include,
    });
    if !stops.is_empty() {
        body["stop"] = json!(stops);
    }
    body
}

/// Asks twice, in one piece and streamed, and compares both with the script.
fn check(server: &ServerProcess, story: &Story, route: (&str, Writer), most: usize, stops: &[String]) {
    let (ids, writers) = story.answer(route.1);
    let include = most % 5 == 4;
    let wanted = expected(story, &ids, most, stops, include);
    let mut body = body(story, route.0, most, stops, include);
    // Every other time as a chat, whose template ends in the same token.
    let path = if most.is_multiple_of(2) { "/v1/chat/completions" } else { "/v1/completions" };
    if most.is_multiple_of(2) {
        body.as_object_mut().expect("a body").remove("prompt");
        body["messages"] = json!([{"role": "user", "content": "abc"}]);
    }
    // Every third time with log-probabilities, of which there is one per token.
    let scored = most.is_multiple_of(3);
    if scored {
        body["logprobs"] = if most.is_multiple_of(2) { json!(true) } else { json!(2) };
        if most.is_multiple_of(2) {
            body["top_logprobs"] = json!(2);
        }
    }
    let (got, choice) = whole(&post(server.http, path, &body));
    if scored {
        let lists =
            ["/logprobs/content", "/logprobs/tokens", "/logprobs/token_logprobs", "/logprobs/text_offset"];
        let counts = lists.iter().filter_map(|list| choice.pointer(list)?.as_array().map(Vec::len));
        assert!(counts.clone().count() > 0 && counts.into_iter().all(|n| n == wanted.tokens), "{choice}");
    }
    assert_eq!(got, wanted, "{body}");
    assert_eq!(choice["token_ids"], json!(ids[..wanted.tokens]), "{body}");
    assert_eq!(choice["token_routing"]["model_index"], json!(writers[..wanted.tokens]), "{body}");
    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true});
    let (got, piecewise) = streamed(&post(server.http, path, &body));
    assert_eq!(got, wanted, "streamed: {body}");
    for field in ["token_ids", "token_routing", "logprobs"] {
        assert_eq!(piecewise[field], choice[field], "{field} streamed: {body}");
    }
}

/// Every text between two characters of the answer, up to nine characters long, but not what only its end decides.
fn substrings(text: &str) -> Vec<String> {
    let at: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    let pairs = (0..at.len()).flat_map(|from| (from + 1..at.len().min(from + 10)).map(move |to| (from, to)));
    pairs.map(|(from, to)| text[at[from]..at[to]].to_owned()).collect()
}

fn every_length(story: &Story) {
    let server = serve(story);
    for route in ROUTES {
        for most in 1..=story.steps.len() + 1 {
            check(&server, story, route, most, &[]);
            // A stop that is never written is held back again and again.
            check(&server, story, route, most, &["iJJ".into(), "€€".into(), "😀😁X".into()]);
        }
    }
    let (ids, writers) = story.answer(Writer::Stitch);
    let handoffs = writers.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(handoffs > 8 && ids.len() > 16, "{handoffs} handoffs");
    server.stop();
}

fn every_stop(story: &Story) {
    let server = serve(story);
    for route in ROUTES {
        let (ids, _) = story.answer(route.1);
        let stops = substrings(&story.certain(&ids[..ids.len() - 1]));
        assert!(stops.len() > 100);
        for (at, stop) in stops.iter().enumerate() {
            check(&server, story, route, ids.len() + 1, std::slice::from_ref(stop));
            if at.is_multiple_of(8) {
                let other = &stops[(at * 7 + 3) % stops.len()];
                let third = &stops[(at * 5 + 11) % stops.len()];
                check(
                    &server,
                    story,
                    route,
                    at % ids.len() + 1,
                    &[stop.clone(), other.clone(), third.clone()],
                );
            }
        }
    }
    server.stop();
}

#[test]
fn streams_equal_whole_answers_at_every_length_byte_level() {
    every_length(&Story::bytes());
}

#[test]
fn streams_equal_whole_answers_at_every_length_metaspace() {
    every_length(&Story::metaspace());
}

#[test]
fn a_stop_string_is_found_wherever_it_lies_byte_level() {
    every_stop(&Story::bytes());
}

#[test]
fn a_stop_string_is_found_wherever_it_lies_metaspace() {
    every_stop(&Story::metaspace());
}
