//! Chat templates: Jinja as Hugging Face checkpoints use it, compiled at load.

use crate::text::methods;
use crate::text::python::{self, JsonStyle};
use crate::text::tokenizer::{TOKEN_VARIABLES, token_text};
use crate::text::{ChatOptions, TextError};
use minijinja::value::{Kwargs, Value as JinjaValue};
use minijinja::{Environment, Error, ErrorKind};
use serde_json::{Map, Value};
use std::fmt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// The compiled templates of one checkpoint; perhaps none.
pub(crate) struct ChatTemplate {
    environment: Environment<'static>,
    sources: String,
    tokens: Map<String, Value>,
}

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";
/// Longest template that a request may bring, in bytes.
const MAX_SOURCE: usize = 64 << 10;
/// Instructions that one rendering may take: a thousand for each of the most messages a chat may have, and an end to
/// loops in loops.
const FUEL: u64 = 5_000_000;

impl ChatTemplate {
    /// Finds and compiles the templates of a checkpoint folder: the file `instead` where there is one, else
    /// `chat_template.jinja`, else `chat_template` of `tokenizer_config.json`, a string or a list of objects with
    /// `name` and `template`.
    pub(crate) fn load(
        dir: &Path,
        config: &Map<String, Value>,
        instead: Option<&Path>,
    ) -> Result<Self, TextError> {
        let file = instead.map_or_else(|| dir.join("chat_template.jinja"), Path::to_owned);
        let (path, named) = match std::fs::read_to_string(&file) {
            Ok(source) => (file, vec![(DEFAULT.to_owned(), source)]),
            Err(e) if instead.is_none() && e.kind() == std::io::ErrorKind::NotFound => {
                let path = dir.join("tokenizer_config.json");
                let named = named_templates(config).map_err(|problem| TextError::file(&path, problem))?;
                (path, named)
            }
            Err(e) => return Err(TextError::file(&file, e)),
        };
        let mut template = Self { environment: environment(), sources: String::new(), tokens: Map::new() };
        for (name, source) in named {
            template.add(name, &source).map_err(|problem| TextError::file(&path, problem))?;
        }
        for name in TOKEN_VARIABLES {
            if let Some(text) = token_text(config, name) {
                template.tokens.insert(name.to_owned(), Value::String(text));
            }
        }
        Ok(template)
    }

    fn add(&mut self, name: String, source: &str) -> Result<(), String> {
        self.sources.push_str(source);
        self.environment.add_template_owned(name.clone(), plain_generation_blocks(source)).map_err(|error| {
            let line = error.line().map_or(String::new(), |line| format!(", line {line}"));
            format!("chat template `{name}`{line}: {}", describe(&error))
        })
    }

    /// Whether there is no template at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.environment.templates().next().is_none()
    }

    /// The source text of all templates together.
    pub(crate) fn sources(&self) -> &str {
        &self.sources
    }

    /// Renders a chat.
    pub(crate) fn render(&self, messages: &Value, options: &ChatOptions) -> Result<String, TextError> {
        let source;
        let template = match &options.template {
            Some(name) if self.environment.get_template(name).is_ok() => self.environment.get_template(name),
            Some(text) if text.len() > MAX_SOURCE => return Err(TextError::Template("is too long".into())),
            Some(text) => {
                source = plain_generation_blocks(text);
                let compiled = self.environment.template_from_named_str("chat_template", &source);
                Ok(compiled.map_err(|error| TextError::Template(located(&error)))?)
            }
            None => {
                let wanted = if options.tools.is_some() { TOOL_USE } else { DEFAULT };
                self.environment.get_template(wanted).or_else(|_| self.environment.get_template(DEFAULT))
            }
        };
        let template = template.map_err(|_| TextError::NoTemplate)?;
        // As in transformers: `chat_template_kwargs` win over the token variables, the fixed names over both.
        let mut context = self.tokens.clone();
        context.extend(options.kwargs.clone());
        context.insert("messages".into(), messages.clone());
        context.insert("tools".into(), options.tools.clone().unwrap_or(Value::Null));
        context.insert("documents".into(), options.documents.clone().unwrap_or(Value::Null));
        context.insert("add_generation_prompt".into(), options.add_generation_prompt.into());
        template.render(JinjaValue::from_serialize(context)).map_err(|error| render_error(&error))
    }
}

/// The templates in `tokenizer_config.json`, by name.
fn named_templates(config: &Map<String, Value>) -> Result<Vec<(String, String)>, String> {
    const SHAPE: &str = "chat_template must be a string or a list of objects with `name` and `template`";
    match config.get("chat_template") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::String(source)) => Ok(vec![(DEFAULT.to_owned(), source.clone())]),
        Some(Value::Array(items)) => items
            .iter()
            .map(|item| {
                let text = |key| item.get(key).and_then(Value::as_str).map(str::to_owned);
                text("name").zip(text("template")).ok_or_else(|| SHAPE.to_owned())
            })
            .collect(),
        Some(_) => Err(SHAPE.to_owned()),
    }
}

/// Jinja with the settings and functions that `transformers` gives templates.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(methods::unknown_method);
    environment.set_formatter(|out, state, value| match python::repr(value) {
        Some(text) => out.write_str(&text).map_err(Error::from),
        None => minijinja::escape_formatter(out, state, value),
    });
    methods::add_to(&mut environment);
    environment.add_filter("tojson", tojson);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", |format: String| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        python::strftime(now, &format)
    });
    environment
}

/// The `tojson` of `transformers`: Python's `json.dumps` without ASCII and HTML escapes.
fn tojson(value: JinjaValue, options: Kwargs) -> Result<String, Error> {
    let json = serde_json::to_value(&value)
        .map_err(|e| Error::new(ErrorKind::BadSerialization, "tojson: not printable").with_source(e))?;
    let mut style = JsonStyle {
        indent: options.get::<Option<usize>>("indent")?,
        ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        ..JsonStyle::default()
    };
    if style.indent.is_some_and(|indent| indent > 64) {
        return Err(Error::new(ErrorKind::InvalidOperation, "tojson: indent is above 64"));
    }
    if let Some(separators) = options.get::<Option<Vec<String>>>("separators")? {
        let [item, key] = <[String; 2]>::try_from(separators)
            .map_err(|_| Error::new(ErrorKind::InvalidOperation, "tojson: separators must be two strings"))?;
        (style.item, style.key) = (item, key);
    }
    options.assert_all_used()?;
    Ok(python::json(&json, &style))
}

/// The message of a template that called `raise_exception`.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

fn raise_exception(message: String) -> Result<String, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Raised(message)))
}

fn render_error(error: &Error) -> TextError {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = source {
        if let Some(Raised(message)) = current.downcast_ref() {
            return TextError::Raised(message.clone());
        }
        source = current.source();
    }
    TextError::Render(located(error))
}

/// The kind of an error and its line, without the details, which may quote the request.
fn located(error: &Error) -> String {
    let line = error.line().map_or(String::new(), |line| format!("line {line}: "));
    format!("{line}{}", error.kind())
}

fn describe(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

/// Turns `{% generation %}` blocks, which only mark text for training, into blocks that are always rendered.
fn plain_generation_blocks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(end + 2);
        let word = tag[2..end].trim_matches(['-', '+']).trim();
        match word {
            "generation" => out.push_str(&tag.replacen(word, "if true", 1)),
            "endgeneration" => out.push_str(&tag.replacen(word, "endif", 1)),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}
