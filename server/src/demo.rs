//! `tokenrouter demo`: the demo pair, one built-in prompt asked over HTTP, then an ordinary server.

use std::io::{BufRead, BufReader, IsTerminal, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tokenrouter_scheduler::router::{HeadKind, Registry};

use crate::cli::DemoArgs;
use crate::config::{Config, DeviceName, FileText, Overrides};
use crate::paint::{Painter, emit};
use crate::serve::Started;

/// A problem of the evaluation set that the small model alone gets wrong and the routed pair right.
const PROMPT: &str = "In January Ben has 14 plums. In February Ben finds 49 plums. In March Ben drops 51 plums. In April Ben wins 68 plums. In May Eve has 72 cards. In June Ben gives away 23 plums. How many plums does Ben have?";

/// The demo deployment, its model paths relative to the folder of the pair.
const CONFIG: &str = r#"
[[model]]
name = "small"
path = "slm"
threads = 1

[[model]]
name = "large"
path = "llm"
threads = 1

[router]
name = "r-stitch"
threshold = 0.03

[budget]
memory = "64MiB"

[server]
tcp = "127.0.0.1:8001"
served_model_name = "demo"
"#;

/// Starts the pair and does what the flags say.
///
/// # Errors
/// One line that says what is wrong.
pub fn run(args: &DemoArgs, device: Option<DeviceName>, registry: &Registry) -> Result<(), String> {
    let config = config_with(args.models.as_deref(), &args.overrides.clone().on_device(device))?;
    let started = Started::new(&config, registry)?.announce();
    if args.serve_only {
        return started.run();
    }
    let address = started.http_addr().ok_or("the demo needs its HTTP endpoint")?;
    let names: Vec<String> = config.models.iter().map(|m| m.name.clone()).collect();
    let control = started.control();
    let once = args.once;
    let asker = std::thread::Builder::new().name("demo".into()).spawn(move || {
        let outcome = ask(address, &names).and_then(|()| if once { Ok(()) } else { hint(address) });
        if once || outcome.is_err() {
            control.drain();
        }
        outcome
    });
    let asker = asker.map_err(|e| format!("a thread could not be started: {e}"))?;
    started.run()?;
    asker.join().map_err(|_| "the demo client panicked".to_owned())?
}

/// The demo configuration. The pair is looked for in `dir`, else in `models/demo` of the working directory, next
/// to the binary, and in the source tree that the binary was built from.
///
/// # Errors
/// When the pair is in none of these places.
pub fn config(dir: Option<&Path>) -> Result<Config, String> {
    config_with(dir, &Overrides::default())
}

/// The same, under flags.
///
/// # Errors
/// As [`config`], and what is wrong with a flag.
pub fn config_with(dir: Option<&Path>, flags: &Overrides) -> Result<Config, String> {
    let mut places: Vec<PathBuf> = Vec::new();
    match dir {
        Some(dir) => places.push(dir.to_owned()),
        None => {
            places.push("models/demo".into());
            if let Ok(exe) = std::env::current_exe() {
                places.extend(exe.parent().map(|p| p.join("models/demo")));
            }
            places.push(Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/demo"));
        }
    }
    let found = places.iter().find(|p| p.join("slm/config.json").is_file());
    let dir = found.ok_or_else(|| {
        let shown: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
        format!("the demo pair is not in {}; give its folder with --models", shown.join(", "))
    })?;
    Config::over(FileText { name: "the demo pair", text: CONFIG, base: dir }, flags)
}

/// The problems that lie beside the pair of `config`, if they do.
pub(crate) fn problems(config: &Config) -> Option<PathBuf> {
    let file = config.models.first()?.path.parent()?.join("eval.jsonl");
    file.is_file().then_some(file)
}

/// The router files that lie beside the pair of `config`, in `routers/KIND`.
pub(crate) fn router_files(config: &Config) -> Vec<PathBuf> {
    let Some(dir) = config.models.first().and_then(|m| m.path.parent()) else { return Vec::new() };
    let files = HeadKind::ALL.map(|kind| dir.join("routers").join(kind.name()));
    files.into_iter().filter(|file| file.join("router.json").is_file()).collect()
}

/// Asks the built-in prompt over HTTP, prints the stream as it comes and the summary.
fn ask(address: SocketAddr, names: &[String]) -> Result<(), String> {
    let body = json!({
        "model": "demo", "stream": true, "temperature": 0, "max_tokens": 256,
        "stream_options": {"include_usage": true}, "token_routing": {"return": "tokens"},
        "messages": [{"role": "user", "content": PROMPT}],
    });
    emit(&format!("\n{PROMPT}\n\n"))?;
    let mut painter = Painter::new(std::io::stdout().is_terminal());
    let (mut routing, mut thinking) = (Value::Null, false);
    stream(address, &body.to_string(), |event| {
        if let Some(message) = event["error"]["message"].as_str() {
            return Err(message.to_owned());
        }
        if event["token_routing"].is_object() {
            routing = event["token_routing"].clone();
        }
        let choice = &event["choices"][0];
        // The pair thinks aloud before it answers; the server tells the two apart.
        let part = |name: &str| choice["delta"][name].as_str().unwrap_or("");
        let (thought, answer) = (part("reasoning_content"), part("content"));
        let text = if thinking && !answer.is_empty() {
            format!("{thought}\n{answer}")
        } else {
            format!("{thought}{answer}")
        };
        thinking = answer.is_empty() && (thinking || !thought.is_empty());
        let model = choice["token_routing"]["model_index"].as_array().and_then(|m| m.last()?.as_u64());
        emit(&painter.piece(model.unwrap_or(0) as usize, &text))
    })?;
    emit(&format!("{}\n\n", painter.end()))?;
    let counts = |key: &str| -> Vec<u32> {
        let models = routing["models"].as_array().map(Vec::as_slice).unwrap_or_default();
        models.iter().map(|m| m[key].as_u64().unwrap_or(0) as u32).collect()
    };
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let handoffs = routing["switches"].as_u64().unwrap_or(0) as u32;
    emit(&painter.summary(&names, &counts("committed_tokens"), &counts("discarded_tokens"), handoffs))
}

/// A minimal streaming client: posts the body and hands every `data:` event to `on_event`.
fn stream(
    address: SocketAddr,
    body: &str,
    mut on_event: impl FnMut(&Value) -> Result<(), String>,
) -> Result<(), String> {
    let fail = |e: std::io::Error| format!("asking {address}: {e}");
    let mut socket = TcpStream::connect(address).map_err(fail)?;
    let head = format!(
        "POST /v1/chat/completions HTTP/1.0\r\nHost: {address}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    socket.write_all(head.as_bytes()).and_then(|()| socket.write_all(body.as_bytes())).map_err(fail)?;
    let mut reader = BufReader::new(socket);
    let mut line = String::new();
    reader.read_line(&mut line).map_err(fail)?;
    if line.split_whitespace().nth(1) != Some("200") {
        let mut rest = String::new();
        reader.read_to_string(&mut rest).map_err(fail)?;
        return Err(format!("the server answered {}: {rest}", line.trim()));
    }
    loop {
        line.clear();
        if reader.read_line(&mut line).map_err(fail)? == 0 {
            return Err("the stream ended without [DONE]".into());
        }
        let Some(data) = line.trim().strip_prefix("data: ") else { continue };
        if data == "[DONE]" {
            return Ok(());
        }
        on_event(&serde_json::from_str(data).map_err(|e| format!("an event is not JSON: {e}"))?)?;
    }
}

fn hint(address: SocketAddr) -> Result<(), String> {
    emit(&format!(
        "\nserving until interrupted; ask it something:\n  curl -N http://{address}/v1/chat/completions -d \
         '{{\"stream\": true, \"temperature\": 0, \"messages\": [{{\"role\": \"user\", \"content\": \"...\"}}]}}'\n"
    ))
}
