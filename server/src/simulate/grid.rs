//! The rows of a run: every policy with every handoff and every number of clients, on the same draws.

use tokenrouter_scheduler::router::Registry;
use tokenrouter_scheduler::sim::serving::{Arrivals, Report, serve};
use tokenrouter_scheduler::{CountTable, PlannerConfig, Policy, Thresholds};

use super::build::Scenario;
use super::workload::MOST_CLIENTS;
use super::{Outcome, SimulateArgs, policy};
use crate::config::{AUTO, handoff_from, handoff_name};

/// The word instead of a threshold.
const BEST: &str = "best";

/// How a row launches.
#[derive(Clone)]
enum Rule {
    Fixed(Policy),
    /// The policy holds until there is a plan.
    Planned(Policy, PlannerConfig),
    /// The threshold is tried out, with or without hold.
    Best {
        hold: bool,
    },
}

/// Runs every row.
///
/// # Errors
/// The flag or the policy at fault.
pub(super) fn run(
    args: &SimulateArgs,
    scenario: &mut Scenario,
    registry: &Registry,
) -> Result<Vec<Outcome>, String> {
    let handoffs = match args.handoffs.as_slice() {
        [] => vec![scenario.spec.config.handoff],
        named => named
            .iter()
            .map(|name| handoff_from(name).map_err(|e| format!("--handoff is {e}")))
            .collect::<Result<_, _>>()?,
    };
    let clients: Vec<Option<usize>> = match (args.clients.as_slice(), &scenario.spec.workload.arrivals) {
        ([], Arrivals::Closed(clients)) => vec![Some(*clients)],
        ([], _) => vec![None],
        (given, Arrivals::Closed(_)) => given.iter().map(|n| Some(*n)).collect(),
        _ => return Err("--clients needs workload.arrivals = \"closed\"".into()),
    };
    if let Some(bad) = clients.iter().flatten().find(|n| !(1..=MOST_CLIENTS).contains(*n)) {
        return Err(format!("--clients has {bad}; 1 to {MOST_CLIENTS} are possible"));
    }
    let rules = rules(args, scenario)?;
    let mut outcomes = Vec::new();
    for &clients in &clients {
        if let Some(clients) = clients {
            scenario.spec.workload.arrivals = Arrivals::Closed(clients);
        }
        for &handoff in &handoffs {
            scenario.spec.config.handoff = handoff;
            for (name, rule) in &rules {
                let (policy, report) = row(scenario, registry, name, rule, clients)
                    .map_err(|e| format!("policy {name}: {e}"))?;
                let mut label = String::new();
                if args.clients.len() > 1 {
                    label += &format!(" N={}", clients.unwrap_or(0));
                }
                if handoffs.len() > 1 {
                    label += &format!(" {}", handoff_name(handoff));
                }
                outcomes.push(Outcome { policy, label, clients, handoff: handoff_name(handoff), report });
            }
        }
    }
    Ok(outcomes)
}

fn rules(args: &SimulateArgs, scenario: &Scenario) -> Result<Vec<(String, Rule)>, String> {
    let config = &scenario.spec.config;
    if args.policies.is_empty() {
        let policy = config.policy.clone();
        let rule = match config.planner {
            Some(planner) => Rule::Planned(policy, planner),
            None => Rule::Fixed(policy),
        };
        return Ok(vec![(scenario.policy_name.clone(), rule)]);
    }
    let parse = |text: &String| {
        let rule = match text.split_once('=') {
            None if text == AUTO => Rule::Planned(Policy::default(), config.planner.unwrap_or_default()),
            Some(("threshold", BEST)) => Rule::Best { hold: false },
            Some(("threshold+hold", BEST)) => Rule::Best { hold: true },
            _ => Rule::Fixed(policy::parse(text).map_err(|e| format!("--policy {text}: {e}"))?),
        };
        Ok((text.clone(), rule))
    };
    args.policies.iter().map(parse).collect()
}

/// Runs one row; its policy's name says which threshold was best.
fn row(
    scenario: &mut Scenario,
    registry: &Registry,
    name: &str,
    rule: &Rule,
    clients: Option<usize>,
) -> Result<(String, Report), String> {
    let mut once = |policy: Policy, planner: Option<PlannerConfig>| {
        (scenario.spec.config.policy, scenario.spec.config.planner) = (policy, planner);
        let routes = scenario.routes(registry)?;
        serve(&scenario.spec, routes).map_err(|e| e.to_string())
    };
    match rule {
        Rule::Fixed(policy) => Ok((name.to_owned(), once(policy.clone(), None)?)),
        Rule::Planned(policy, planner) => Ok((name.to_owned(), once(policy.clone(), Some(*planner))?)),
        Rule::Best { hold } => {
            let most = clients.ok_or("a threshold is tried out for a closed loop only")?;
            let mut best: Option<(usize, Report)> = None;
            for threshold in 1..=most {
                let thresholds = Thresholds::peers(CountTable::constant(threshold as u32));
                let policy = match hold {
                    true => Policy::Hold { thresholds, beside: CountTable::constant(1) },
                    false => Policy::Threshold(thresholds),
                };
                let report = once(policy, None)?;
                if best.as_ref().is_none_or(|(_, b)| report.tokens_per_s() > b.tokens_per_s()) {
                    best = Some((threshold, report));
                }
            }
            let (threshold, report) = best.ok_or("there is no client")?;
            Ok((name.replace(BEST, &threshold.to_string()), report))
        }
    }
}
