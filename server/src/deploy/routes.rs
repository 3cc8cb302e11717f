//! From the sections `[router]` and `[[route]]` to the engine's routes and the entry model's heads.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tokenrouter_engine::RouteConfig;
use tokenrouter_engine::heads::RouterFile;
use tokenrouter_scheduler::MAX_HEADS;
use tokenrouter_scheduler::router::{HeadKind, ParamValue, Registry};

use crate::config::{Config, Routed, param};

/// The router files, which score the entry model's tokens (the index is the head's), and the routes: every routed name, then
/// every model alone under its own.
///
/// # Errors
/// One line that names the key.
pub(super) fn build(config: &Config) -> Result<(Vec<PathBuf>, Vec<RouteConfig>), String> {
    let mut heads: Vec<PathBuf> = Vec::new();
    let mut routes = Vec::new();
    for routed in config.routed() {
        routes.push(route(config, &routed, &mut heads)?);
    }
    // `query` can do without.
    let learned = |router: &str| HeadKind::OF_TOKENS.iter().any(|kind| kind.name() == router);
    if let Some(routed) = config.routed().find(|r| heads.is_empty() && learned(r.router)) {
        let key = routed.key("file");
        return Err(format!("{key} is missing: router \"{}\" reads a learned head", routed.router));
    }
    for (index, model) in config.models.iter().enumerate() {
        routes.push(RouteConfig {
            name: model.name.clone(),
            router: "single".into(),
            params: BTreeMap::from([("model".into(), ParamValue::Int(index as i64))]),
        });
    }
    Ok((heads, routes))
}

fn route(config: &Config, routed: &Routed<'_>, heads: &mut Vec<PathBuf>) -> Result<RouteConfig, String> {
    let models: Vec<&str> = config.models.iter().map(|m| m.name.as_str()).collect();
    let mut params = BTreeMap::new();
    for (key, value) in routed.params {
        params.insert(key.clone(), param(&models, key, &routed.key(key), value)?);
    }
    if let Some(file) = routed.file {
        if params.contains_key("head") {
            return Err(format!("{} and `head` exclude each other: a file is a head", routed.key("file")));
        }
        check_kind(routed, file)?;
        let head = add(heads, file, routed)?;
        // Head 0 is what a router reads that says nothing, also one from outside that has no such parameter; `query` must
        // be told that a head chooses.
        if head > 0 || routed.router == HeadKind::Query.name() {
            params.insert("head".into(), ParamValue::Int(head as i64));
        }
    }
    Ok(RouteConfig { name: routed.served.to_owned(), router: routed.router.to_owned(), params })
}

/// The index of the head that `file` is. A file that several routes name is loaded once.
fn add(heads: &mut Vec<PathBuf>, file: &PathBuf, routed: &Routed<'_>) -> Result<usize, String> {
    if let Some(index) = heads.iter().position(|h| h == file) {
        return Ok(index);
    }
    if heads.len() == MAX_HEADS {
        return Err(format!(
            "{}: at most {MAX_HEADS} different router files are supported",
            routed.key("file")
        ));
    }
    heads.push(file.clone());
    Ok(heads.len() - 1)
}

/// The file's kind must fit the router; a router from outside reads what it likes.
fn check_kind(routed: &Routed<'_>, file: &std::path::Path) -> Result<(), String> {
    let key = routed.key("file");
    let wanted = HeadKind::ALL.into_iter().find(|kind| kind.name() == routed.router);
    if wanted.is_none() && Registry::builtin().names().any(|name| name == routed.router) {
        let known = HeadKind::ALL.map(HeadKind::name).join(", ");
        return Err(format!(
            "{key}: router \"{}\" reads no router file (those that do: {known})",
            routed.router
        ));
    }
    let found = RouterFile::load(file).map_err(|e| format!("{key}: {e}"))?.shape.kind();
    match wanted {
        Some(kind) if kind != found => Err(format!(
            "{key}: {} holds a head of kind \"{}\", but router \"{}\" needs one of its own kind",
            file.display(),
            found.name(),
            kind.name()
        )),
        _ => Ok(()),
    }
}
