//! A deployment's configuration: models, placement, memory budget, router, scheduling, server.
//!
//! Flags win over variables of the environment, those over the TOML file, that over the defaults. Unknown keys are refused
//! with a suggestion; every refusal names the file, variable or flag, and the key.

mod bytes;
mod device;
pub(crate) mod keys;
mod kind;
mod layers;
mod overrides;
mod print;
mod reference;
mod routing;
mod scheduling;
mod sections;
mod table;
#[cfg(test)]
mod tests;
mod variables;

use std::path::Path;

use serde::Deserialize;
use tokenrouter_engine::check_devices;

use layers::{Problem, Resolved};

pub use bytes::parse_bytes;
pub use device::{CudaSection, DeviceName};
pub use layers::FileText;
pub use overrides::{Overrides, SetArgs};
pub use reference::reference;
pub use routing::{RouteSection, RouterSection};
pub(crate) use routing::{Routed, param};
pub use scheduling::SchedulingSection;
pub(crate) use scheduling::{AUTO, handoff_from, handoff_name};
pub use sections::{
    BudgetSection, ChatSection, FaultsSection, HubSection, LogFormat, LogSection, ModelSection, OnPeerLoss,
    ReasoningField, ReasoningParser, RequestLimitsSection, ServerSection, ThresholdLimit, ToolParser,
    WeightsName,
};

/// A deployment, checked. Paths are resolved against the folder of the file.
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    /// What the models run on.
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
    pub scheduling: SchedulingSection,
    /// Memory.
    pub budget: BudgetSection,
    /// How GPUs are used.
    pub cuda: CudaSection,
    /// Sockets and limits.
    pub server: ServerSection,
    /// What requests may set about routing.
    pub request_limits: RequestLimitsSection,
    /// Chat templates and parsers.
    pub chat: ChatSection,
    /// Lost and stalled models.
    pub faults: FaultsSection,
    /// The log.
    pub log: LogSection,
    /// Where models with a `repo` come from.
    pub hub: HubSection,
    /// The values before they became sections, with their origins.
    #[serde(skip)]
    resolved: Resolved,
}

impl Config {
    /// Reads and checks a file, under the variables of the environment.
    ///
    /// # Errors
    /// When the file cannot be read, is not TOML, has a key that is not known or a value out of range. The text names the
    /// file or variable, and the key.
    pub fn load(path: &Path) -> Result<Config, String> {
        Config::load_with(Some(path), &Overrides::default())
    }

