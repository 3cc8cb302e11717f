//! The flags of `bench`.

use std::path::PathBuf;

use super::workload::Kind;
use crate::config::SetArgs;
use crate::eval::Check;

/// The way to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ApiName {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completions,
}

/// Flags of `bench`. Lists are swept: every combination is a setting, and repeats are interleaved over settings.
#[derive(Clone, Debug, clap::Args)]
pub struct BenchArgs {
    /// A server that runs, ours or another OpenAI-compatible one: http://HOST:PORT.
    #[arg(long, conflicts_with_all = ["config", "demo"])]
    pub url: Option<String>,
    /// Start a server of this file for every setting, and stop it after; several files are several pairs.
    #[arg(long, value_name = "FILE", conflicts_with = "demo")]
    pub config: Vec<PathBuf>,
    /// Start a server of the demo pair, with its problems as prompts.
    #[arg(long)]
    pub demo: bool,
    /// Folder of the demo pair.
    #[arg(long, value_name = "DIR", requires = "demo")]
    pub models: Option<PathBuf>,
    /// Process of the server at --url, for its CPU time.
    #[arg(long, requires = "url")]
    pub pid: Option<u32>,
    /// Key of the server at --url.
    #[arg(long, value_name = "KEY", requires = "url")]
    pub api_key: Option<String>,
    /// How to ask; without it chats, or completions where there is no chat template.
    #[arg(long, value_enum)]
    pub api: Option<ApiName>,
    /// A measurement of the paper by name (figure1, table6, ...); `list` explains them. Other flags go before it.
    #[arg(long, value_name = "NAME")]
    pub preset: Option<String>,

    /// Clients in a closed loop.
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub clients: Vec<u32>,
    /// Poisson arrivals instead: requests (or conversations) per second.
    #[arg(
        long,
        value_name = "R,R,...",
        value_delimiter = ',',
        allow_negative_numbers = true,
        conflicts_with = "clients"
    )]
    pub rate: Vec<f64>,
    /// Most requests at once under --rate; arrivals beyond wait, and are counted.
    #[arg(long, default_value_t = 256, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub most_open: u32,
    /// Launch policy, as in `simulate --policy`; may be given several times. Needs --config or --demo.
    #[arg(long = "policy", value_name = "NAME[=N]")]
    pub policies: Vec<String>,
    /// What a handoff takes along: resume, readmit. Needs --config or --demo.
    #[arg(long = "handoff", value_name = "MODE,...", value_delimiter = ',')]
    pub handoffs: Vec<String>,
    /// Who answers: a served name, `small` or `large` (a model alone), or a router (r-stitch, fixed, me, query, or one with
    /// a router file), with its threshold, share or weight; may be given several times.
    #[arg(long = "router", visible_alias = "model", value_name = "NAME[=T]")]
    pub routers: Vec<String>,
    /// One more router file for the first model; may be given several times.
    #[arg(long = "router-file", value_name = "DIR")]
    pub router_files: Vec<PathBuf>,

    /// The paper's workload.
    #[arg(long = "workload", value_enum, value_name = "NAME,...", value_delimiter = ',')]
    pub workloads: Vec<Kind>,
    /// Tokens of a prompt (of the last one of a conversation) instead of the workload's.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub prompt_tokens: Option<u32>,
    /// Tokens of every answer instead of the workload's most; the end of sequence is ignored.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub answer_tokens: Option<u32>,
    /// Let answers end where the model ends them, also with --answer-tokens.
    #[arg(long)]
    pub natural_end: bool,
    /// Most turns of a conversation instead of the workload's.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub turns: Option<u32>,
    /// Prompts: JSON lines {"prompt": "...", "answer": "..."}; with answers, the share of right ones is told.
    #[arg(long, value_name = "FILE")]
    pub prompts: Option<PathBuf>,
    /// Prompts of random token ids of exactly the stated lengths (completions).
    #[arg(long, conflicts_with = "prompts")]
    pub random_ids: bool,
    /// Ids of --random-ids are below this; without it, those of the built-in text by the server's tokenizer.
    #[arg(long, value_name = "N", requires = "random_ids", value_parser = clap::value_parser!(u32).range(1..))]
    pub vocab: Option<u32>,
    /// When an answer is right.
    #[arg(long, value_enum)]
    pub check: Option<Check>,
    /// 0 is greedy.
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub temperature: f64,
    /// Seed of prompts, arrivals and answers.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// What is run before each measurement: answers (`8`) or seconds (`2s`); without it an answer per client, or 10 s.
    #[arg(long, value_name = "N|SECONDSs", allow_hyphen_values = true)]
    pub warm_up: Option<String>,
    /// Measurements of every setting.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeats: Option<u32>,
    /// A measurement ends after so many tokens.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub tokens: Option<u64>,
    /// A measurement ends after so many answers.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub requests: Option<u64>,
    /// A measurement ends after so long; 10, when no other limit is given.
    #[arg(long, value_name = "S", allow_negative_numbers = true)]
    pub seconds: Option<f64>,
    /// A repeat in which others had more of the processors, in percent, is discarded and counted.
    #[arg(long, default_value_t = 10.0, value_name = "PERCENT", allow_negative_numbers = true)]
    pub max_foreign_cpu: f64,
    /// A request fails when the server says nothing for so long, in seconds.
    #[arg(long, default_value_t = 300.0, value_name = "S", allow_negative_numbers = true)]
    pub timeout: f64,

    /// Write everything as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a plot.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Keys of the configuration (--config and --demo).
    #[command(flatten)]
    pub set: SetArgs,
}

