//! A configuration with other scheduling, placement and routes, as the text of a file.

use std::path::Path;

use tokenrouter_engine::heads::RouterFile;
use tokenrouter_scheduler::router::HeadKind;
use toml::{Table, Value};

use crate::config::{AUTO, Config, RouteSection};
use crate::eval::blank;
use crate::simulate::parse_policy;

/// What is different.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Change {
    /// As `tokenrouter simulate --policy` has it.
    pub(super) policy: Option<String>,
    /// `resume` or `readmit`.
    pub(super) handoff: Option<String>,
    /// Devices of each model.
    pub(super) devices: Option<Vec<Vec<u16>>>,
}

/// The text of the file: `config` under `change`, with further routes, on a free port of this machine alone.
///
/// # Errors
/// What is wrong with the policy, or with the whole.
pub(super) fn file(
    config: &Config,
    change: &Change,
    routes: &[RouteSection],
    clients: u32,
) -> Result<String, String> {
    let mut table: Table = toml::from_str(&config.to_toml()).map_err(|e| e.to_string())?;
    if let Some(policy) = &change.policy {
        set_policy(section(&mut table, "scheduling"), policy)
            .map_err(|e| format!("--policy {policy}: {e}"))?;
    }
    if let Some(handoff) = &change.handoff {
        section(&mut table, "scheduling").insert("handoff".into(), handoff.clone().into());
    }
    if let Some(devices) = &change.devices {
        let models = table.get_mut("model").and_then(Value::as_array_mut);
        for (model, devices) in models.into_iter().flatten().zip(devices) {
            let list = devices.iter().map(|d| Value::Integer(i64::from(*d))).collect();
            if let Value::Table(model) = model {
                model.insert("devices".into(), Value::Array(list));
            }
        }
    }
    let server = section(&mut table, "server");
    server.insert("http".into(), "127.0.0.1:0".into());
    // Its client speaks neither TLS nor raw TCP, and is alone.
    for key in ["tcp", "tls_cert", "tls_key", "api_keys", "api_key_file"] {
        server.remove(key);
    }
    let waiting = server.get("max_waiting").and_then(Value::as_integer).unwrap_or(0);
    server.insert("max_waiting".into(), waiting.max(i64::from(clients)).into());
    if !routes.is_empty() {
        let list = table.entry("route").or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(list) = list {
            list.extend(routes.iter().map(|route| Value::Table(table_of(route))));
        }
    }
    make_absolute(&mut table)?;
    let text = table.to_string();
    Config::parse(&text, Path::new(""))?;
    Ok(text)
}

fn section<'a>(table: &'a mut Table, name: &str) -> &'a mut Table {
    let entry = table.entry(name).or_insert_with(|| Value::Table(Table::new()));
    if !entry.is_table() {
        *entry = Value::Table(Table::new());
    }
    match entry {
        Value::Table(table) => table,
        _ => unreachable!("it was made a table in the line above"),
    }
}

/// The file lies in another folder than the user's.
fn make_absolute(table: &mut Table) -> Result<(), String> {
    let absolute = |value: Option<&mut Value>| -> Result<(), String> {
        if let Some(Value::String(path)) = value.filter(|v| v.as_str().is_some_and(|p| !p.is_empty())) {
            let full = std::path::absolute(&*path).map_err(|e| format!("{path}: {e}"))?;
            *path = full.display().to_string();
        }
        Ok(())
    };
    for (list, key) in [("model", "path"), ("route", "file")] {
        for entry in table.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            absolute(entry.get_mut(key))?;
        }
    }
    for (name, key) in [("router", "file"), ("chat", "template"), ("hub", "cache")] {
        absolute(table.get_mut(name).and_then(|section| section.get_mut(key)))?;
    }
    Ok(())
}

/// `NAME`, `NAME=N` or `NAME=B,H` in the keys of `[scheduling]`.
fn set_policy(scheduling: &mut Table, text: &str) -> Result<(), String> {
    for key in ["threshold", "beside", "alpha", "p99_inter_token_ms"] {
        scheduling.remove(key);
    }
    if text != AUTO {
        parse_policy(text)?;
    }
    let (name, numbers) = text.split_once('=').map_or((text, None), |(name, numbers)| (name, Some(numbers)));
    let name = name.trim();
    scheduling.insert("policy".into(), name.into());
    let keys: &[&str] = if name == "lookahead" { &["alpha"] } else { &["threshold", "beside"] };
    for (key, number) in keys.iter().zip(numbers.into_iter().flat_map(|n| n.split(','))) {
        let value: Value = match number.trim().parse::<i64>() {
            Ok(whole) if *key != "alpha" => whole.into(),
            _ => number.trim().parse::<f64>().map_err(|_| format!("{number:?} is no number"))?.into(),
        };
        scheduling.insert((*key).into(), value);
    }
    Ok(())
}

fn table_of(route: &RouteSection) -> Table {
    let mut table = Table::new();
    table.insert("name".into(), route.name.clone().into());
    table.insert("router".into(), route.router.clone().into());
    if let Some(file) = &route.file {
        table.insert("file".into(), file.display().to_string().into());
    }
    table.extend(route.params.iter().map(|(key, value)| (key.clone(), value.clone())));
    table
}