    /// As [`Config::load`], with flags over all; also without a file.
    ///
    /// # Errors
    /// As `load`.
    pub fn load_with(path: Option<&Path>, flags: &Overrides) -> Result<Config, String> {
        let Some(path) = path else { return Config::resolve(None, &environment(), flags) };
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|e| format!("{name}: {e}"))?;
        let base = path.parent().unwrap_or(Path::new(""));
        Config::over(FileText { name: &name, text: &text, base }, flags)
    }

    /// Flags over the variables of this process over a text.
    ///
    /// # Errors
    /// As `load`.
    pub(crate) fn over(file: FileText<'_>, flags: &Overrides) -> Result<Config, String> {
        Config::resolve(Some(file), &environment(), flags)
    }

    /// Checks the text of a file whose relative paths start at `base`. The environment says nothing.
    ///
    /// # Errors
    /// As `load`.
    pub fn parse(text: &str, base: &Path) -> Result<Config, String> {
        Config::resolve(Some(FileText { name: "", text, base }), &[], &Overrides::default())
    }

    /// Flags over environment (names and values) over file over defaults.
    ///
    /// # Errors
    /// As `load`.
    pub fn resolve(
        file: Option<FileText<'_>>,
        environment: &[(String, String)],
        flags: &Overrides,
    ) -> Result<Config, String> {
        let resolved = Resolved::new(file, environment, flags.given())?;
        let refusal = |problem: Problem| resolved.refusal(&problem);
        resolved.check_required().map_err(refusal)?;
        check_present(&resolved).map_err(refusal)?;
        let config = toml::Value::Table(resolved.table.clone()).try_into::<Config>();
        let mut config = config.map_err(|e| refusal(Problem { at: String::new(), text: e.to_string() }))?;
        config.check().map_err(refusal)?;
        config.resolved = resolved;
        Ok(config)
    }

    /// What the operator should know, though nothing was refused.
    pub fn warnings(&self) -> &[String] {
        &self.resolved.warnings
    }

    /// The budget in bytes.
    ///
    /// # Errors
    /// When it is not a byte count.
    pub fn budget_bytes(&self) -> Result<u64, String> {
        device::bytes("budget.memory", &self.budget.memory)
    }

    fn check(&self) -> Result<(), Problem> {
        for (i, model) in self.models.iter().enumerate() {
            self.check_model(i, model)?;
        }
        self.check_routes().map_err(Problem::at("server.served_model_name"))?;
        self.scheduling.policy(self.models.len()).map_err(Problem::at("scheduling.policy"))?;
        self.scheduling.handoff().map_err(Problem::at("scheduling.handoff"))?;
        self.scheduling.planner().map_err(Problem::at("scheduling.p99_inter_token_ms"))?;
        self.budget_bytes().map_err(Problem::at("budget.memory"))?;
        self.kv_dtype().map_err(Problem::at("budget.kv_dtype"))?;
        self.device_kind().map_err(Problem::at("cuda.largest_bucket"))?;
        self.check_limits().map_err(Problem::at("request_limits.threshold"))?;
        self.check_server()
    }

    fn check_model(&self, index: usize, model: &ModelSection) -> Result<(), Problem> {
        let at = |key: &str| Problem::at(format!("model.{index}.{key}"));
        let name = &model.name;
        if self.models[..index].iter().any(|m| m.name == *name) {
            return Err(at("name")(format!("two models are named \"{name}\"; names must differ")));
        }
        if *name == self.server.served_model_name {
            return Err(Problem::at("server.served_model_name")(format!(
                "model.name \"{name}\" is also server.served_model_name; they must differ, since both can be asked for"
            )));
        }
        if model.max_step_tokens != 0 && model.max_step_tokens < model.max_batch {
            return Err(at("max_step_tokens")(format!(
                "model \"{name}\": max_step_tokens is {}; it must be at least max_batch ({})",
                model.max_step_tokens, model.max_batch
            )));
        }
        match (&model.repo, model.path.as_os_str().is_empty()) {
            (None, true) => {
                return Err(at("path")(format!("model \"{name}\": path or repo is missing")));
            }
            (Some(_), false) => {
                return Err(at("repo")(format!("model \"{name}\": path and repo exclude each other")));
            }
            (Some(repo), true) if !crate::sources::is_repo_name(repo) => {
                let text = format!(
                    "model \"{name}\": repo is \"{repo}\"; a name like \"Qwen/Qwen3-0.6B\" is needed"
                );
                return Err(at("repo")(text));
            }
            (None, false) if model.revision.is_some() => {
                return Err(at("revision")(format!(
                    "model \"{name}\": revision needs a repo; path has none"
                )));
            }
            _ => {}
        }
        check_devices(&model.devices).map_err(|e| at("devices")(format!("model \"{name}\": {e}")))
    }

    fn check_server(&self) -> Result<(), Problem> {
        let s = &self.server;
        match (&s.tls_cert, &s.tls_key) {
            (Some(_), None) => {
                Err(Problem::at("server.tls_cert")("server.tls_cert needs server.tls_key".into()))
            }
            (None, Some(_)) => {
                Err(Problem::at("server.tls_key")("server.tls_key needs server.tls_cert".into()))
            }
            (Some(_), Some(_)) if !cfg!(feature = "tls") => Err(Problem::at("server.tls_cert")(
                "server.tls_cert: this binary was built without the feature `tls`".into(),
            )),
            _ => Ok(()),
        }
    }

    fn check_limits(&self) -> Result<(), String> {
        match self.request_limits.threshold {
            ThresholdLimit::Between([low, high]) if !(low.is_finite() && high.is_finite() && low <= high) => {
                Err(format!(
                    "request_limits.threshold is [{low}, {high}]; the lowest threshold must come first, then the highest"
                ))
            }
            _ => Ok(()),
        }
    }
}

/// Variables of this process that are text.
fn environment() -> Vec<(String, String)> {
    let text = std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
    let mut all: Vec<(String, String)> =
        text.filter(|(name, _)| name.starts_with(variables::PREFIX)).collect();
    all.sort();
    all
}

/// What no configuration can be without.
fn check_present(resolved: &Resolved) -> Result<(), Problem> {
    let fail = |text: String| Err(Problem { at: String::new(), text });
    let models = resolved.sections("model").len();
    let most = tokenrouter_scheduler::MAX_MODELS;
    if models == 0 {
        return fail(
            "no [[model]] section; at least one model is needed (--model NAME=FOLDER_OR_REPO also names one)"
                .into(),
        );
    }
    if models > most {
        return fail(format!("{models} [[model]] sections; at most {most} are supported"));
    }
    if !resolved.table.contains_key("router") {
        return fail(format!("no [router] section; {models} models need a router (--router names one)"));
    }
    let limit = resolved.table.get("request_limits").and_then(|limits| limits.get("threshold"));
    let number = |v: &toml::Value| v.is_integer() || v.is_float();
    let well = limit.is_none_or(|v| {
        v.is_bool() || v.as_array().is_some_and(|list| list.len() == 2 && list.iter().all(number))
    });
    if !well {
        let found = limit.map(ToString::to_string).unwrap_or_default();
        let text = format!(
            "request_limits.threshold is {found}; it must be true, false, or two numbers as [0.01, 0.1]"
        );
        return Err(Problem { at: "request_limits.threshold".into(), text });
    }
    Ok(())
}

#[cfg(test)]
mod file_tests {
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
            ("[budget]", "[scheduling]\nhandoff = \"move\"\n[budget]", "must be resume or readmit"),
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
