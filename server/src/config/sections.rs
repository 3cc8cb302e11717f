//! The sections of the configuration as values, filled from the checked table: defaults are in `table.rs` and there
//! only.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use tokenrouter_engine::WeightForm;

use super::device::DeviceName;

/// One model and its placement.
#[derive(Clone, Debug, Deserialize)]
pub struct ModelSection {
    /// Name in answers and metrics.
    pub name: String,
    /// Folder of the checkpoint; empty while a `repo` is not resolved ([`crate::sources`]).
    #[serde(default)]
    pub path: PathBuf,
    /// Name of a Hugging Face repository instead of a folder.
    pub repo: Option<String>,
    /// Branch, tag or commit of the repository.
    pub revision: Option<String>,
    /// The devices that hold it, one equal part each.
    pub devices: Vec<usize>,
    /// Threads of its worker groups, divided over its devices; 0 takes one per core of its own, or one per core that it
    /// shares with other models.
    pub threads: usize,
    /// Cores that its threads are bound to; empty: none in particular.
    #[serde(default)]
    pub cores: Vec<usize>,
    /// How its linear layers are kept in memory; absent: as the checkpoint has them.
    pub weights: Option<WeightsName>,
    /// Most rows in one step.
    pub max_batch: usize,
    /// Most tokens fed in one step; 0 depends on the device, see [`ModelSection::step_tokens`].
    pub max_step_tokens: usize,
    /// Price of a million tokens fed through it.
    pub price: Option<f64>,
}

/// `model.weights`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WeightsName {
    /// 8-bit integers with a scale for every 32 columns.
    Int8,
}

impl ModelSection {
    /// How its linear layers are kept in memory.
    pub fn weight_form(&self) -> WeightForm {
        match self.weights {
            None => WeightForm::Stored,
            Some(WeightsName::Int8) => WeightForm::Int8,
        }
    }

    /// Most tokens fed in one step on `device`. Unless it is stated, a step of a CPU feeds few enough that it ends within a
    /// second or so on a small machine, and a step of a GPU enough to fill it.
    pub fn step_tokens(&self, device: DeviceName) -> usize {
        match (self.max_step_tokens, device) {
            (0, DeviceName::Cpu) => self.max_batch.max(128),
            (0, DeviceName::Cuda) => self.max_batch.max(512),
            (stated, _) => stated,
        }
    }
}

/// Memory.
#[derive(Clone, Debug, Deserialize)]
pub struct BudgetSection {
    /// Bytes for everything: weights, buffers and the KV caches. A number, or text like `"512MiB"`.
    pub memory: toml::Value,
    /// Type of the KV cache: `f32`, `f16` or `bf16`; absent: by the device.
    pub kv_dtype: Option<String>,
    /// Longest context of a request in tokens; 0 takes the smallest maximum of the models.
    pub max_model_len: usize,
    /// Whether prompts with a common beginning share cache pages.
    pub prefix_cache: bool,
    /// Pages of 16 tokens that must stay free when a request is admitted.
    pub reserve_pages: usize,
}

/// Sockets and limits. Times are in seconds; the methods give them as durations.
#[derive(Clone, Debug, Deserialize)]
pub struct ServerSection {
    /// Address of the HTTP endpoint.
    pub http: SocketAddr,
    /// Address of the raw TCP endpoint; absent: none.
    pub tcp: Option<SocketAddr>,
    /// The name under which the routed models are served.
    pub served_model_name: String,
    /// Keys of clients; none: everybody may.
    #[serde(default)]
    pub api_keys: Vec<String>,
    /// A file with more keys.
    pub api_key_file: Option<PathBuf>,
    /// Whether `/metrics` needs a key.
    pub metrics_need_key: bool,
    /// Origins whose pages may call; `*` is all.
    pub cors_origins: Vec<String>,
    /// Certificate chain, PEM.
    pub tls_cert: Option<PathBuf>,
    /// Private key, PEM.
    pub tls_key: Option<PathBuf>,
    /// Most requests admitted at once.
    pub max_running: usize,
    /// Most requests waiting for admission; one more gets 429.
    pub max_waiting: usize,
    /// Most connections at once.
    pub max_connections: usize,
    /// Most requests that run at once on one raw TCP connection.
    pub max_line_requests: usize,
    /// Largest request body in bytes.
    pub max_body_bytes: usize,
    /// Most choices of one request.
    pub max_n: u32,
    /// Threads that parse and tokenize.
    pub tokenizer_threads: usize,
    /// Longest wait for admission; 0: none.
    pub queue_timeout_s: f64,
    /// Longest time of a request; 0: none.
    pub request_timeout_s: f64,
    /// A client that takes nothing for so long is cancelled.
    pub write_timeout_s: f64,
    /// How long an idle HTTP connection stays.
    pub keep_alive_s: f64,
    /// How long the listener at least stays open after SIGTERM.
    pub drain_delay_s: f64,
    /// What running requests get after SIGTERM.
    pub shutdown_timeout_s: f64,
    /// A step in flight for so long is unhealthy.
    pub stall_timeout_s: f64,
}

