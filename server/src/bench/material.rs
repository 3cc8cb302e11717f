//! What prompts are made of: a file, the demo pair's problems, a built-in text, or random ids.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use super::args::BenchArgs;
use super::target::Target;
use super::workload::{Kind, Material};
use crate::eval::read_problems;

/// Fifty everyday questions.
const BUILT_IN: &str = include_str!("../../../models/prompts50.jsonl");
/// Where no tokenizer can be asked.
const CHARACTERS_PER_TOKEN: f64 = 4.0;

/// The material for a workload, and in words which it is.
///
/// # Errors
/// The flag or file at fault.
pub(super) fn material(
    args: &BenchArgs,
    kind: Kind,
    problems: Option<&Path>,
    target: &Target,
    stop: &AtomicBool,
) -> Result<(Material, String), String> {
    if args.random_ids {
        return random_ids(args, target, stop);
    }
    let file = args.prompts.as_deref().or(problems);
    let from = match (file, &args.prompts) {
        (Some(file), Some(_)) => format!("--prompts {}", file.display()),
        (Some(_), None) => "the demo pair's problems".into(),
        (None, _) => "the built-in questions".into(),
    };
    if let Some(file) = file {
        let list = read_problems(file, None)?;
        // As they are, where nobody wants another length.
        if kind != Kind::Agentic && args.prompt_tokens.is_none() {
            return Ok((Material::Problems(list), format!("{from}, as they are")));
        }
        return Ok(texts(list.into_iter().map(|p| p.prompt).collect(), &from, target, stop));
    }
    Ok(texts(built_in(), &from, target, stop))
}

fn built_in() -> Vec<String> {
    let line = |line: &str| {
        let value: serde_json::Value = serde_json::from_str(line).ok()?;
        value["prompt"].as_str().map(str::to_owned)
    };
    BUILT_IN.lines().filter_map(line).collect()
}

fn texts(list: Vec<String>, from: &str, target: &Target, stop: &AtomicBool) -> (Material, String) {
    let all = list.join("\n");
    let measured = target.tokenize(&all, stop).map(|ids| all.chars().count() as f64 / ids.len() as f64);
    let told = match measured {
        Some(ratio) => {
            format!("{from}, joined and cut by {ratio:.2} characters per token (the server's tokenizer)")
        }
        None => format!("{from}, joined and cut by {CHARACTERS_PER_TOKEN} characters per token (a guess)"),
    };
    (Material::Texts(list, measured.unwrap_or(CHARACTERS_PER_TOKEN)), told)
}

fn random_ids(args: &BenchArgs, target: &Target, stop: &AtomicBool) -> Result<(Material, String), String> {
    if let Some(vocab) = args.vocab {
        return Ok((Material::Ids((0..vocab).collect()), format!("random ids below {vocab}")));
    }
    let ids = target.tokenize(&built_in().join("\n"), stop);
    let mut ids = ids.ok_or("--random-ids: the server has no /tokenize; give --vocab N")?;
    ids.sort_unstable();
    ids.dedup();
    let told = format!("random ids, {} different ones", ids.len());
    Ok((Material::Ids(ids), told))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_built_in_questions_are_there() {
        let list = super::built_in();
        assert!(list.len() >= 50 && list.iter().all(|text| !text.trim().is_empty()));
    }
}
