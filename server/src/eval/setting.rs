//! What `eval` and `calibrate` run on: a deployment, prompts, and how many at a time.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tokenrouter_engine::heads::RouterFile;
use tokenrouter_scheduler::router::HeadKind;
use toml::Value;

use super::problems::{self, Problem};
use crate::config::{Config, RouteSection, RouterSection};
use crate::demo;

/// Flags of both commands.
#[derive(Clone, Debug, clap::Args)]
pub struct SettingArgs {
    /// The TOML file that describes the models and routers.
    #[arg(long, value_name = "FILE", required_unless_present = "demo", conflicts_with = "demo")]
    pub config: Option<PathBuf>,
    /// The demo pair, its problems, and the router files that lie beside it.
    #[arg(long)]
    pub demo: bool,
    /// Folder of the demo pair.
    #[arg(long, value_name = "DIR", requires = "demo")]
    pub models: Option<PathBuf>,
    /// Prompts: JSON lines {"prompt": "...", "answer": "..."}. The demo pair has its own.
    #[arg(long, value_name = "FILE", required_unless_present = "demo")]
    pub prompts: Option<PathBuf>,
    /// Only the first N prompts.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub problems: Option<u32>,
    /// One more router file for the first model; may be given several times.
    #[arg(long = "router-file", value_name = "DIR")]
    pub router_files: Vec<PathBuf>,
    /// Requests in flight.
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub concurrency: u32,
    /// Most tokens of an answer.
    #[arg(long, default_value_t = 256, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_tokens: u32,
    /// Give the prompts to the models as they are, without the chat template.
    #[arg(long)]
    pub raw: bool,
}

/// The deployment's configuration and the prompts.
pub(crate) struct Setting {
    pub(crate) config: Config,
    pub(crate) problems: Vec<Problem>,
}

impl SettingArgs {
    /// Reads the files. Every router file that was given becomes a route, named `KIND` or, when that is taken, after its
    /// folder.
    ///
    /// # Errors
    /// One line that names the file.
    pub(crate) fn load(&self) -> Result<Setting, String> {
        let mut config = match &self.config {
            Some(path) => Config::load(path)?,
            None => demo::config(self.models.as_deref())?,
        };
        // Both commands count the answers themselves: nothing may be refused because many wait.
        config.server.max_waiting = config.server.max_waiting.max(self.concurrency as usize);
        let prompts = self.prompts.clone().or_else(|| demo::problems(&config));
        let prompts = prompts.ok_or("--prompts is needed")?;
        let problems = problems::read(&prompts, self.problems.map(|n| n as usize))?;
        let beside = if self.demo { demo::router_files(&config) } else { Vec::new() };
        for file in self.router_files.iter().chain(&beside) {
            add_router(&mut config, file)?;
        }
        let RouterSection { name, file, params } = &mut config.router;
        default_threshold(name, file.as_deref(), params)?;
        for RouteSection { router, file, params, .. } in &mut config.routes {
            default_threshold(router, file.as_deref(), params)?;
        }
        Ok(Setting { config, problems })
    }
}

/// The route of a router file, unless the configuration has the same file already.
fn add_router(config: &mut Config, file: &PathBuf) -> Result<(), String> {
    if config.routed().any(|r| r.file == Some(file)) {
        return Ok(());
    }
    let about = RouterFile::load(file).map_err(|e| e.to_string())?;
    let kind = about.shape.kind();
    let mut section = blank(config, kind.name());
    if config.routed().any(|r| r.served == section.name) {
        section.name = format!("{} ({})", kind.name(), file.display());
    }
    section.file = Some(file.clone());
    config.routes.push(section);
    Ok(())
}

/// A learned router needs no threshold here: every run brings its own.
fn default_threshold(
    router: &str,
    file: Option<&Path>,
    params: &mut BTreeMap<String, Value>,
) -> Result<(), String> {
    let Some(file) = file.filter(|_| HeadKind::ALL.iter().any(|kind| kind.name() == router)) else {
        return Ok(());
    };
    if RouterFile::load(file).map_err(|e| e.to_string())?.threshold.is_none() {
        params.entry("threshold".into()).or_insert(Value::String("never".into()));
    }
    Ok(())
}

/// A route of `router` between the first and the last model, under the router's name.
pub(crate) fn blank(config: &Config, router: &str) -> RouteSection {
    let mut section = RouteSection {
        name: router.to_owned(),
        router: router.to_owned(),
        file: None,
        params: Default::default(),
    };
    let has_peer =
        ["r-stitch", "query", "fixed"].contains(&router) || HeadKind::ALL.iter().any(|k| k.name() == router);
    if has_peer {
        section.params.insert("peer".into(), Value::Integer(config.models.len() as i64 - 1));
    }
    section
}
