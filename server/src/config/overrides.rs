//! Flags that set keys of the configuration. They come from the table of keys, so `serve --help` and the reference agree.

use clap::{Arg, ArgAction, ArgMatches, Command};

use super::DeviceName;
use super::keys::{Form, SECTIONS};
use super::kind::Kind;

/// What a flag gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Given {
    /// The flag as messages name it.
    pub(crate) flag: String,
    /// `section.key`, or `model`, `host` and `port`, which are more than one key or less.
    pub(crate) key: String,
    /// The value.
    pub(crate) value: Raw,
}

/// A value that is not read yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Raw {
    /// One text.
    One(String),
    /// Texts of a flag that may be repeated.
    List(Vec<String>),
}

/// `--set SECTION.KEY=VALUE` alone, for commands whose own flags would clash with the others.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct SetArgs {
    /// Sets any key of the configuration; a text may go without quotes, everything else is TOML. May be repeated.
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE", value_parser = setting)]
    pub(crate) set: Vec<Given>,
}

/// All flags that set keys.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    given: Vec<Given>,
}

impl Overrides {
    /// What was given.
    pub(crate) fn given(&self) -> &[Given] {
        &self.given
    }

    /// With `--device`, which stands before the command.
    pub(crate) fn on_device(self, device: Option<DeviceName>) -> Self {
        self.and("--device", "device", device.map(|device| device.name().into()))
    }

    /// One more, as if its flag had been given.
    pub(crate) fn and(mut self, flag: &str, key: &str, value: Option<String>) -> Self {
        let more = value.map(|value| Given { flag: flag.into(), key: key.into(), value: Raw::One(value) });
        self.given.extend(more);
        self
    }
}

impl From<SetArgs> for Overrides {
    fn from(args: SetArgs) -> Self {
        Overrides { given: args.set }
    }
}

/// Every flag: its name, the path of its key, its kind and its meaning.
fn flags() -> impl Iterator<Item = (&'static str, String, Kind, &'static str)> {
    SECTIONS.iter().filter(|section| section.form == Form::Once).flat_map(|section| {
        let with = section.keys.iter().filter(|key| !key.flag.is_empty());
        with.map(|key| (key.flag, format!("{}.{}", section.name, key.name), key.kind, key.meaning))
    })
}

/// Flags without a key of their own.
const MORE: [(&str, &str, &str); 4] = [
    ("host", "ADDRESS", "The address of server.http"),
    ("port", "PORT", "The port of server.http"),
    ("threshold", "THRESHOLD", "Sets router.threshold: a number, `always` or `never`"),
    (
        "model",
        "NAME=FOLDER_OR_REPO",
        "A model: a folder, or a Hugging Face repository like Qwen/Qwen3-0.6B. May be repeated; the first is the one that answers enter",
    ),
];

impl clap::Args for Overrides {
    fn augment_args(command: Command) -> Command {
        let mut command = <SetArgs as clap::Args>::augment_args(command);
        for (flag, value, help) in MORE {
            let action = if flag == "model" { ArgAction::Append } else { ArgAction::Set };
            command = command.arg(
                Arg::new(flag)
                    .long(flag)
                    .value_name(value)
                    .help(help)
                    .action(action)
                    .help_heading("Configuration"),
            );
        }
        for (flag, key, kind, meaning) in flags() {
            let arg =
                Arg::new(flag).long(flag).help(format!("{meaning} Sets {key}")).help_heading("Configuration");
            command = command.arg(match kind {
                Kind::Texts => arg.action(ArgAction::Append).value_name("TEXT"),
                Kind::Bool => {
                    arg.num_args(0..=1).default_missing_value("true").require_equals(true).value_name("BOOL")
                }
                Kind::Seconds => arg.value_name("SECONDS"),
                Kind::Path => arg.value_name("PATH"),
                Kind::Addr => arg.value_name("ADDRESS"),
                _ => arg.value_name("VALUE"),
            });
        }
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for Overrides {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let one = |flag: &str| matches.get_one::<String>(flag).cloned().map(Raw::One);
        let mut given = Vec::new();
        let mut push = |flag: &str, key: String, value: Option<Raw>| {
            given.extend(value.map(|value| Given { flag: format!("--{flag}"), key, value }));
        };
        for model in matches.get_many::<String>("model").into_iter().flatten() {
            push("model", "model".into(), Some(Raw::One(model.clone())));
        }
        for (flag, key, kind, _) in flags() {
            let list = matches.get_many::<String>(flag).map(|list| Raw::List(list.cloned().collect()));
            push(flag, key, if kind == Kind::Texts { list } else { one(flag) });
        }
        push("threshold", "router.threshold".into(), one("threshold"));
        push("host", "host".into(), one("host"));
        push("port", "port".into(), one("port"));
        // Last, so that the general form wins over the short one.
        given.extend(SetArgs::from_arg_matches(matches)?.set);
        Ok(Overrides { given })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// `section.key=value`.
fn setting(text: &str) -> Result<Given, String> {
    let (key, value) = text.split_once('=').ok_or("SECTION.KEY=VALUE is needed")?;
    let key = key.trim().to_owned();
    Ok(Given { flag: format!("--set {key}"), key, value: Raw::One(value.to_owned()) })
}
