//! Keys from the environment: `TOKENROUTER_<SECTION>_<KEY>`, and `TOKENROUTER_MODEL_<NAME>_<KEY>` for a model.

use super::keys::{Form, SECTIONS, Section};
use super::layers::{Origin, Resolved, Target};
use super::overrides::Raw;

/// What all variables begin with.
pub(crate) const PREFIX: &str = "TOKENROUTER_";

/// Puts the variables over what is there. An empty one says nothing.
///
/// # Errors
/// One line that names variable and key.
pub(super) fn add(all: &mut Resolved, environment: &[(String, String)]) -> Result<(), String> {
    for (name, value) in environment {
        let Some(rest) = name.strip_prefix(PREFIX).filter(|_| !value.trim().is_empty()) else { continue };
        match find(all, rest) {
            Some(target) => all.over(&target, &Raw::One(value.clone()), Origin::Variable(name.clone()))?,
            None if of_a_section(rest) && !of_kubernetes(rest) => {
                all.warnings
                    .push(format!("the variable {name} names no key of the configuration and is ignored"));
            }
            None => {}
        }
    }
    Ok(())
}

/// The variable of a key, for the reference.
pub(crate) fn name(section: &str, key: &str) -> String {
    if section.is_empty() {
        format!("{PREFIX}{}", fold(key))
    } else {
        format!("{PREFIX}{}_{}", fold(section), fold(key))
    }
}

/// As it stands in a variable.
fn fold(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect()
}

fn find(all: &Resolved, rest: &str) -> Option<Target> {
    SECTIONS.iter().find_map(|section| match section.form {
        Form::Top => known(section, None, rest),
        Form::Once => below(section.name, rest).and_then(|key| known(section, None, key)),
        Form::Many => {
            let rest = below(section.name, rest)?;
            all.sections(section.name).iter().enumerate().find_map(|(index, name)| {
                let key = below(name, rest).or_else(|| below(&index.to_string(), rest))?;
                known(section, Some(index), key)
            })
        }
    })
}

/// What follows `NAME_`.
fn below<'a>(name: &str, rest: &'a str) -> Option<&'a str> {
    rest.strip_prefix(&fold(name))?.strip_prefix('_').filter(|key| !key.is_empty())
}

fn known(section: &'static Section, index: Option<usize>, key: &str) -> Option<Target> {
    let known = section.keys.iter().map(|k| k.name).find(|name| fold(name) == key);
    match known {
        Some(name) => Some(Target::new(section, index, name)),
        None if section.open && !of_kubernetes(key) => {
            Some(Target::new(section, index, &key.to_ascii_lowercase()))
        }
        None => None,
    }
}

fn of_a_section(rest: &str) -> bool {
    SECTIONS.iter().any(|section| section.form != Form::Top && below(section.name, rest).is_some())
}

/// Kubernetes gives every container variables of this shape for each service, which may well be called "tokenrouter".
fn of_kubernetes(rest: &str) -> bool {
    let rest = format!("_{rest}");
    rest.ends_with("_SERVICE_HOST")
        || rest.contains("_SERVICE_PORT")
        || rest.ends_with("_PORT")
        || rest.contains("_PORT_")
}