/// The `[[route]]` of a router that needs no training, or of one with a file; `value` is its share, weight or threshold.
///
/// # Errors
/// When it needs a file, or a value of another kind.
pub(super) fn route(
    config: &Config,
    router: &str,
    value: Option<f64>,
    file: Option<&Path>,
) -> Result<RouteSection, String> {
    let mut section = blank(config, router);
    let mut put = |key: &str, value: Value| {
        section.params.insert(key.into(), value);
    };
    match router {
        "fixed" => put("fraction", value.unwrap_or(0.5).into()),
        "query" => put("fraction", value.unwrap_or(0.5).into()),
        "me" => {
            let share = value.unwrap_or(0.5);
            if !(share > 0.0 && share < 1.0) {
                return Err(format!(
                    "--router me={share}; a weight of the last model between 0 and 1 is needed"
                ));
            }
            let mut weights = vec![0.0; config.models.len()];
            if let [first, .., last] = weights.as_mut_slice() {
                (*first, *last) = (1.0 - share, share);
            }
            put("weights", Value::Array(weights.into_iter().map(Value::Float).collect()));
            put("draw_at_admission", true.into());
        }
        "r-stitch" => put("threshold", value.map_or("never".into(), Value::Float)),
        learned if HeadKind::ALL.iter().any(|kind| kind.name() == learned) => {
            let Some(file) = file else {
                return Err(format!(
                    "--router {router} needs a router file; give its folder with --router-file"
                ));
            };
            section.file = Some(file.to_owned());
            match value {
                Some(value) => drop(section.params.insert("threshold".into(), value.into())),
                // The file's own; one that has none needs a number here.
                None if RouterFile::load(file).map_err(|e| e.to_string())?.threshold.is_none() => {
                    return Err(format!("--router {router} needs a threshold, as in {router}=0.5"));
                }
                None => {}
            }
        }
        other => {
            return Err(format!(
                "--router {other}: a route of the configuration or a known router is needed"
            ));
        }
    }
    Ok(section)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAIR: &str = "[[model]]\nname = \"a\"\npath = \"a\"\n[[model]]\nname = \"b\"\npath = \"/b\"\n\
                        [router]\nname = \"r-stitch\"\nthreshold = 0.03\n[scheduling]\npolicy = \"threshold\"\n\
                        threshold = 4\n[server]\ntcp = \"127.0.0.1:1\"\napi_keys = [\"secret\"]\n";

    fn pair() -> Config {
        Config::parse(PAIR, Path::new("")).expect("a pair")
    }

    fn edited(change: &Change) -> Result<Config, String> {
        file(&pair(), change, &[], 8).and_then(|text| Config::parse(&text, Path::new("/elsewhere")))
    }

    #[test]
    fn a_policy_replaces_the_files_with_all_its_keys() {
        let with = |policy: &str| {
            edited(&Change { policy: Some(policy.into()), ..Change::default() }).map(|c| c.scheduling)
        };
        let eager = with("eager").expect("no threshold is left over");
        assert_eq!((eager.policy.as_str(), eager.threshold), ("eager", None));
        let hold = with("threshold+hold=5,2").expect("two numbers");
        assert_eq!((hold.threshold, hold.beside), (Some(5.into()), Some(2.into())));
        assert_eq!(with("lookahead=1.5").expect("a weight").alpha, Some(1.5));
        assert_eq!(with("auto").expect("it plans").policy, "auto");
        for (policy, why) in
            [("eagr", "did you mean"), ("threshold=0", "at least 1"), ("step-sync=2", "read")]
        {
            let error = with(policy).expect_err(policy);
            assert!(error.starts_with(&format!("--policy {policy}: ")) && error.contains(why), "{error}");
        }
    }

    #[test]
    fn the_copy_serves_this_machine_alone_and_finds_its_models() {
        let change = Change {
            handoff: Some("readmit".into()),
            devices: Some(vec![vec![0], vec![0, 1]]),
            ..Change::default()
        };
        let copy = edited(&change).expect("good");
        assert!(copy.models[0].path.is_absolute() && !copy.models[0].path.starts_with("/elsewhere"));
        assert_eq!((copy.models[1].path.as_path(), &copy.models[1].devices), (Path::new("/b"), &vec![0, 1]));
        assert_eq!((copy.server.http.port(), copy.server.tcp, copy.server.api_keys.len()), (0, None, 0));
        assert_eq!(copy.scheduling.handoff, "readmit");
        assert!(edited(&Change { handoff: Some("move".into()), ..Change::default() }).is_err());
        let many = file(&pair(), &Change::default(), &[], 5000).expect("good");
        assert!(many.contains("max_waiting = 5000"), "{many}");
    }

    #[test]
    fn routers_become_routes() {
        let added = |router: &str, value: Option<f64>| route(&pair(), router, value, None);
        for (router, value) in
            [("fixed", Some(0.35)), ("me", Some(0.2)), ("query", None), ("r-stitch", Some(0.1))]
        {
            let mut section = added(router, value).expect(router);
            section.name = format!("bench {router}");
            file(&pair(), &Change::default(), &[section], 1).expect(router);
        }
        // A router file of the flags is named from where the user is, not from where the copy lies.
        let learned = route(&pair(), "r2r", Some(0.5), Some(Path::new("routers/r2r"))).expect("a file");
        let text = file(&pair(), &Change::default(), &[learned], 1).expect("good");
        let copy = Config::parse(&text, Path::new("/elsewhere")).expect("good");
        let here = std::path::absolute("routers/r2r").expect("a folder");
        assert_eq!(copy.routes[0].file.as_deref(), Some(here.as_path()));
        assert!(added("r2r", None).expect_err("no file").contains("--router-file"));
        assert!(added("me", Some(1.0)).is_err() && added("r2d2", None).is_err());
    }
}
