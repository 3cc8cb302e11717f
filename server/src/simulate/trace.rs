//! Recorded traces: one JSON object per line.

use serde::Deserialize;
use tokenrouter_scheduler::sim::serving::TraceRequest;

use super::build::nanos;

/// `{"at_s": 0.5, "prompt": 120, "answer": 40}` and what may stand beside.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    at_s: f64,
    prompt: u32,
    answer: u32,
    session: Option<u64>,
    #[serde(default)]
    shared: u32,
    #[serde(default)]
    destinations: Vec<u8>,
}

/// The most tokens of one request.
const MOST_TOKENS: u32 = 1 << 24;

/// Reads a trace for `models` models. Empty lines are passed over.
///
/// # Errors
/// The number of the line, and what is wrong with it.
pub(super) fn parse(text: &str, models: usize) -> Result<Vec<TraceRequest>, String> {
    let mut requests = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        requests.push(request(line, models).map_err(|e| format!("line {}: {e}", number + 1))?);
    }
    if requests.is_empty() {
        return Err("the trace holds no request".into());
    }
    Ok(requests)
}

fn request(line: &str, models: usize) -> Result<TraceRequest, String> {
    // Its own place is "line 1" here, which would contradict the number in front.
    let strip = |e: serde_json::Error| {
        let text = e.to_string();
        text.split(" at line ").next().unwrap_or_default().to_owned()
    };
    let Line { at_s, prompt, answer, session, shared, destinations } =
        serde_json::from_str(line).map_err(strip)?;
    let at = nanos("at_s", at_s)?;
    for (key, value) in [("prompt", prompt), ("answer", answer)] {
        if value == 0 || value > MOST_TOKENS {
            return Err(format!("{key} is {value}; it must be 1..={MOST_TOKENS}"));
        }
    }
    if shared > prompt {
        return Err(format!("shared is {shared}, more than the prompt's {prompt} tokens"));
    }
    if let Some(to) = destinations.iter().find(|&&to| usize::from(to) >= models) {
        return Err(format!("destinations names model {to}; there are {models}"));
    }
    Ok(TraceRequest { at, prompt, answer, session, shared, destinations })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_refused_by_number() {
        let text = "{\"at_s\":0.5,\"prompt\":9,\"answer\":4}\n\n\
                    {\"at_s\":1,\"prompt\":9,\"answer\":4,\"session\":3,\"shared\":2,\"destinations\":[0,1]}\n";
        let trace = parse(text, 2).expect("good");
        assert_eq!((trace.len(), trace[0].at, trace[1].session), (2, 500_000_000, Some(3)));
        let bad = [
            ("{", "EOF"),
            ("{\"at_s\":0,\"prompt\":9}", "missing field `answer`"),
            ("{\"at_s\":0,\"prompt\":9,\"answer\":1,\"sesion\":1}", "unknown field `sesion`"),
            ("{\"at_s\":0,\"prompt\":0,\"answer\":1}", "prompt is 0"),
            ("{\"at_s\":-1,\"prompt\":9,\"answer\":1}", "at_s is -1"),
            ("{\"at_s\":0,\"prompt\":9,\"answer\":1,\"shared\":10}", "shared is 10"),
            ("{\"at_s\":0,\"prompt\":9,\"answer\":1,\"destinations\":[2]}", "model 2; there are 2"),
            ("{\"at_s\":0,\"prompt\":\"x\",\"answer\":1}", "invalid type"),
        ];
        for (line, expected) in bad {
            let error = parse(&format!("{text}{line}"), 2).expect_err(line);
            assert!(error.starts_with("line 4: ") && error.contains(expected), "{line}: {error}");
            assert!(!error.contains("at line"), "{error}");
        }
        assert!(parse("\n", 2).is_err());
    }
}
