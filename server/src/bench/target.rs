//! What kind of server it is: what it serves, and which fields it knows. Found out by asking.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde_json::{Value, json};

use super::ask::{Api, Fields, Prompt, Terms, ask};
use super::http::{Client, Fault, Site};
use super::scrape::Page;

/// How long a server may take for the first small answers.
const PATIENCE: Duration = Duration::from_secs(120);
/// Tokens of a probing answer.
const PROBE: u32 = 4;

/// A server that answers.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) site: Site,
    /// Its process on this machine, where it is known.
    pub(super) pid: Option<u32>,
    pub(super) fields: Fields,
    pub(super) api: Api,
    /// Served names.
    pub(super) models: Vec<String>,
    /// Tokens of the longest request.
    pub(super) context: Option<u64>,
    /// Whether `/metrics` is one of ours.
    pub(super) ours: bool,
    /// What it cannot do, in words.
    pub(super) notes: Vec<String>,
}

impl Target {
    /// Asks the server what it is; `api` and `model` are what the user wants.
    ///
    /// # Errors
    /// Why it cannot be measured.
    pub(super) fn probe(
        site: Site,
        pid: Option<u32>,
        api: Option<Api>,
        model: Option<&str>,
        stop: &AtomicBool,
    ) -> Result<Self, String> {
        let mut client = Client::new(&site, stop, PATIENCE);
        let at = format!("http://{}{}", site.address, site.prefix);
        let listed = match client.fetch("GET", "/v1/models", "") {
            Ok(text) => serde_json::from_str(&text).unwrap_or(Value::Null),
            Err(fault @ (Fault::Status(401 | 403, _) | Fault::Connect(_) | Fault::Stopped)) => {
                return Err(refusal(&at, &fault));
            }
            Err(_) => Value::Null,
        };
        let list = listed["data"].as_array().map(Vec::as_slice).unwrap_or_default();
        let models: Vec<String> = list.iter().filter_map(|m| m["id"].as_str()).map(str::to_owned).collect();
        let context = list.iter().filter_map(|m| m["max_model_len"].as_u64()).min();
        let ours = client.fetch("GET", "/metrics", "").is_ok_and(|page| Page::parse(&page).is_ours());
        let name = model.or(models.first().map(String::as_str)).unwrap_or("default").to_owned();
        let (api, fields) = rungs(&mut client, api, &name).map_err(|fault| refusal(&at, &fault))?;
        let mut target =
            Target { site: site.clone(), pid, fields, api, models, context, ours, notes: Vec::new() };
        target.say_what_is_missing();
        Ok(target)
    }

    fn say_what_is_missing(&mut self) {
        let Fields { token_ids, salt, ignore_eos, usage, .. } = self.fields;
        let lacks = [
            (
                self.ours,
                "no /metrics of ours: batch sizes, share of the large model and admission delay are absent",
            ),
            (
                self.pid.is_some() || self.ours,
                "the server's process is not known (--pid): CPU time per token and foreign CPU are absent",
            ),
            (
                token_ids,
                "no return_token_ids: a token is a piece of the stream, corrected by the usage at the end",
            ),
            (usage, "no usage in streams: a token is a piece of the stream"),
            (ignore_eos, "no ignore_eos: answers end where the model ends them"),
            (salt, "no cache_salt: a prompt cache may serve one setting what another has asked"),
        ];
        self.notes.extend(lacks.iter().filter(|(has, _)| !has).map(|(_, text)| (*text).to_owned()));
    }

    /// The ids of a text, by the server's own tokenizer; none where it does not offer that.
    pub(super) fn tokenize(&self, text: &str, stop: &AtomicBool) -> Option<Vec<u32>> {
        let mut client = Client::new(&self.site, stop, PATIENCE);
        // The names of vLLM, which ours are, and those of llama.cpp.
        ["prompt", "content"].iter().find_map(|key| {
            let body = json!({ *key: text }).to_string();
            let answer: Value = serde_json::from_str(&client.fetch("POST", "/tokenize", &body).ok()?).ok()?;
            let ids: Vec<u32> =
                answer["tokens"].as_array()?.iter().filter_map(Value::as_u64).map(|id| id as u32).collect();
            (!ids.is_empty()).then_some(ids)
        })
    }

    /// The page of `/metrics`; empty where it is not ours.
    pub(super) fn look(&self, stop: &AtomicBool) -> Page {
        if !self.ours {
            return Page::default();
        }
        let page = Client::new(&self.site, stop, Duration::from_secs(5)).fetch("GET", "/metrics", "");
        page.map(|text| Page::parse(&text)).unwrap_or_default()
    }
}

fn refusal(at: &str, fault: &Fault) -> String {
    match fault {
        Fault::Status(401 | 403, _) => format!("{at} wants a key ({fault}); give it with --api-key"),
        _ => format!("{at} cannot be measured: {fault}"),
    }
}

/// The most that the server takes: chats before completions, all fields before fewer.
fn rungs(client: &mut Client<'_>, api: Option<Api>, model: &str) -> Result<(Api, Fields), Fault> {
    let all = Fields { routing: true, token_ids: true, salt: true, ignore_eos: true, usage: true };
    let usual = Fields { routing: false, ..all };
    let plain = Fields { token_ids: false, salt: false, ..usual };
    let ladder = [all, usual, plain, Fields { ignore_eos: false, ..plain }, Fields::default()];
    let apis = api.map_or(vec![Api::Chat, Api::Completions], |api| vec![api]);
    let mut last = Fault::Stopped;
    for api in apis {
        for fields in ladder {
            match try_rung(client, api, fields, model) {
                Ok(fields) => return Ok((api, fields)),
                Err(fault @ (Fault::Status(401 | 403, _) | Fault::Connect(_) | Fault::Stopped)) => {
                    return Err(fault);
                }
                Err(fault) => last = fault,
            }
        }
    }
    Err(last)
}

/// One small answer; which of the fields did something.
fn try_rung(client: &mut Client<'_>, api: Api, fields: Fields, model: &str) -> Result<Fields, Fault> {
    let prompt = match api {
        Api::Chat => Prompt::Messages(vec![("user", "Count to ten.".into())]),
        Api::Completions => Prompt::Text("Count to ten.".into()),
    };
    let terms = Terms {
        api,
        fields,
        model,
        threshold: None,
        max_tokens: PROBE,
        to_the_end: true,
        temperature: 0.0,
        seed: 0,
        salt: "probe",
    };
    let answer = ask(client, &prompt, &terms, &mut |_| ())?;
    Ok(Fields {
        routing: fields.routing && answer.routing.is_object(),
        token_ids: fields.token_ids && !answer.ids.is_empty(),
        usage: fields.usage && answer.prompt_tokens.is_some(),
        ..fields
    })
}
