use super::*;

/// Content and calls of an answer that comes in pieces of so many bytes.
fn split(format: ToolFormat, text: &str, size: usize) -> (String, Vec<(String, String)>) {
    let (mut content, mut whole) = (String::new(), Vec::new());
    let mut split = ToolSplit::new(format);
    let mut rest = text;
    let mut take = |deltas: Vec<CallDelta>| {
        for delta in &deltas {
            let known = whole.iter().any(|call: &CallDelta| call.index == delta.index);
            assert_eq!(known, delta.name.is_none(), "the name comes once, and first");
        }
        CallDelta::merge(&mut whole, deltas);
    };
    while !rest.is_empty() {
        let mut at = size.min(rest.len());
        while !rest.is_char_boundary(at) {
            at += 1;
        }
        let mut deltas = Vec::new();
        split.push(&rest[..at], &mut content, &mut deltas);
        take(deltas);
        rest = &rest[at..];
    }
    let mut deltas = Vec::new();
    split.finish(&mut content, &mut deltas);
    take(deltas);
    assert_eq!(split.calls(), whole.len());
    let calls = whole.into_iter().map(|call| (call.name.unwrap_or_default(), call.arguments)).collect();
    (content, calls)
}

/// One line of the tables: the text, its content, and the calls in it.
type Line<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)]);

fn check(format: ToolFormat, table: &[Line<'_>]) {
    for &(text, content, calls) in table {
        let calls: Vec<_> = calls.iter().map(|&(name, text)| (name.to_owned(), text.to_owned())).collect();
        for size in 1..=text.len().max(1) {
            assert_eq!(split(format, text, size), (content.to_owned(), calls.clone()), "{text:?} {size}");
        }
    }
}

#[test]
fn hermes_calls_however_the_text_is_cut() {
    check(
        ToolFormat::Hermes,
        &[
            ("no call \n", "no call \n", &[]),
            (
                "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, {\"b\": \"}\"}]}}\n</tool_call>",
                "",
                &[("f", "{\"a\": [1, {\"b\": \"}\"}]}")],
            ),
            (
                "Let me see.\n\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call>\n{\"name\": \"g\", \
                 \"arguments\": {\"é\": \"</tool_call>\\\"\"}}</tool_call>\n done \n",
                "Let me see.done \n",
                &[("f", "{}"), ("g", "{\"é\": \"</tool_call>\\\"\"}")],
            ),
            // Other orders and shapes are understood when complete.
            ("<tool_call>{\"arguments\": {\"a\":1}, \"name\": \"f\"}</tool_call>", "", &[("f", "{\"a\":1}")]),
            (
                "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
                "",
                &[("f", "{\"a\": 1}")],
            ),
            ("<tool_call>{\"name\": \"f\"}</tool_call>", "", &[("f", "{}")]),
            (
                "<tool_call>{\"type\": \"function\", \"name\": \"\\u0066\", \"parameters\": {}}",
                "",
                &[("f", "{}")],
            ),
            // Cut short: the arguments so far, or no call yet.
            ("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"x", "", &[("f", "{\"a\": \"x")]),
            ("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_", "", &[("f", "{\"a\": 1}")]),
            ("a <tool_call>{\"name\": \"f", "a <tool_call>{\"name\": \"f", &[]),
            ("a <tool_", "a <tool_", &[]),
            // Not a call: everything stays.
            ("a\n<tool_call>nothing</tool_call> b", "a\n<tool_call>nothing</tool_call> b", &[]),
            ("<tool_call>{\"name\": 5}</tool_call>", "<tool_call>{\"name\": 5}</tool_call>", &[]),
            (
                "<tool_call>{\"name\": \"f\", \"arguments\": 5}</tool_call>",
                "<tool_call>{\"name\": \"f\", \"arguments\": 5}</tool_call>",
                &[],
            ),
            ("<tool_call>{\"name\": \"f\"}}</tool_call>", "<tool_call>{\"name\": \"f\"}}</tool_call>", &[]),
            ("<tool_call>{\"nom\": \"f\"", "<tool_call>{\"nom\": \"f\"", &[]),
            (
                "<tool_call>x</tool_call>\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
                "<tool_call>x</tool_call>",
                &[("f", "{}")],
            ),
            // Once begun, the arguments are what the model wrote.
            (
                "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1</tool_call>!",
                "!",
                &[("f", "{\"a\": 1")],
            ),
            ("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": }}</tool_call>", "", &[("f", "{\"a\": }")]),
            (
                "<tool_call>{\"name\": \"f\", \"arguments\": {}, \"id\": \"}\"}} </tool_call>",
                "",
                &[("f", "{}")],
            ),
        ],
    );
}

#[test]
fn llama_calls_however_the_text_is_cut() {
    check(
        ToolFormat::Llama3Json,
        &[
            ("{\"name\": \"f\", \"parameters\": {\"a\": \"}{\"}}", "", &[("f", "{\"a\": \"}{\"}")]),
            ("\n<|python_tag|>{\"name\": \"f\", \"parameters\": {}}", "", &[("f", "{}")]),
            (
                "{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"arguments\": {\"b\":2}}",
                "",
                &[("f", "{}"), ("g", "{\"b\":2}")],
            ),
            ("{\"parameters\": {\"a\":1}, \"name\": \"f\"} and more", "and more", &[("f", "{\"a\":1}")]),
            ("{\"name\": \"f\", \"parameters\": {\"a\": 1", "", &[("f", "{\"a\": 1")]),
            ("{\"answer\": {\"name\": \"f\"}} \n", "{\"answer\": {\"name\": \"f\"}} \n", &[]),
            (" {\"name\": \"Ann\", \"age\": 5}", " {\"name\": \"Ann\", \"age\": 5}", &[]),
            ("{\"name\": \"Ann\"", "{\"name\": \"Ann\"", &[]),
            ("Call {\"name\": \"f\", \"parameters\": {}}", "Call {\"name\": \"f\", \"parameters\": {}}", &[]),
            ("<|python", "<|python", &[]),
            (" \n", " \n", &[]),
        ],
    );
}
