//! `docs/configuration.md`, made from the tables of keys.

use std::fmt::Write;

use super::keys::{Form, Key, SECTIONS, Section};
use super::variables;

const HEAD: &str = "\
# Configuration

This file is made by `tokenrouter config-reference > docs/configuration.md`; a test compares them.

A value comes from the first of these places that has one:

1. a flag: one of the flags named below, or `--set SECTION.KEY=VALUE` for any key (`--set model.NAME.KEY=VALUE` for a
   model; what is no text is written as in TOML: `--set request_limits.threshold=[0.01,0.1]`);
2. a variable of the environment: `TOKENROUTER_<SECTION>_<KEY>`, as in the tables; an empty one says nothing. Lists of texts
   are written with commas;
3. the TOML file of `--config`;
4. the default.

`tokenrouter serve --print-config` prints the result with the origin of every value; what is secret is left out.
`tokenrouter serve --check` also opens the checkpoints and plans the memory, and ends; it needs no GPU. A running server
answers `GET /props` with the same values, without secrets and paths.

Unknown keys of the file and of `--set` are refused. An unknown variable is only warned of, since other programs make
variables too (Kubernetes does for a service called \"tokenrouter\"). Relative paths start at the folder of the file; those of
flags and variables at the working directory.

Without a file, flags are enough: `tokenrouter serve --model small=Qwen/Qwen3-0.6B --model large=Qwen/Qwen3-4B --router
r-stitch --threshold 0.03`. `--host` and `--port` set the two halves of `server.http`. Where a flag has the name of one of
vLLM's, it means the same. Flags of vLLM that have no such counterpart do not exist here: weights are computed in the type they
are stored in (`--dtype`), seeds belong to requests (`--seed`), and devices are given per model (`--tensor-parallel-size`).
";

/// The document.
pub fn reference() -> String {
    let mut out = HEAD.to_owned();
    for section in SECTIONS {
        let title = if section.form == Form::Top { "Top".into() } else { format!("`{}`", section.heading()) };
        // Writing to a String does not fail.
        let _ = write!(
            out,
            "\n## {title}\n\n{}\n\n| key | value | default | meaning |\n| --- | --- | --- | --- |\n",
            section.about
        );
        for key in section.keys {
            let wanted = key.kind.wanted().replace('|', "\\|");
            let _ = writeln!(out, "| `{}` | {wanted} | {} | {} |", key.name, default(key), meaning(key));
        }
        let _ = write!(out, "\n{}\n", places(section));
    }
    out
}

fn default(key: &Key) -> String {
    match key.default_value() {
        Some(value) => format!("`{value}`"),
        None if key.required => "required".into(),
        None => "-".into(),
    }
}

fn meaning(key: &Key) -> String {
    let flag = if key.flag.is_empty() { String::new() } else { format!(" Flag `--{}`.", key.flag) };
    format!("{}{flag}", key.meaning).replace('|', "\\|")
}

/// How the keys are called outside the file.
fn places(section: &Section) -> String {
    let key = section.keys.first().map_or("", |key| key.name);
    match section.form {
        Form::Top => format!("Variable: `{}`.", variables::name("", key)),
        Form::Once => {
            format!("Variables: `{}` and so on.", variables::name(section.name, key))
        }
        Form::Many => format!(
            "Variables: `{}` for the one called NAME, letters in capitals and everything else but digits as `_`.",
            variables::name(section.name, "NAME_KEY")
        ),
    }
}
