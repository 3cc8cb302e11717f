//! The sections `[router]` and `[[route]]`: which algorithm answers under which name, and its parameters.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use tokenrouter_scheduler::router::ParamValue;

use super::Config;

/// The routing algorithm; every other key is a parameter of that router.
#[derive(Clone, Debug, Deserialize)]
pub struct RouterSection {
    /// Name in the registry: `single`, `fixed`, `r2r`, `citer`, `co-llm`, `r-stitch`, `me`, `query`, or one that the
    /// binary registers.
    pub name: String,
    /// Folder of the router file that scores the entry model's tokens.
    #[serde(default)]
    pub file: Option<PathBuf>,
    /// The router's own parameters.
    #[serde(flatten)]
    pub params: BTreeMap<String, toml::Value>,
}

/// One more router under a name of its own; every other key is a parameter of that router.
#[derive(Clone, Debug, Deserialize)]
pub struct RouteSection {
    /// The name clients ask for.
    pub name: String,
    /// Name in the registry, as in [`RouterSection::name`].
    pub router: String,
    /// As in [`RouterSection::file`].
    #[serde(default)]
    pub file: Option<PathBuf>,
    /// The router's own parameters.
    #[serde(flatten)]
    pub params: BTreeMap<String, toml::Value>,
}

/// `[router]` or one `[[route]]`, told apart only in messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Routed<'a> {
    /// The name clients ask for.
    pub(crate) served: &'a str,
    /// Name in the registry.
    pub(crate) router: &'a str,
    /// Folder of the router file.
    pub(crate) file: Option<&'a PathBuf>,
    /// The router's own parameters.
    pub(crate) params: &'a BTreeMap<String, toml::Value>,
    /// Whether this is `[router]`.
    first: bool,
}

impl Routed<'_> {
    /// A key of the section, as messages name it.
    pub(crate) fn key(&self, key: &str) -> String {
        if self.first { format!("router.{key}") } else { format!("route \"{}\": {key}", self.served) }
    }
}

impl Config {
    /// Every routed name: `[router]`, then each `[[route]]`.
    pub(crate) fn routed(&self) -> impl Iterator<Item = Routed<'_>> {
        let RouterSection { name, file, params } = &self.router;
        let served = self.server.served_model_name.as_str();
        let first = Routed { served, router: name, file: file.as_ref(), params, first: true };
        let further = self.routes.iter().map(|r| Routed {
            served: &r.name,
            router: &r.router,
            file: r.file.as_ref(),
            params: &r.params,
            first: false,
        });
        std::iter::once(first).chain(further)
    }

    /// Every name that can be asked for must stand for one thing.
    pub(super) fn check_routes(&self) -> Result<(), String> {
        for (index, route) in self.routes.iter().enumerate() {
            let name = &route.name;
            if self.routes[..index].iter().any(|r| r.name == *name) {
                return Err(format!("two [[route]] sections are named \"{name}\"; names must differ"));
            }
            let other = if *name == self.server.served_model_name {
                "server.served_model_name"
            } else if self.models.iter().any(|m| m.name == *name) {
                "the name of a model"
            } else {
                continue;
            };
            return Err(format!(
                "route.name \"{name}\" is also {other}; they must differ, since both can be asked for"
            ));
        }
        Ok(())
    }
}

/// A router's parameter `key`, which messages call `place`; a model may be given by its name.
///
/// # Errors
/// When it is of a type that no router reads.
pub(crate) fn param(
    models: &[&str],
    key: &str,
    place: &str,
    value: &toml::Value,
) -> Result<ParamValue, String> {
    Ok(match value {
        toml::Value::Boolean(v) => ParamValue::Bool(*v),
        toml::Value::Integer(v) => ParamValue::Int(*v),
        toml::Value::Float(v) => ParamValue::Float(*v),
        toml::Value::String(v) => match models.iter().position(|m| m == v) {
            Some(index) if key == "model" || key == "peer" => ParamValue::Int(index as i64),
            _ => ParamValue::Text(v.clone()),
        },
        toml::Value::Array(list) => {
            ParamValue::List(list.iter().map(|v| param(models, key, place, v)).collect::<Result<_, _>>()?)
        }
        other => return Err(format!("{place} is {other}; a number, a text, a boolean or a list is needed")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const GOOD: &str = r#"
        [[model]]
        name = "small"
        path = "slm"
        [[model]]
        name = "large"
        path = "llm"
        [router]
        name = "r2r"
        file = "routers/r2r"
        max_llm_fraction = 0.2
        [[route]]
        name = "ensemble"
        router = "me"
        weights = [0.7, 0.3]
        [[route]]
        name = "careful"
        router = "citer"
        file = "/abs/citer"
        threshold = 0.98
    "#;

    #[test]
    fn routers_have_names_files_and_parameters() {
        let config = Config::parse(GOOD, Path::new("/etc/pair")).expect("good");
        let routed: Vec<_> = config.routed().map(|r| (r.served, r.router, r.file.cloned())).collect();
        assert_eq!(
            routed,
            [
                ("tokenrouter", "r2r", Some(PathBuf::from("/etc/pair/routers/r2r"))),
                ("ensemble", "me", None),
                ("careful", "citer", Some(PathBuf::from("/abs/citer"))),
            ]
        );
        let keys: Vec<Vec<&String>> = config.routed().map(|r| r.params.keys().collect()).collect();
        assert_eq!(keys, [["max_llm_fraction"], ["weights"], ["threshold"]]);
        let places: Vec<String> = config.routed().map(|r| r.key("file")).collect();
        assert_eq!(places, ["router.file", "route \"ensemble\": file", "route \"careful\": file"]);
    }

    #[test]
    fn names_that_stand_for_two_things_are_refused() {
        let cases = [
            ("name = \"careful\"", "name = \"ensemble\"", "two [[route]]"),
            ("name = \"careful\"", "name = \"large\"", "the name of a model"),
            ("name = \"careful\"", "name = \"tokenrouter\"", "served_model_name"),
            ("name = \"careful\"", "name = \"\"", "not empty"),
            ("name = \"careful\"", "nam = \"careful\"", "name"),
            ("router = \"citer\"", "", "router"),
            ("file = \"/abs/citer\"", "file = 3", "file"),
            ("[[route]]", "[[rout]]", "did you mean \"route\"?"),
        ];
        for (from, to, expected) in cases {
            let text = GOOD.replace(from, to);
            assert_ne!(text, GOOD, "the case changes the file");
            let error = Config::parse(&text, Path::new("")).expect_err(to);
            assert!(error.contains(expected), "{to}: {error}");
        }
    }

    #[test]
    fn parameters_may_be_lists_and_model_names() {
        let models = ["small", "large"];
        let list = toml::Value::Array(vec![toml::Value::Float(0.5), toml::Value::Integer(1)]);
        assert_eq!(
            param(&models, "weights", "router.weights", &list),
            Ok(ParamValue::List(vec![ParamValue::Float(0.5), ParamValue::Int(1)]))
        );
        let large = toml::Value::String("large".into());
        assert_eq!(param(&models, "peer", "router.peer", &large), Ok(ParamValue::Int(1)));
        assert_eq!(param(&models, "mode", "router.mode", &large), Ok(ParamValue::Text("large".into())));
        let table = toml::Value::Table(toml::Table::new());
        assert!(param(&models, "peer", "router.peer", &table).is_err_and(|e| e.contains("router.peer")));
    }
}