impl BenchArgs {
    /// Refuses what clap cannot see.
    ///
    /// # Errors
    /// The flag, and what would be right.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.url.is_none() && self.config.is_empty() && !self.demo {
            return Err("nothing to measure: give --url http://HOST:PORT, --config FILE or --demo".into());
        }
        let positive = [
            ("--seconds", self.seconds),
            ("--timeout", Some(self.timeout)),
            ("--max-foreign-cpu", Some(self.max_foreign_cpu)),
        ];
        let rates = self.rate.iter().map(|rate| ("--rate", Some(*rate)));
        for (flag, value) in positive.into_iter().chain(rates) {
            if let Some(value) = value.filter(|v| !(v.is_finite() && *v > 0.0 && *v <= 1e6)) {
                return Err(format!("{flag} is {value}; a number above 0 and at most 1000000 is needed"));
            }
        }
        if !(0.0..=2.0).contains(&self.temperature) {
            return Err(format!("--temperature is {}; a number from 0 to 2 is needed", self.temperature));
        }
        if self.random_ids && self.api == Some(ApiName::Chat) {
            return Err("--random-ids asks for completions; --api chat takes texts".into());
        }
        if self.url.is_some() {
            let own = [
                ("--policy", !self.policies.is_empty()),
                ("--handoff", !self.handoffs.is_empty()),
                ("--router-file", !self.router_files.is_empty()),
                ("--set", !self.set.set.is_empty()),
            ];
            if let Some((flag, _)) = own.iter().find(|(_, given)| *given) {
                return Err(format!(
                    "{flag} needs a server of its own: give --config FILE or --demo, not --url"
                ));
            }
        }
        if let Some(mode) = self.handoffs.iter().find(|mode| !["resume", "readmit"].contains(&mode.as_str()))
        {
            return Err(format!("--handoff is \"{mode}\"; resume or readmit is needed"));
        }
        warm_up(self.warm_up.as_deref()).map(|_| ())
    }
}

/// Answers and seconds of the warm-up; none of either where nothing was said.
///
/// # Errors
/// What would be right.
pub(super) fn warm_up(text: Option<&str>) -> Result<(Option<u64>, Option<f64>), String> {
    let Some(text) = text else { return Ok((None, None)) };
    let wrong = || format!("--warm-up is {text:?}; answers as 8, or seconds as 2s, are needed");
    if let Some(seconds) = text.strip_suffix('s') {
        let seconds = seconds.trim().parse().ok().filter(|s: &f64| s.is_finite() && (0.0..=1e6).contains(s));
        return Ok((None, Some(seconds.ok_or_else(wrong)?)));
    }
    Ok((Some(text.trim().parse().map_err(|_| wrong())?), None))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: BenchArgs,
    }

    fn check(line: &str) -> Result<(), String> {
        let words = std::iter::once("bench").chain(line.split_whitespace());
        Line::try_parse_from(words).map_err(|e| e.to_string())?.args.check()
    }

    #[test]
    fn bad_flags_are_refused_by_name() {
        assert_eq!(
            check("--demo --clients 1,4 --policy eager --handoff resume,readmit --warm-up 2s"),
            Ok(())
        );
        for (line, why) in [
            ("", "--url"),
            ("--url a:1 --demo", "--demo"),
            ("--url a:1 --policy eager", "--policy needs a server of its own"),
            ("--demo --clients 0", "--clients"),
            ("--demo --clients 1 --rate 2", "--rate"),
            ("--demo --rate -1", "--rate"),
            ("--demo --rate 0", "--rate is 0"),
            ("--demo --seconds 0", "--seconds is 0"),
            ("--demo --handoff move", "resume or readmit"),
            ("--demo --warm-up soon", "answers as 8"),
            ("--demo --warm-up -3s", "--warm-up"),
            ("--demo --temperature 3", "from 0 to 2"),
            ("--demo --random-ids --api chat", "--random-ids"),
            ("--demo --vocab 5", "--random-ids"),
            ("--demo --workload tiny", "low-effort"),
        ] {
            let error = check(line).expect_err(line);
            assert!(error.contains(why), "{line}: {error}");
        }
        assert_eq!(warm_up(Some("0")), Ok((Some(0), None)));
        assert_eq!(warm_up(Some("0.5s")), Ok((None, Some(0.5))));
    }
}
