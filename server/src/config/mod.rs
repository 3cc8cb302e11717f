//! The TOML file that describes a deployment: models, placement, memory budget, router, scheduling, server.
//!
//! Unknown keys are refused with a suggestion; every refusal names the file and the key.

mod bytes;
mod device;
pub(crate) mod keys;
mod routing;
mod scheduling;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tokenrouter_engine::check_devices;

pub use bytes::parse_bytes;
pub use device::{CudaSection, DeviceName};
pub use routing::{RouteSection, RouterSection};
pub(crate) use routing::{Routed, param};
pub use scheduling::SchedulingSection;
pub(crate) use scheduling::{AUTO, handoff_name};

/// A deployment, checked. Paths are resolved against the folder of the file.
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    /// What the models run on.
    #[serde(default)]
    pub device: DeviceName,
    /// The models; the first is the one a route enters by default.
    #[serde(rename = "model")]
    pub models: Vec<ModelSection>,
    /// How tokens are routed under `server.served_model_name`.
    pub router: RouterSection,
    /// Further routers, each under a served name of its own.
    #[serde(default, rename = "route")]
    pub routes: Vec<RouteSection>,
    /// When models launch.
    #[serde(default)]
    pub scheduling: SchedulingSection,
    /// Memory.
    #[serde(default)]
    pub budget: BudgetSection,
    /// How GPUs are used.
    #[serde(default)]
    pub cuda: CudaSection,
    /// Sockets and limits.
    #[serde(default)]
    pub server: ServerSection,
}

/// One model and its placement.
#[derive(Clone, Debug, Deserialize)]
pub struct ModelSection {
    /// Name in answers and metrics.
    pub name: String,
    /// Folder of the checkpoint (Hugging Face layout).
    pub path: PathBuf,
    /// The devices that hold it, one equal part each; the whole model on device 0 by default.
    #[serde(default = "default_devices")]
    pub devices: Vec<usize>,
    /// Threads of its worker groups, divided over its devices; 0 divides the cores evenly over the models.
    #[serde(default)]
    pub threads: usize,
    /// Most rows in one step.
    #[serde(default = "default_batch")]
    pub max_batch: usize,
    /// Most tokens fed in one step; longer prompts are fed in pieces.
    #[serde(default = "default_step_tokens")]
    pub max_step_tokens: usize,
}

/// Memory.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct BudgetSection {
    /// Bytes for everything: weights, buffers and the KV caches. A number, or text like `"512MiB"`.
    pub memory: toml::Value,
    /// Type of the KV cache: `f32`, `f16` or `bf16`; absent: f16 on the CPU, and bf16, the only one, on CUDA.
    pub kv_dtype: Option<String>,
    /// Longest context of a request in tokens; 0 takes the smallest maximum of the models.
    pub max_model_len: usize,
    /// Whether prompts with a common beginning share its cache pages, also after the first has ended.
    pub prefix_cache: bool,
    /// Pages of 16 tokens that must stay free when a request is admitted. More of them means fewer requests at once
    /// and fewer that are preempted because the admitted ones grow.
    pub reserve_pages: usize,
}

impl Default for BudgetSection {
    fn default() -> Self {
        BudgetSection {
            memory: toml::Value::String("2GiB".into()),
            kv_dtype: None,
            max_model_len: 0,
            prefix_cache: true,
            reserve_pages: 8,
        }
    }
}

/// Sockets and limits.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct ServerSection {
    /// Address of the HTTP endpoint.
    pub http: SocketAddr,
    /// Address of the raw TCP endpoint; absent: none.
    pub tcp: Option<SocketAddr>,
    /// The name under which the routed pair is served.
    pub served_model_name: String,
    /// Most requests admitted at once.
    pub max_running: usize,
    /// Most requests waiting for admission; one more gets 429.
    pub max_waiting: usize,
    /// Most connections at once.
    pub max_connections: usize,
    /// Largest request body in bytes.
    pub max_body_bytes: usize,
    /// Threads that parse and tokenize.
    pub tokenizer_threads: usize,
    /// Most choices of one request.
    pub max_n: u32,
    /// Seconds that running requests get after SIGTERM.
    pub shutdown_timeout_s: u64,
}

impl Default for ServerSection {
    fn default() -> Self {
        ServerSection {
            http: SocketAddr::from(([127, 0, 0, 1], 8000)),
            tcp: None,
            served_model_name: "tokenrouter".into(),
            max_running: 64,
            max_waiting: 256,
            max_connections: 1024,
            max_body_bytes: 16 << 20,
            tokenizer_threads: 1,
            max_n: 8,
            shutdown_timeout_s: 30,
        }
    }
}

