//! The paper's figures and tables as measurements by name.

use std::fmt::Write as _;

use super::arrivals::Load;
use super::drive::Limits;
use super::sweep::{Choice, Sweep};
use super::variant::Change;
use super::workload::Kind;

/// What is drawn and which table is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Throughput and latency over the load.
    Load,
    /// Bars of throughput for every step of the ablation, and throughput against the speed of one user.
    Tradeoff,
    /// Bars of throughput.
    Rates,
    /// Bars of answer times.
    Times,
    /// Right answers against speed.
    Quality,
    /// Throughput over the threshold of the second model, measured and predicted.
    Thresholds,
    /// Where the time of a step of the first model goes.
    Breakdown,
}

/// A measurement with its defaults.
#[derive(Clone, Debug)]
pub(super) struct Preset {
    pub(super) name: &'static str,
    /// What the paper shows there.
    pub(super) about: &'static str,
    /// What of it cannot be had without which hardware, or from elsewhere.
    pub(super) lacks: &'static str,
    pub(super) shape: Shape,
    pub(super) parts: Vec<Sweep>,
    /// Of all answers, where it is not the workload's.
    pub(super) answer_tokens: Option<u32>,
    pub(super) limits: Limits,
    pub(super) repeats: u32,
}

/// What all of the paper's numbers were measured with.
const PAPER: &str = "the paper's numbers: 8 NVIDIA A100-80G, Qwen3-0.6B + Qwen3-32B (ME: + 8B)";

/// Names in the order of the paper.
const NAMES: [&str; 10] = [
    "figure1", "figure5", "figure6", "figure7", "figure10", "table3", "table6", "table7", "table8", "table10",
];

fn policy(name: &str, policy: &str) -> Choice {
    with(name, policy, None)
}

fn with(name: &str, policy: &str, handoff: Option<&str>) -> Choice {
    let change = Change { policy: Some(policy.into()), handoff: handoff.map(Into::into), devices: None };
    Choice { name: name.into(), change }
}

fn placed(name: &str, devices: &[&[u16]]) -> Choice {
    let devices = Some(devices.iter().map(|d| d.to_vec()).collect());
    Choice { name: name.into(), change: Change { devices, ..Change::default() } }
}

fn clients(counts: &[u32]) -> Vec<Load> {
    counts.iter().map(|n| Load::Closed(*n)).collect()
}

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(|s| (*s).to_owned()).collect()
}

/// The rungs of the ablation, best first: each lacks what the one above has.
fn ablation() -> Vec<Choice> {
    vec![
        policy("delayed batching, planned", "auto"),
        policy("delayed batching with hold, B=4", "threshold+hold=4"),
        policy("delayed batching, B=4", "threshold=4"),
        policy("delayed batching, B=2", "threshold=2"),
        policy("- delayed batching (eager)", "eager"),
        policy("- asynchronous execution (step-sync)", "step-sync"),
        with("- resume (step-sync, readmit)", "step-sync", Some("readmit")),
    ]
}

/// The algorithms of the paper with its thresholds; without their router files the learned ones are left out.
const ALGORITHMS: [&str; 6] = ["citer=0.98", "r2r=0.5", "r-stitch=0.03", "co-llm=0.15", "me=0.5", "large"];

