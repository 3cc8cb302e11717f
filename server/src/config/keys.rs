//! What the configuration knows: sections and keys. The tables are in `table.rs`; the check of a file, the flags, the
//! variables, `--print-config` and `docs/configuration.md` all come from them.

use toml::{Table, Value};

use super::kind::Kind;
pub(crate) use super::table::SECTIONS;

/// One key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    /// Its name in the section.
    pub(crate) name: &'static str,
    /// What it may hold.
    pub(crate) kind: Kind,
    /// The value of a configuration that does not say, in TOML; empty: none.
    pub(crate) default: &'static str,
    /// What it does, one sentence or two.
    pub(crate) meaning: &'static str,
    /// A flag of `serve` that sets it, without the dashes; empty: none.
    pub(crate) flag: &'static str,
    /// Never printed.
    pub(crate) secret: bool,
    /// There is no configuration without it.
    pub(crate) required: bool,
}

impl Key {
    /// A key with a default.
    pub(super) const fn new(
        name: &'static str,
        kind: Kind,
        default: &'static str,
        meaning: &'static str,
    ) -> Self {
        Key { name, kind, default, meaning, flag: "", secret: false, required: false }
    }

    /// A key that may be absent.
    pub(super) const fn optional(name: &'static str, kind: Kind, meaning: &'static str) -> Self {
        Key::new(name, kind, "", meaning)
    }

    /// The same key, which must be there.
    pub(super) const fn required(self) -> Self {
        Key { required: true, ..self }
    }

    /// The same key with a flag.
    pub(super) const fn flag(self, flag: &'static str) -> Self {
        Key { flag, ..self }
    }

    /// The same key, never printed.
    pub(super) const fn secret(self) -> Self {
        Key { secret: true, ..self }
    }

    /// The default as a value.
    pub(crate) fn default_value(&self) -> Option<Value> {
        (!self.default.is_empty()).then(|| self.kind.read(self.default))
    }
}

/// How often a section stands in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Keys before the first section.
    Top,
    /// `[name]`, at most once.
    Once,
    /// `[[name]]`, any number of times, each with a `name` of its own.
    Many,
}

/// One section.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Section {
    /// Its name; empty for the keys before the first section.
    pub(crate) name: &'static str,
    /// How often it stands.
    pub(crate) form: Form,
    /// What it is about, for the reference.
    pub(crate) about: &'static str,
    /// Its keys.
    pub(crate) keys: &'static [Key],
    /// Whether it has further keys that somebody else checks (parameters of a router).
    pub(crate) open: bool,
}

impl Section {
    /// The section of a name.
    pub(crate) fn find(name: &str) -> Option<&'static Section> {
        SECTIONS.iter().find(|section| section.name == name)
    }

    /// The key of a name.
    pub(crate) fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.name == name)
    }

    /// The names of its keys.
    pub(crate) fn names(&self) -> Vec<&'static str> {
        self.keys.iter().map(|key| key.name).collect()
    }

    /// The section as a file writes it.
    pub(crate) fn heading(&self) -> String {
        match self.form {
            Form::Top => "the file".into(),
            Form::Once => format!("[{}]", self.name),
            Form::Many => format!("[[{}]]", self.name),
        }
    }
}

/// Names of the keys of a section.
pub(crate) fn names(section: &str) -> Vec<&'static str> {
    Section::find(section).map(Section::names).unwrap_or_default()
}

/// Refuses keys that no section knows and values that are out of range. The further keys of `[router]` and `[[route]]`
/// are checked by the router itself.
pub(super) fn check(table: &Table) -> Result<(), String> {
    let mut top = names("");
    top.extend(SECTIONS.iter().map(|section| section.name).filter(|name| !name.is_empty()));
    check_table("the file", table, &top)?;
    for section in SECTIONS {
        match (section.form, table.get(section.name)) {
            (Form::Top, _) => check_values(section, "", table)?,
            (_, None) => {}
            (Form::Once, Some(Value::Table(found))) => check_section(section, section.name, found)?,
            (Form::Many, Some(Value::Array(list))) => {
                for (index, found) in list.iter().enumerate() {
                    let found = found.as_table().ok_or_else(|| not_a_section(section))?;
                    check_section(section, &place(section, index, found), found)?;
                }
            }
            _ => return Err(not_a_section(section)),
        }
    }
    Ok(())
}

fn not_a_section(section: &Section) -> String {
    format!("\"{}\" must be a section, written {}", section.name, section.heading())
}

/// One of several sections as messages name it.
fn place(section: &Section, index: usize, table: &Table) -> String {
    match table.get("name").and_then(Value::as_str) {
        Some(name) => format!("{} \"{name}\"", section.name),
        None => format!("{} {index}", section.name),
    }
}

fn check_section(section: &Section, place: &str, table: &Table) -> Result<(), String> {
    if !section.open {
        check_table(&section.heading(), table, &section.names())?;
    }
    check_values(section, place, table)
}

fn check_values(section: &Section, place: &str, table: &Table) -> Result<(), String> {
    for key in section.keys {
        if let Some(value) = table.get(key.name) {
            check_value(key, &joined(section, place, key.name), value)?;
        }
    }
    Ok(())
}

/// `server.http`, `model "small": path`, `device`.
pub(super) fn joined(section: &Section, place: &str, key: &str) -> String {
    match section.form {
        Form::Top => key.to_owned(),
        Form::Once => format!("{place}.{key}"),
        Form::Many => format!("{place}: {key}"),
    }
}

/// Refuses a value of a key that messages call `name`.
pub(super) fn check_value(key: &Key, name: &str, value: &Value) -> Result<(), String> {
    if key.kind.accepts(value) {
        return Ok(());
    }
    let found = if key.secret { "a value that is not shown".to_owned() } else { value.to_string() };
    let hint = match (key.kind, value.as_str()) {
        (Kind::Word(words), Some(text)) => hint(text, words.iter().copied()),
        _ => String::new(),
    };
    Err(format!("{name} is {found}; it must be {}{hint}", key.kind.wanted()))
}

/// Refuses the first key of a section that is not `known`, with the nearest one that is.
pub(crate) fn check_table(place: &str, table: &Table, known: &[&str]) -> Result<(), String> {
    match table.keys().find(|key| !known.contains(&key.as_str())) {
        Some(key) => Err(unknown(key, place, known)),
        None => Ok(()),
    }
}

/// The refusal of a key that nobody knows.
pub(super) fn unknown(key: &str, place: &str, known: &[&str]) -> String {
    let hint = hint(key, known.iter().copied());
    format!("unknown key \"{key}\" in {place}{hint} (known keys: {})", known.join(", "))
}

/// The nearest known word, as a question.
fn hint<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> String {
    tokenrouter_scheduler::router::closest(word, known)
        .map(|near| format!("; did you mean \"{near}\"?"))
        .unwrap_or_default()
}