fn default_devices() -> Vec<usize> {
    vec![0]
}

fn default_batch() -> usize {
    32
}

fn default_step_tokens() -> usize {
    512
}

/// Why a configuration was refused: the file, the key, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    file: String,
    problem: String,
}

impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.file, self.problem)
    }
}

impl std::error::Error for ConfigError {}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// When the file cannot be read, is not TOML, has a key that is not known or a value out of range.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let fail = |problem: String| ConfigError { file: path.display().to_string(), problem };
        let text = std::fs::read_to_string(path).map_err(|e| fail(e.to_string()))?;
        let base = path.parent().unwrap_or(Path::new(""));
        Config::parse(&text, base).map_err(fail)
    }

    /// Checks the text of a file whose relative paths start at `base`.
    ///
    /// # Errors
    /// As `load`, as text.
    pub fn parse(text: &str, base: &Path) -> Result<Config, String> {
        let table: toml::Table = toml::from_str(text).map_err(|e| e.to_string())?;
        keys::check(&table)?;
        let mut config: Config = toml::from_str(text).map_err(|e| e.to_string())?;
        for model in &mut config.models {
            model.path = base.join(&model.path);
        }
        let files = config.routes.iter_mut().map(|r| &mut r.file).chain([&mut config.router.file]);
        for file in files.flatten() {
            *file = base.join(&*file);
        }
        config.check()?;
        Ok(config)
    }

    /// The budget in bytes.
    ///
    /// # Errors
    /// When it is not a byte count.
    pub fn budget_bytes(&self) -> Result<u64, String> {
        device::bytes("budget.memory", &self.budget.memory)
    }

    fn check(&self) -> Result<(), String> {
        if self.models.is_empty() {
            return Err("no [[model]] section; at least one model is needed".into());
        }
        if self.models.len() > tokenrouter_scheduler::MAX_MODELS {
            let most = tokenrouter_scheduler::MAX_MODELS;
            return Err(format!("{} [[model]] sections; at most {most} are supported", self.models.len()));
        }
        for (i, model) in self.models.iter().enumerate() {
            self.check_model(i, model)?;
        }
        self.check_routes()?;
        self.scheduling.policy(self.models.len())?;
        self.scheduling.handoff()?;
        self.scheduling.planner()?;
        let bytes = self.budget_bytes()?;
        if bytes == 0 {
            return Err("budget.memory is 0; a byte count like \"2GiB\" is needed".into());
        }
        self.kv_dtype()?;
        self.device_kind()?;
        self.check_server()
    }

    fn check_model(&self, index: usize, model: &ModelSection) -> Result<(), String> {
        if model.name.is_empty() {
            return Err(format!("model {index} has an empty name"));
        }
        if self.models[..index].iter().any(|m| m.name == model.name) {
            return Err(format!("two models are named \"{}\"; names must differ", model.name));
        }
        if model.name == self.server.served_model_name {
            return Err(format!(
                "model.name \"{}\" is also server.served_model_name; they must differ, since both can be asked for",
                model.name
            ));
        }
        let most = 4096;
        if model.max_batch == 0 || model.max_batch > most {
            return Err(format!(
                "model \"{}\": max_batch is {}; it must be 1..={most}",
                model.name, model.max_batch
            ));
        }
        if model.max_step_tokens < model.max_batch || model.max_step_tokens > 65_536 {
            return Err(format!(
                "model \"{}\": max_step_tokens is {}; it must be at least max_batch ({}) and at most 65536",
                model.name, model.max_step_tokens, model.max_batch
            ));
        }
        check_devices(&model.devices).map_err(|problem| format!("model \"{}\": {problem}", model.name))?;
        if model.threads > 512 {
            return Err(format!("model \"{}\": threads is {}; at most 512", model.name, model.threads));
        }
        Ok(())
    }

    fn check_server(&self) -> Result<(), String> {
        let s = &self.server;
        let positive = [
            ("max_running", s.max_running),
            ("max_waiting", s.max_waiting),
            ("max_connections", s.max_connections),
            ("max_body_bytes", s.max_body_bytes),
            ("tokenizer_threads", s.tokenizer_threads),
            ("max_n", s.max_n as usize),
        ];
        for (key, value) in positive {
            if value == 0 {
                return Err(format!("server.{key} is 0; it must be at least 1"));
            }
        }
        if s.served_model_name.is_empty() {
            return Err("server.served_model_name is empty".into());
        }
        let bounded = [
            ("max_running", s.max_running as u64, 4096),
            ("tokenizer_threads", s.tokenizer_threads as u64, 64),
            ("max_n", u64::from(s.max_n), 1024),
            ("shutdown_timeout_s", s.shutdown_timeout_s, 86_400),
        ];
        match bounded.into_iter().find(|(_, value, most)| value > most) {
            Some((key, value, most)) => Err(format!("server.{key} is {value}; it may be at most {most}")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        [[model]]
        name = "small"
        path = "slm"
        [[model]]
        name = "large"
        path = "/abs/llm"
        threads = 2
        [router]
        name = "r-stitch"
        threshold = 0.03
        [budget]
        memory = "64MiB"
    "#;

    #[test]
    fn a_good_file_is_read_and_paths_start_at_its_folder() {
        let config = Config::parse(GOOD, Path::new("/etc/pair")).expect("good");
        assert_eq!(config.models[0].path, Path::new("/etc/pair/slm"));
        assert_eq!(config.models[1].path, Path::new("/abs/llm"));
        assert_eq!(config.budget_bytes(), Ok(64 << 20));
        assert_eq!((config.budget.prefix_cache, config.budget.reserve_pages), (true, 8));
        let text = GOOD.replace("[budget]", "[budget]\nprefix_cache = false\nreserve_pages = 0");
        let config = Config::parse(&text, Path::new("")).expect("good");
        assert_eq!((config.budget.prefix_cache, config.budget.reserve_pages), (false, 0));
        assert_eq!(config.router.params.keys().collect::<Vec<_>>(), ["threshold"]);
        assert_eq!(config.router.file, None);
        let text = GOOD.replace("threshold = 0.03", "file = \"routers/r2r\"");
        let config = Config::parse(&text, Path::new("/etc/pair")).expect("good");
        assert_eq!(config.router.file.as_deref(), Some(Path::new("/etc/pair/routers/r2r")));
        assert!(config.router.params.is_empty(), "the file is no parameter");
    }

    #[test]
    fn bad_files_are_refused_by_key() {
        let cases = [
            ("[[model]]", "[[modell]]", "modell"),
            ("threads = 2", "thread = 2", "did you mean \"threads\""),
            ("threads = 2", "threads = \"two\"", "threads"),
            ("memory = \"64MiB\"", "memory = \"64 parsecs\"", "budget.memory"),
            ("memory = \"64MiB\"", "memory = -1", "budget.memory"),
            ("memory = \"64MiB\"", "kv_dtype = \"int3\"", "kv_dtype"),
            ("memory = \"64MiB\"", "prefix_cache = 1", "prefix_cache"),
            ("memory = \"64MiB\"", "reserve_page = 1", "did you mean \"reserve_pages\""),
            ("name = \"large\"", "name = \"small\"", "names must differ"),
            ("name = \"large\"", "name = \"tokenrouter\"", "served_model_name"),
            ("[budget]", "[bugdet]", "did you mean \"budget\""),
            ("threads = 2", "max_batch = 0", "max_batch"),
            ("[router]", "[rooter]", "rooter"),
            ("[budget]", "[server]\nmax_n = 4294967295\n[budget]", "max_n"),
            ("[budget]", "[scheduling]\npolicy = \"eagr\"\n[budget]", "did you mean \"eager\""),
            ("[budget]", "[scheduling]\nhandoff = \"move\"\n[budget]", "resume or readmit"),
            ("[budget]", "[scheduling]\npolcy = \"eager\"\n[budget]", "did you mean \"policy\""),
        ];
        for (from, to, expected) in cases {
            let text = GOOD.replacen(from, to, 1);
            assert_ne!(text, GOOD, "the case changes the file");
            let error = Config::parse(&text, Path::new("")).expect_err(to);
            assert!(error.contains(expected), "{to}: {error}");
        }
    }

    /// A deadline beyond what the clock can say made the server panic at SIGTERM.
    #[test]
    fn a_shutdown_timeout_of_ages_is_refused() {
        for seconds in ["86401", "9223372036854775807"] {
            let text = format!("{GOOD}\n[server]\nshutdown_timeout_s = {seconds}");
            let error = Config::parse(&text, Path::new("")).expect_err("ages");
            assert!(error.contains("shutdown_timeout_s") && error.contains("86400"), "{error}");
        }
    }

    #[test]
    fn not_toml_is_refused_with_a_line() {
        let error = Config::parse("[[model]\nname=", Path::new("")).expect_err("broken");
        assert!(error.contains("line 1"), "{error}");
    }
}