impl ServerSection {
    /// `queue_timeout_s`, unless it is 0.
    pub fn queue_timeout(&self) -> Option<Duration> {
        limit(self.queue_timeout_s)
    }

    /// `request_timeout_s`, unless it is 0.
    pub fn request_timeout(&self) -> Option<Duration> {
        limit(self.request_timeout_s)
    }
}

/// What `token_routing` of a request may set.
#[derive(Clone, Debug, Deserialize)]
pub struct RequestLimitsSection {
    /// Whether, or between which numbers, a request may bring a threshold.
    pub threshold: ThresholdLimit,
    /// The largest share of models beside the entry.
    pub max_llm_fraction: Option<f32>,
    /// Whether a request may name another configured route.
    pub router: bool,
}

/// Which thresholds a request may bring.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum ThresholdLimit {
    /// Any, or none.
    Allowed(bool),
    /// Numbers from the first to the second.
    Between([f32; 2]),
}

/// Chat templates and parsers.
#[derive(Clone, Debug, Deserialize)]
pub struct ChatSection {
    /// A template instead of the checkpoint's.
    pub template: Option<PathBuf>,
    /// How reasoning is told from the answer.
    pub reasoning_parser: ReasoningParser,
    /// Which field holds it.
    pub reasoning_field: ReasoningField,
    /// How tool calls are told from the answer.
    pub tool_parser: ToolParser,
    /// Whether a request may bring its own template.
    pub allow_request_template: bool,
    /// Whether the texts of messages are kept from becoming control tokens.
    pub guard_text: bool,
}

/// `chat.reasoning_parser`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReasoningParser {
    /// By the chat template.
    #[default]
    Auto,
    /// Tags stay in the content.
    None,
    /// `<think>` ... `</think>`.
    Qwen3,
}

/// `chat.reasoning_field`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReasoningField {
    /// `reasoning_content`.
    #[default]
    ReasoningContent,
    /// `reasoning`.
    Reasoning,
    /// Both.
    Both,
}

/// `chat.tool_parser`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolParser {
    /// By the chat template.
    #[default]
    Auto,
    /// Calls stay in the content.
    None,
    /// `<tool_call>{json}</tool_call>`.
    Hermes,
    /// A JSON object, as Llama 3 writes it.
    #[serde(rename = "llama3_json")]
    Llama3Json,
}

/// Lost and stalled models.
#[derive(Clone, Debug, Deserialize)]
pub struct FaultsSection {
    /// What becomes of requests that need a lost model.
    pub on_peer_loss: OnPeerLoss,
    /// A step that takes longer makes its model lost; 0: no limit.
    pub step_timeout_s: f64,
}

impl FaultsSection {
    /// `step_timeout_s`, unless it is 0.
    pub fn step_timeout(&self) -> Option<Duration> {
        limit(self.step_timeout_s)
    }
}

/// `faults.on_peer_loss`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnPeerLoss {
    /// They fail by name.
    #[default]
    Fail,
    /// They go on with the remaining model, marked as degraded.
    Continue,
}

/// The log.
#[derive(Clone, Debug, Deserialize)]
pub struct LogSection {
    /// How a line is written.
    pub format: LogFormat,
    /// A level or a filter.
    pub level: String,
    /// Whether prompts and answers are logged.
    pub prompts: bool,
    /// Seconds between throughput lines; 0: none.
    pub throughput_every_s: f64,
}

impl LogSection {
    /// `throughput_every_s`, unless it is 0.
    pub fn throughput_every(&self) -> Option<Duration> {
        limit(self.throughput_every_s)
    }
}

/// `log.format`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Where models with a `repo` come from.
#[derive(Clone, Debug, Deserialize)]
pub struct HubSection {
    /// The cache folder.
    pub cache: Option<PathBuf>,
    /// Where to download from.
    pub endpoint: Option<String>,
    /// Whether missing files are downloaded.
    pub download: bool,
}

/// Seconds that were checked; 0 is no limit.
fn limit(seconds: f64) -> Option<Duration> {
    (seconds > 0.0).then(|| Duration::from_secs_f64(seconds))
}

/// The section of a configuration that says nothing about it, for tests.
#[cfg(test)]
impl Default for ServerSection {
    fn default() -> Self {
        let text = "[[model]]\nname = \"one\"\npath = \"x\"";
        super::Config::parse(text, std::path::Path::new("")).expect("good").server
    }
}
