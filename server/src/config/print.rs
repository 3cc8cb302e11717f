//! The result of all layers: as TOML with origins for the operator, as JSON without secrets and paths for clients.

use std::fmt::Write;

use serde_json::{Map, Value as Json};
use toml::{Table, Value};

use super::Config;
use super::keys::{Form, Key, SECTIONS, Section};
use super::kind::Kind;
use super::layers::{Origin, Resolved};

impl Config {
    /// The configuration as TOML, every value with the place it came from behind it. Read again, it gives the same
    /// configuration, but for secrets, which are left out.
    pub fn to_toml(&self) -> String {
        let mut out = String::new();
        for section in SECTIONS {
            match (section.form, self.resolved.table.get(section.name)) {
                (Form::Top, _) => print(&mut out, section, None, &self.resolved.table, &self.resolved),
                (Form::Once, Some(Value::Table(table))) => {
                    print(&mut out, section, None, table, &self.resolved)
                }
                (Form::Many, Some(Value::Array(list))) => {
                    for (index, table) in list.iter().enumerate() {
                        if let Value::Table(table) = table {
                            print(&mut out, section, Some(index), table, &self.resolved);
                        }
                    }
                }
                _ => {}
            }
        }
        out
    }

    /// The configuration for clients: no secret, no path, nothing about downloads.
    pub fn to_json(&self) -> Json {
        let mut all = Map::new();
        for section in SECTIONS.iter().filter(|section| section.name != "hub") {
            match (section.form, self.resolved.table.get(section.name)) {
                (Form::Top, _) => {
                    for key in section.keys {
                        let value = self.resolved.table.get(key.name);
                        all.extend(value.and_then(json).map(|value| (key.name.to_owned(), value)));
                    }
                }
                (_, Some(Value::Table(table))) => {
                    all.insert(section.name.into(), public(section, table));
                }
                (_, Some(Value::Array(list))) => {
                    let list = list.iter().filter_map(Value::as_table).map(|table| public(section, table));
                    all.insert(section.name.into(), list.collect());
                }
                _ => {}
            }
        }
        Json::Object(all)
    }
}

fn public(section: &Section, table: &Table) -> Json {
    let shown = |name: &str| section.key(name).is_none_or(|key| !key.secret && key.kind != Kind::Path);
    let keys = table.iter().filter(|(name, _)| shown(name));
    Json::Object(keys.filter_map(|(name, value)| Some((name.clone(), json(value)?))).collect())
}

fn json(value: &Value) -> Option<Json> {
    serde_json::to_value(value).ok()
}

fn print(out: &mut String, section: &Section, index: Option<usize>, table: &Table, all: &Resolved) {
    if section.form != Form::Top {
        let _ = write!(out, "\n{}\n", section.heading());
    }
    let origin = |name: &str| {
        let path = match (section.form, index) {
            (Form::Top, _) => name.to_owned(),
            (_, None) => format!("{}.{name}", section.name),
            (_, Some(index)) => format!("{}.{index}.{name}", section.name),
        };
        all.origins.get(&path).cloned().unwrap_or_default()
    };
    for key in section.keys {
        print_key(out, key.name, Some(key), table.get(key.name), &origin(key.name));
    }
    // Parameters of a router.
    let further = table.iter().filter(|(name, _)| section.open && section.key(name).is_none());
    for (name, value) in further {
        print_key(out, name, None, Some(value), &origin(name));
    }
}

fn print_key(out: &mut String, name: &str, key: Option<&Key>, value: Option<&Value>, origin: &Origin) {
    // Writing to a String does not fail. An origin is a file's name, which may hold a line break.
    let origin = origin.to_string().replace(['\n', '\r'], " ");
    let _ = match value {
        None => writeln!(out, "# {name} is not set"),
        Some(value) if key.is_some_and(|key| key.secret) => {
            let count = value.as_array().map_or(1, Vec::len);
            writeln!(out, "# {name}: {count} set, not shown  # {origin}")
        }
        Some(value) => {
            let bare =
                !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
            let name = if bare { name.to_owned() } else { Value::String(name.into()).to_string() };
            writeln!(out, "{name} = {value}  # {origin}")
        }
    };
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{FileText, Overrides};
    use super::*;

    const FILE: &str = r#"
        [[model]]
        name = "small"
        path = "slm"
        [[model]]
        name = "large"
        repo = "a/b"
        price = 2
        [router]
        name = "r-stitch"
        threshold = 0.03
        "odd key" = [1, 2.5]
        [[route]]
        name = "other"
        router = "me"
        weights = [0.5, 0.5]
        [server]
        api_keys = ["sk-secret"]
        [hub]
        endpoint = "https://user:word@mirror"
    "#;

    fn config() -> Config {
        let environment = [("TOKENROUTER_SERVER_MAX_N".to_owned(), "4".to_owned())];
        let flags = Overrides::default().and("--tcp", "server.tcp", Some("127.0.0.1:1".into()));
        let file = FileText { name: "pair.toml", text: FILE, base: Path::new("/etc/pair") };
        Config::resolve(Some(file), &environment, &flags).expect("good")
    }

    #[test]
    fn the_print_names_every_origin_and_no_secret() {
        let text = config().to_toml();
        for line in [
            "device = \"cpu\"  # default",
            "path = \"/etc/pair/slm\"  # pair.toml",
            "price = 2  # pair.toml",
            "threshold = 0.03  # pair.toml",
            "\"odd key\" = [1, 2.5]  # pair.toml",
            "max_n = 4  # TOKENROUTER_SERVER_MAX_N",
            "tcp = \"127.0.0.1:1\"  # --tcp",
            "# api_keys: 1 set, not shown  # pair.toml",
            "# tls_key is not set",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is missing:\n{text}");
        }
        assert!(!text.contains("sk-secret"), "{text}");
    }

    #[test]
    fn the_print_read_again_prints_the_same() {
        let first = config();
        let second = Config::parse(&first.to_toml(), Path::new("/elsewhere")).expect("it is a configuration");
        let values = |config: &Config| {
            let text = config.to_toml();
            let lines = text
                .lines()
                .filter(|l| !l.starts_with('#'))
                .map(|l| l.split("  # ").next().unwrap_or(l).to_owned());
            lines.collect::<Vec<_>>()
        };
        assert_eq!(values(&first), values(&second));
    }

    #[test]
    fn clients_see_neither_secrets_nor_paths() {
        let json = config().to_json();
        let text = json.to_string();
        for hidden in ["sk-secret", "/etc/pair", "mirror", "api_keys", "path"] {
            assert!(!text.contains(hidden), "{hidden}: {text}");
        }
        assert_eq!(json["model"][1]["repo"], "a/b");
        assert_eq!(json["router"]["threshold"], 0.03);
        assert_eq!(json["server"]["max_n"], 4);
        assert_eq!(json["device"], "cpu");
    }
}
