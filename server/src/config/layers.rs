//! Flags over environment over file over defaults, and for every value where it came from.

use std::collections::BTreeMap;
use std::path::Path;

use toml::{Table, Value};

use super::keys::{self, Form, Key, SECTIONS, Section};
use super::kind::Kind;
use super::overrides::{Given, Raw};
use super::variables;

/// Where a value came from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Nobody said anything.
    #[default]
    Default,
    /// The file.
    File(String),
    /// A variable of the environment.
    Variable(String),
    /// A flag.
    Flag(String),
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File(name) | Origin::Variable(name) | Origin::Flag(name) => f.write_str(name),
        }
    }
}

impl Origin {
    /// Who wins: the higher one.
    fn rank(&self) -> u8 {
        match self {
            Origin::Default => 0,
            Origin::File(_) => 1,
            Origin::Variable(_) => 2,
            Origin::Flag(_) => 3,
        }
    }
}

/// A refusal: the key as [`Resolved::origins`] has it, and what is wrong.
pub(crate) struct Problem {
    pub(crate) at: String,
    pub(crate) text: String,
}

impl Problem {
    pub(crate) fn at(key: impl Into<String>) -> impl FnOnce(String) -> Problem {
        let at = key.into();
        move |text| Problem { at, text }
    }
}

/// All values of a configuration with their origins.
#[derive(Clone, Debug, Default)]
pub(crate) struct Resolved {
    /// Sections and keys, defaults filled in.
    pub(crate) table: Table,
    /// By `section.key`, `model.0.key` or, before the first section, `key`.
    pub(crate) origins: BTreeMap<String, Origin>,
    /// What the operator should know, though nothing is refused.
    pub(crate) warnings: Vec<String>,
    /// The name of the file, when there is one.
    file: Option<String>,
}

/// The text of a file, what it is called, and where its relative paths start.
#[derive(Clone, Copy, Debug)]
pub struct FileText<'a> {
    /// The name in messages; empty: none.
    pub name: &'a str,
    /// The TOML text.
    pub text: &'a str,
    /// The folder of its relative paths.
    pub base: &'a Path,
}

/// One place for a value.
pub(super) struct Target {
    section: &'static Section,
    /// Which of several sections.
    index: Option<usize>,
    key: String,
}

impl Target {
    pub(super) fn new(section: &'static Section, index: Option<usize>, key: &str) -> Self {
        Target { section, index, key: key.into() }
    }

    /// The key in [`Resolved::origins`].
    fn path(&self) -> String {
        match (self.section.form, self.index) {
            (Form::Top, _) => self.key.clone(),
            (_, None) => format!("{}.{}", self.section.name, self.key),
            (_, Some(index)) => format!("{}.{index}.{}", self.section.name, self.key),
        }
    }

    /// The key that says the same thing in another way: what wins, wins over both.
    fn rival(&self) -> Option<Target> {
        let other = match self.key.as_str() {
            "path" => "repo",
            "repo" => "path",
            _ => return None,
        };
        (self.section.name == "model").then(|| Target::new(self.section, self.index, other))
    }

    fn kind(&self) -> Kind {
        self.section.key(&self.key).map_or(Kind::Other("anything that the router reads"), |key| key.kind)
    }
}

impl Resolved {
    /// Puts the layers on each other. `environment` are names and values; `flags` win over it.
    ///
    /// # Errors
    /// One line that names file, variable or flag, and the key.
    pub(super) fn new(
        file: Option<FileText<'_>>,
        environment: &[(String, String)],
        flags: &[Given],
    ) -> Result<Self, String> {
        let mut all = Resolved::default();
        if let Some(file) = file {
            all.add_file(file)?;
        }
        // Models first: other flags and variables may speak of them.
        let (models, others): (Vec<&Given>, Vec<&Given>) =
            flags.iter().partition(|given| given.key == "model");
        for given in models {
            all.add_model(given)?;
        }
        variables::add(&mut all, environment)?;
        for given in others {
            all.add_flag(given)?;
        }
        all.add_router();
        all.add_defaults();
        Ok(all)
    }