/// The preset of a name.
///
/// # Errors
/// The names that there are.
pub(super) fn preset(name: &str) -> Result<Preset, String> {
    let sweep = |choices: Vec<Choice>, routers: &[&str], kinds: &[Kind], counts: &[u32]| Sweep {
        choices,
        routers: names(routers),
        kinds: kinds.to_vec(),
        loads: clients(counts),
    };
    let own = || vec![Choice::default()];
    let low = [Kind::LowEffort];
    let all = [Kind::LowEffort, Kind::HighEffort, Kind::Agentic];
    let base = Preset {
        name: NAMES.iter().find(|known| **known == name).copied().unwrap_or(""),
        about: "",
        lacks: "",
        shape: Shape::Rates,
        parts: Vec::new(),
        answer_tokens: None,
        limits: Limits { seconds: Some(20.0), ..Limits::default() },
        repeats: 3,
    };
    Ok(match name {
        "figure1" => Preset {
            about: "(a) gains step by step at N = 8; (b) throughput against the speed of one user, N = 1 to 16",
            lacks: "the rungs \"CUDA graph\" of (a) need an NVIDIA GPU; R2R's official code is no server",
            shape: Shape::Tradeoff,
            parts: vec![
                sweep(ablation(), &[], &low, &[8]),
                sweep(own(), &[], &low, &[1, 2, 4, 16]),
                sweep(own(), &["large"], &low, &[1, 2, 4, 8, 16]),
            ],
            ..base
        },
        "figure5" => Preset {
            about: "throughput of five algorithms in three workloads at N = 4",
            lacks: "the baselines (official codes, Std. Serving on SGLang) need their own servers: docs/peers.md has those \
                    that run on a CPU",
            parts: vec![sweep(own(), &ALGORITHMS, &all, &[4])],
            ..base
        },
        "figure6" => Preset {
            about: "answer times of five algorithms in three workloads at N = 4",
            lacks: "the baselines (official codes, Std. Serving on SGLang) need their own servers: docs/peers.md has those \
                    that run on a CPU",
            shape: Shape::Times,
            parts: vec![sweep(own(), &ALGORITHMS, &all, &[4])],
            answer_tokens: Some(128),
            ..base
        },
        "figure7" => Preset {
            about: "right answers against tokens per second of a request: routed per token, per query, and models alone",
            lacks: "needs prompts with answers (--prompts, --demo); AMC23 is not among the data that can be had here",
            shape: Shape::Quality,
            parts: vec![sweep(
                own(),
                &[
                    "small",
                    "large",
                    "r-stitch=0.01",
                    "r-stitch=0.03",
                    "r-stitch=0.1",
                    "r-stitch=0.3",
                    "query=0.2",
                    "query=0.5",
                    "query=0.8",
                ],
                &low,
                &[32],
            )],
            limits: Limits { requests: Some(100), ..Limits::default() },
            ..base
        },
        "figure10" => Preset {
            about: "throughput over the threshold B of the large model, predicted and measured, N = 4 and 8",
            lacks: "",
            shape: Shape::Thresholds,
            parts: vec![sweep(
                (1..=8).map(|b| policy("", &format!("threshold={b}"))).collect(),
                &["fixed=0.35"],
                &low,
                &[4, 8],
            )],
            answer_tokens: Some(128),
            ..base
        },
        "table3" => Preset {
            about: "throughput over pairs of models: give several --config, one per pair",
            lacks: "R2R's official code is no server; each large model alone stands beside its pair instead",
            parts: vec![sweep(own(), &["", "large"], &low, &[4])],
            ..base
        },
        "table6" => Preset {
            about: "ablation: throughput without delayed batching, asynchronous execution, and resumption, N = 8, 4, 1",
            lacks: "the rows \"Router CUDA graph\", \"CUDA graph\" and \"SLM CUDA graph\" need an NVIDIA GPU (there: --set \
                    cuda.graphs=false); R2R's official code is no server",
            parts: vec![sweep(ablation(), &[], &low, &[8, 4, 1])],
            ..base
        },
        "table7" => Preset {
            about: "throughput over tensor parallelism of the two models, apart and overlapping, N = 1 and 4",
            lacks: "the rows of 8 devices need 8 NVIDIA GPUs. On a CPU a device is a rank with threads of its own, and gains \
                    nothing over more threads",
            parts: vec![sweep(
                vec![
                    placed("small on 1, large on 1, apart", &[&[0], &[1]]),
                    placed("small on 1, large on 2, overlapping", &[&[0], &[0, 1]]),
                    placed("small on 2, large on 2, overlapping", &[&[0, 1], &[0, 1]]),
                ],
                &[],
                &low,
                &[1, 4],
            )],
            ..base
        },
        "table8" => Preset {
            about: "throughput of the algorithms with both models on shared devices and on separate ones, N = 1 and 4",
            lacks: "the paper's separate layout needs 3 NVIDIA GPUs; on a CPU the models have ranks of their own either way",
            parts: vec![sweep(
                vec![placed("overlapping", &[&[0], &[0]]), placed("apart", &[&[0], &[1]])],
                &ALGORITHMS[..5],
                &low,
                &[1, 4],
            )],
            ..base
        },
        "table10" => Preset {
            about: "where the time of a step of the small model goes, N = 1, answers of 2,048 tokens, resumed and readmitted",
            lacks: "the paper takes Std. Serving (SGLang) apart, which needs NVIDIA GPUs; this takes our engine apart, over \
                    whole answers instead of their last 128 steps",
            shape: Shape::Breakdown,
            parts: vec![sweep(
                vec![with("resume", "auto", Some("resume")), with("readmit", "auto", Some("readmit"))],
                &[],
                &low,
                &[1],
            )],
            answer_tokens: Some(2048),
            limits: Limits { requests: Some(2), ..Limits::default() },
            ..base
        },
        other => {
            let near = tokenrouter_scheduler::router::closest(other, NAMES);
            let hint = near.map_or(String::new(), |near| format!("; did you mean \"{near}\"?"));
            return Err(format!("--preset is \"{other}\"{hint} (known: list, {})", NAMES.join(", ")));
        }
    })
}