    /// Text of a problem, with the place that it came from in front.
    pub(super) fn refusal(&self, problem: &Problem) -> String {
        let origin = self.origins.get(&problem.at).filter(|origin| **origin != Origin::Default);
        match (origin.map(ToString::to_string).or_else(|| self.file.clone()), &problem.text) {
            (Some(place), text) if !place.is_empty() => format!("{place}: {text}"),
            (_, text) => text.clone(),
        }
    }

    /// How many sections of this name there are, and their names.
    pub(super) fn sections(&self, name: &str) -> Vec<String> {
        let list = self.table.get(name).and_then(Value::as_array);
        let name = |v: &Value| v.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        list.map(|list| list.iter().map(name).collect()).unwrap_or_default()
    }

    fn add_file(&mut self, file: FileText<'_>) -> Result<(), String> {
        self.file = Some(file.name.to_owned());
        let fail = |text: String| if file.name.is_empty() { text } else { format!("{}: {text}", file.name) };
        let table: Table = toml::from_str(file.text).map_err(|e| fail(e.to_string()))?;
        keys::check(&table).map_err(fail)?;
        for section in SECTIONS {
            match (section.form, table.get(section.name)) {
                (Form::Top, _) => {
                    let keys = table.iter().filter(|(key, _)| section.key(key).is_some());
                    keys.for_each(|(key, value)| self.put_from_file(section, None, key, value, &file));
                }
                (Form::Once, Some(Value::Table(found))) => {
                    self.table.entry(section.name).or_insert_with(|| Value::Table(Table::new()));
                    found
                        .iter()
                        .for_each(|(key, value)| self.put_from_file(section, None, key, value, &file));
                }
                (Form::Many, Some(Value::Array(list))) => {
                    for (index, found) in list.iter().enumerate() {
                        self.new_section(section.name);
                        for (key, value) in found.as_table().into_iter().flatten() {
                            self.put_from_file(section, Some(index), key, value, &file);
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn put_from_file(
        &mut self,
        section: &'static Section,
        index: Option<usize>,
        key: &str,
        value: &Value,
        file: &FileText<'_>,
    ) {
        let target = Target::new(section, index, key);
        let value = match (target.kind(), value.as_str()) {
            (Kind::Path, Some(path)) => Value::String(file.base.join(path).display().to_string()),
            _ => value.clone(),
        };
        self.put(&target, value, Origin::File(file.name.to_owned()));
    }

    /// One more section of several; its index.
    fn new_section(&mut self, name: &str) -> usize {
        let list = self.table.entry(name).or_insert_with(|| Value::Array(Vec::new()));
        let Value::Array(list) = list else { return 0 };
        list.push(Value::Table(Table::new()));
        list.len() - 1
    }

    fn put(&mut self, target: &Target, value: Value, origin: Origin) {
        let path = target.path();
        let place = match (target.section.form, target.index) {
            (Form::Top, _) => Some(&mut self.table),
            (_, None) => {
                let section =
                    self.table.entry(target.section.name).or_insert_with(|| Value::Table(Table::new()));
                section.as_table_mut()
            }
            (_, Some(index)) => {
                let list = self.table.get_mut(target.section.name).and_then(Value::as_array_mut);
                list.and_then(|list| list.get_mut(index)).and_then(Value::as_table_mut)
            }
        };
        if let Some(table) = place {
            table.insert(target.key.clone(), value);
            self.origins.insert(path, origin);
        }
    }

    /// Puts a value from the environment or a flag in its place, checked.
    pub(super) fn over(&mut self, target: &Target, raw: &Raw, origin: Origin) -> Result<(), String> {
        let value = match raw {
            Raw::One(text) => target.kind().read(text),
            Raw::List(list) => Value::Array(list.iter().map(|text| Value::String(text.clone())).collect()),
        };
        if let Some(key) = target.section.key(&target.key) {
            let place = match target.index {
                Some(index) => {
                    let names = self.sections(target.section.name);
                    format!("{} \"{}\"", target.section.name, names.get(index).map_or("", String::as_str))
                }
                None => target.section.name.to_owned(),
            };
            let name = keys::joined(target.section, &place, key.name);
            keys::check_value(key, &name, &value).map_err(|text| format!("{origin}: {text}"))?;
        }
        let mine = origin.rank();
        let theirs = |target: &Target| self.origins.get(&target.path()).map_or(0, Origin::rank);
        let rival = target.rival();
        if theirs(target).max(rival.as_ref().map_or(0, theirs)) > mine {
            return Ok(());
        }
        if let Some(rival) = rival.filter(|rival| theirs(rival) < mine) {
            self.remove(&rival);
        }
        self.put(target, value, origin);
        Ok(())
    }

    fn remove(&mut self, target: &Target) {
        let list = self.table.get_mut(target.section.name).and_then(Value::as_array_mut);
        let section = target.index.and_then(|index| list?.get_mut(index)).and_then(Value::as_table_mut);
        section.map(|table| table.remove(&target.key));
        self.origins.remove(&target.path());
    }

    /// `--model NAME=PATH_OR_REPO`: another place for a model of the file, or one more model.
    fn add_model(&mut self, given: &Given) -> Result<(), String> {
        let Raw::One(text) = &given.value else { return Ok(()) };
        let named = text.split_once('=').filter(|(name, _)| !name.contains(['/', '\\']));
        let (name, place) = match named {
            Some((name, place)) => (name.trim(), place.trim()),
            None => (last_part(text), text.trim()),
        };
        if name.is_empty() || place.is_empty() {
            return Err(format!("--model is \"{text}\"; it must be NAME=FOLDER or NAME=ORG/REPOSITORY"));
        }
        let Some(section) = Section::find("model") else { return Ok(()) };
        let index = self.sections("model").iter().position(|known| known == name);
        let index = index.unwrap_or_else(|| self.new_section("model"));
        let origin = Origin::Flag(given.flag.clone());
        self.put(&Target::new(section, Some(index), "name"), Value::String(name.into()), origin.clone());
        let key = if is_repo(place) { "repo" } else { "path" };
        self.over(&Target::new(section, Some(index), key), &Raw::One(place.into()), origin)
    }

    fn add_flag(&mut self, given: &Given) -> Result<(), String> {
        let origin = Origin::Flag(given.flag.clone());
        if given.key == "host" || given.key == "port" {
            return self.add_address(given, origin);
        }
        let target = self.target(&given.key).map_err(|text| format!("{}: {text}", given.flag))?;
        self.over(&target, &given.value, origin)
    }

    /// `--host` and `--port` change their half of `server.http`.
    fn add_address(&mut self, given: &Given, origin: Origin) -> Result<(), String> {
        let Raw::One(text) = &given.value else { return Ok(()) };
        let target = self.target("server.http")?;
        let known = self.table.get("server").and_then(|s| s.get("http")).and_then(Value::as_str);
        let default = || target.section.key("http").map_or("", |key| key.default);
        let mut address: std::net::SocketAddr = known
            .unwrap_or_else(default)
            .parse()
            .map_err(|_| format!("{origin}: server.http is no address"))?;
        let refused = |wanted: &str| format!("{origin} is \"{text}\"; it must be {wanted}");
        match given.key.as_str() {
            "port" => address.set_port(text.parse().map_err(|_| refused("a number from 0 to 65535"))?),
            _ => {
                let host = text.trim_start_matches('[').trim_end_matches(']');
                let host = if host == "localhost" { "127.0.0.1" } else { host };
                address.set_ip(
                    host.parse()
                        .map_err(|_| refused("an IP address like \"0.0.0.0\", \"::\" or localhost"))?,
                );
            }
        }
        self.over(&target, &Raw::One(address.to_string()), origin)
    }

    /// The place that `section.key`, `model.NAME.key` or a key before the first section names.
    pub(super) fn target(&self, path: &str) -> Result<Target, String> {
        let top = Section::find("").filter(|section| section.key(path).is_some());
        if let Some(section) = top {
            return Ok(Target::new(section, None, path));
        }
        let unknown = |name: &str| {
            let mut known = keys::names("");
            known.extend(SECTIONS.iter().map(|s| s.name).filter(|n| !n.is_empty()));
            keys::unknown(name, "the configuration", &known)
        };
        let (name, rest) = path.split_once('.').ok_or_else(|| unknown(path))?;
        let section = Section::find(name).filter(|s| s.form != Form::Top).ok_or_else(|| unknown(name))?;
        let (index, key) = match section.form {
            Form::Many => {
                let shape = || format!("\"{path}\" must be {name}.NAME.KEY");
                let (which, key) = rest.rsplit_once('.').ok_or_else(shape)?;
                let names = self.sections(name);
                let by_name = names.iter().position(|known| known == which);
                let by_number = || which.parse::<usize>().ok().filter(|&index| index < names.len());
                let missing = || format!("there is no {name} \"{which}\" (known: {})", names.join(", "));
                (Some(by_name.or_else(by_number).ok_or_else(missing)?), key)
            }
            _ => (None, rest),
        };
        if !section.open && section.key(key).is_none() {
            return Err(keys::unknown(key, &section.heading(), &section.names()));
        }
        Ok(Target::new(section, index, key))
    }

    /// A deployment of one model says nothing about routing: that model writes everything.
    fn add_router(&mut self) {
        if self.table.contains_key("router") || self.sections("model").len() != 1 {
            return;
        }
        if let Some(section) = Section::find("router") {
            self.put(&Target::new(section, None, "name"), Value::String("single".into()), Origin::Default);
            self.put(&Target::new(section, None, "model"), Value::Integer(0), Origin::Default);
        }
    }

    fn add_defaults(&mut self) {
        for section in SECTIONS {
            let places: Vec<Option<usize>> = match section.form {
                Form::Many => (0..self.sections(section.name).len()).map(Some).collect(),
                _ => vec![None],
            };
            for index in places {
                section.keys.iter().for_each(|key| self.add_default(section, index, key));
            }
        }
    }

    fn add_default(&mut self, section: &'static Section, index: Option<usize>, key: &Key) {
        let target = Target::new(section, index, key.name);
        if !self.origins.contains_key(&target.path())
            && let Some(value) = key.default_value()
        {
            self.put(&target, value, Origin::Default);
        }
    }

    /// Keys that must be there.
    pub(super) fn check_required(&self) -> Result<(), Problem> {
        for section in SECTIONS {
            let required = || section.keys.iter().filter(|key| key.required);
            match (section.form, self.table.get(section.name)) {
                (Form::Once, Some(Value::Table(found))) => {
                    if let Some(key) = required().find(|key| !found.contains_key(key.name)) {
                        let name = format!("{}.{}", section.name, key.name);
                        return Err(Problem { text: format!("{name} is missing"), at: name });
                    }
                }
                (Form::Many, Some(Value::Array(list))) => {
                    for (index, found) in list.iter().enumerate() {
                        if let Some(key) = required().find(|key| found.get(key.name).is_none()) {
                            let text = format!("{} {index}: {} is missing", section.name, key.name);
                            return Err(Problem { text, at: String::new() });
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The last part of a folder or of a repository's name.
fn last_part(text: &str) -> &str {
    text.trim().trim_end_matches('/').rsplit('/').next().unwrap_or_default()
}

/// Whether a text names a repository: `org/name`, and no folder of that name is here.
fn is_repo(text: &str) -> bool {
    crate::sources::is_repo_name(text) && !Path::new(text).exists()
}