/// All of them, explained.
pub(super) fn list() -> String {
    let mut out = format!("{PAPER}\n\n");
    for preset in NAMES.iter().filter_map(|name| preset(name).ok()) {
        let _ = writeln!(out, "{:<9} {}", preset.name, preset.about);
        for (index, part) in preset.parts.iter().enumerate() {
            let loads: Vec<String> = part.loads.iter().map(Load::to_string).collect();
            let head = if index == 0 { "runs:" } else { "and:" };
            let routers: Vec<&str> =
                part.routers.iter().map(|r| if r.is_empty() { "the routed name" } else { r }).collect();
            let routers = if routers.is_empty() { "the routed name".into() } else { routers.join(", ") };
            let choices: Vec<&str> = part
                .choices
                .iter()
                .map(|c| match (c.name.as_str(), &c.change.policy) {
                    ("", Some(policy)) => policy.as_str(),
                    ("", None) => "the file's policy",
                    (name, _) => name,
                })
                .collect();
            let _ = writeln!(out, "          {head} {}; {routers}; {}", loads.join(" "), choices.join(" | "));
        }
        if !preset.lacks.is_empty() {
            let _ = writeln!(out, "          not here: {}", preset.lacks);
        }
    }
    out.push_str("\nEvery flag goes before a preset's value: --clients, --router, --policy, --seconds, --repeats, ...\n");
    out
}

impl Preset {
    /// What this machine cannot show, in words.
    pub(super) fn missing(&self, cuda: bool) -> Vec<String> {
        let mut out = Vec::new();
        if !cuda {
            out.push(format!(
                "{}: {PAPER}; measured here: the pair given, on this machine's processors",
                self.name
            ));
        }
        if !self.lacks.is_empty() {
            out.push(format!("{}: {}", self.name, self.lacks));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_listed_and_has_settings() {
        let list = list();
        for name in NAMES {
            let preset = preset(name).expect(name);
            assert_eq!(preset.name, name);
            assert!(!preset.parts.iter().flat_map(|part| part.settings(&[1])).collect::<Vec<_>>().is_empty());
            assert!(preset.limits != Limits::default(), "{name} ends by itself");
            assert!(list.contains(&format!("\n{name} ")), "{list}");
        }
        assert!(preset("table66").expect_err("unknown").contains("did you mean \"table6\""));
        assert!(preset("table6").expect("known").missing(false).iter().any(|m| m.contains("NVIDIA GPU")));
    }

    #[test]
    fn the_ablation_leaves_thresholds_out_where_fewer_clients_are() {
        let table6 = preset("table6").expect("known");
        let count = |n| table6.parts[0].settings(&[1]).iter().filter(|s| s.load == Load::Closed(n)).count();
        assert_eq!((count(8), count(4), count(1)), (7, 7, 4));
        let figure10 = preset("figure10").expect("known");
        assert_eq!(figure10.parts[0].settings(&[1]).len(), 4 + 8);
    }
}
