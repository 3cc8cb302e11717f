//! Scenarios from seeds: what is served, by what, and what goes wrong when.

use super::device::DeviceSpec;
use super::model::FAKE_VOCAB;
use super::outage::{Outage, random_outages};
use super::random::Random;
use super::random_policy::random_policy;
use super::reference::reference;
use super::route::{RouteKind, SimRoute, dress};
use crate::config::{CoreConfig, Handoff, ModelLimits, NewRequest, PeerLoss};
use crate::ids::{ModelId, ModelSet, Nanos, PAGE_TOKENS, RouteId};
use crate::router::{Online, Router, Threshold};

/// A request and when it arrives.
#[derive(Clone, Debug, PartialEq)]
pub struct SimRequest {
    /// Arrival.
    pub at: Nanos,
    /// The request; `client` is its index in the scenario.
    pub request: NewRequest,
}

/// Something a client does to its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action {
    /// When. May lie before the arrival or after the end, where it must do nothing.
    pub at: Nanos,
    /// Which request.
    pub client: usize,
    /// What.
    pub what: What,
}

/// What a client can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Go away.
    Cancel,
    /// Ask for a stop with this many of the tokens it has received taken back.
    Stop {
        /// Tokens taken back (at most all).
        back: u32,
    },
}

/// Everything that determines a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Seeds the devices' jitter and failures.
    pub seed: u64,
    /// The core.
    pub config: CoreConfig,
    /// Sets of models that never run beside each other.
    pub exclusive: Vec<ModelSet>,
    /// One per model.
    pub devices: Vec<DeviceSpec>,
    /// The routes.
    pub routes: Vec<SimRoute>,
    /// Ordered by arrival.
    pub requests: Vec<SimRequest>,
    /// Ordered by time.
    pub actions: Vec<Action>,
    /// What becomes of requests that need a lost model.
    pub on_loss: PeerLoss,
    /// Ordered by time.
    pub outages: Vec<Outage>,
    /// A model whose step takes longer is lost until the step ends.
    pub step_timeout: Option<Nanos>,
}

impl Scenario {
    /// A scenario with everything in it: one to four models, several routes, bursts, tight limits, cancels, stops,
    /// failures, devices that stall, models that die.
    pub fn random(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let models = random.size(1, 4);
        let routes = (0..random.size(1, 3)).map(|_| random_route(&mut random, models)).collect::<Vec<_>>();
        let mut weather = Random::new(seed ^ 0x57_0a11);
        let contested = weather.chance(0.25);
        // From draws of their own, so that the weather stays what it was before there were algorithms.
        let mut algorithms = Random::new(seed ^ 0x0a19_0517);
        let routes: Vec<SimRoute> = routes
            .into_iter()
            .map(|kind| match models > 1 && algorithms.chance(0.6) {
                true => SimRoute::random(&mut algorithms, models),
                false => kind.into(),
            })
            .collect();
        let eos_ids: Vec<u32> = (0..random.range(0, 2) as u32).collect();
        let crowded = random.chance(0.3);
        let mut requests = random_requests([&mut random, &mut algorithms], &routes, models, &eos_ids);
        if crowded {
            crowd(&mut random, &mut requests);
        }
        if contested {
            contest(&mut weather, &mut requests);
        }
        let longest = longest(&requests);
        // The smallest pool that holds the longest request alone, or up to six times that.
        let least = longest.div_ceil(PAGE_TOKENS);
        let pages =
            least + if crowded || random.chance(0.4) { random.size(0, 4) } else { least * random.size(0, 5) };
        // A claimant is preempted between two chunks only when there is hardly any room.
        let tight = contested && Random::new(seed ^ 0x0071_9147).chance(0.5);
        let pages = if tight { least + 1 } else { pages };
        let config = CoreConfig {
            models: (0..models)
                .map(|_| ModelLimits {
                    max_batch_rows: random.size(1, 8),
                    max_step_tokens: random.size(if contested { 20 } else { 1 }, 48),
                })
                .collect(),
            pages,
            context_len: longest,
            max_waiting: random.size(1, 30),
            max_running: if crowded { random.size(6, 16) } else { random.size(1, 12) },
            eos_ids,
            guard: if weather.chance(0.3) { 3_000 } else { 1_000_000 },
            policy: random_policy(&mut Random::new(seed ^ 0x0b01_1c1e), models),
            prefix_cache: random.chance(0.8),
            reserve_pages: if crowded { 0 } else { random.size(0, 3) },
            planner: None,
            handoff: random_handoff(seed),
        };
        let faults = if random.chance(0.3) { 0.02 } else { 0.0 };
        let mut devices: Vec<_> = (0..models).map(|_| random_device(&mut random, faults)).collect();
        foul(&mut weather, &mut devices, &mut requests);
        let mut actions = random_actions(&mut random, &requests);
        if contested {
            // While the prompt is being computed.
            actions.iter_mut().for_each(|a| a.at = a.at / 6 + 40);
        }
        let exclusive = random_exclusive(seed, models);
        let (on_loss, outages, step_timeout) = random_outages(seed, models);
        Self { seed, config, exclusive, devices, routes, requests, actions, on_loss, outages, step_timeout }
    }

    /// The same requests and routes in quiet weather: another policy, other latencies, limits and arrival times,
    /// room for all, no failures, nobody leaves. Every request ends by itself.
    pub fn undisturbed(&self, seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0xdead_beef);
        let mut calm = self.clone();
        calm.seed = seed;
        calm.actions.clear();
        (calm.outages, calm.step_timeout) = (Vec::new(), None);
        // What a route learns depends on the schedule, and the terms of requests with it.
        calm.routes.iter_mut().for_each(|route| route.online = Online::default());
        calm.devices.iter_mut().for_each(|device| *device = random_device(&mut random, 0.0));
        for limits in &mut calm.config.models {
            *limits =
                ModelLimits { max_batch_rows: random.size(1, 16), max_step_tokens: random.size(1, 200) };
        }
        calm.config.policy = random_policy(&mut random, calm.config.models.len());
        calm.config.handoff = random_handoff(seed);
        calm.config.max_waiting = calm.requests.len();
        calm.config.max_running = random.size(1, 20);
        calm.config.pages += random.size(0, 20);
        calm.config.prefix_cache = random.chance(0.5);
        calm.requests.iter_mut().for_each(|r| r.at = 10 * random.range(0, 100));
        calm.requests.sort_by_key(|r| r.at);
        calm
    }

    /// Builds the routers.
    pub fn routers(&self) -> Vec<Box<dyn Router>> {
        let models = self.config.models.len();
        self.routes.iter().map(|route| route.build(models)).collect()
    }
}

fn random_handoff(seed: u64) -> Handoff {
    if Random::new(seed ^ 0x04ea_d317).chance(0.3) { Handoff::Readmit } else { Handoff::Resume }
}

/// In a quarter of the scenarios some models take turns.
fn random_exclusive(seed: u64, models: usize) -> Vec<ModelSet> {
    let mut random = Random::new(seed ^ 0x0e8c_1d5e);
    if models < 2 || !random.chance(0.25) {
        return Vec::new();
    }
    let set = (0..models).filter(|_| random.chance(0.7)).map(|m| ModelId(m as u8)).collect();
    vec![set]
}

fn random_route(random: &mut Random, models: usize) -> RouteKind {
    let share = |random: &mut Random| random.range(0, 10) as f64 / 10.0;
    match random.range(0, 5) {
        0 => RouteKind::Single(ModelId(random.range(0, models as u64 - 1) as u8)),
        1 if models > 1 => RouteKind::Fixed(share(random)),
        2 if models > 1 => RouteKind::RStitch(Threshold::Value(share(random) as f32)),
        _ => RouteKind::Random { seed: random.bits(), moves: share(random), drops: 0.9 * share(random) },
    }
}

/// Prompts as a service sees them: some alone, some with a common beginning, some that go on where an earlier request
/// ended.
fn random_requests(
    [random, algorithms]: [&mut Random; 2],
    routes: &[SimRoute],
    models: usize,
    eos_ids: &[u32],
) -> Vec<SimRequest> {
    let mut at = 0;
    let count = random.size(1, 24);
    let common: Vec<u32> = (0..80).map(|_| random_token(random)).collect();
    let mut requests: Vec<SimRequest> = Vec::new();
    for client in 0..count {
        if random.chance(0.5) {
            at += 10 * random.range(0, 200);
        }
        let mut request = random_request(random, routes.len(), client as u64);
        let route = &routes[usize::from(request.route.0)];
        dress(algorithms, &mut request, route);
        if random.chance(0.4) {
            let shared = random.size(1, common.len());
            request.prompt.truncate(20);
            request.prompt.splice(..0, common[..shared].iter().copied());
        } else if let Some(earlier) = (client > 0 && random.chance(0.4)).then(|| random.size(0, client - 1)) {
            let earlier = &requests[earlier].request;
            if earlier.prompt.len() < 100 {
                let router = routes[usize::from(earlier.route.0)].build(models);
                let answer = reference(earlier, &*router, eos_ids).tokens;
                request.prompt.truncate(20);
                request.prompt.splice(..0, earlier.prompt.iter().chain(&answer).copied());
                request.cache_salt = earlier.cache_salt;
            }
        }
        requests.push(SimRequest { at, request });
    }
    requests
}

/// Short prompts and long answers that start together: all are admitted, and then there is no room to grow.
fn crowd(random: &mut Random, requests: &mut [SimRequest]) {
    for SimRequest { at, request } in requests {
        request.prompt.truncate(16);
        request.max_new_tokens = random.range(40, 100) as u32;
        request.ignore_eos = true;
        request.stop_ids.clear();
        *at /= 8;
    }
}

fn random_token(random: &mut Random) -> u32 {
    random.range(0, u64::from(FAKE_VOCAB) - 1) as u32
}

fn random_request(random: &mut Random, routes: usize, client: u64) -> NewRequest {
    let max_new_tokens = random.range(1, 40) as u32;
    let prompt_len = if random.chance(0.2) { random.size(20, 60) } else { random.size(1, 20) };
    let threshold = match random.range(0, 9) {
        0 => Some(Threshold::Always),
        1 => Some(Threshold::Never),
        2 => Some(Threshold::Value(0.5)),
        _ => None,
    };
    let mut request = NewRequest {
        client,
        prompt: (0..prompt_len).map(|_| random_token(random)).collect(),
        max_new_tokens,
        route: RouteId(random.size(0, routes - 1) as u16),
        threshold,
        seed: random.bits(),
        choice: random.range(0, 3) as u32,
        ignore_eos: random.chance(0.3),
        stop_ids: (0..random.range(0, 2)).map(|_| random_token(random)).collect(),
        min_tokens: if random.chance(0.3) { random.range(0, u64::from(max_new_tokens)) as u32 } else { 0 },
        priority: if random.chance(0.2) { random.range(0, 2) as i32 - 1 } else { 0 },
        cache_salt: random.chance(0.1).then(|| random.range(0, 1)),
        ..NewRequest::default()
    };
    // Without a draw, so that everything else stays as it is.
    request.score_prompt = request.seed.is_multiple_of(6);
    request
}

fn random_device(random: &mut Random, faults: f64) -> DeviceSpec {
    DeviceSpec {
        base: 10 * random.range(1, 30),
        per_row: 10 * random.range(0, 2),
        per_token: 10 * random.range(0, 1),
        jitter: 10 * random.range(0, 5),
        step_failure: faults / 2.0,
        row_fault: faults,
        ..DeviceSpec::default()
    }
}

/// One long prompt within a short time, whole or its beginning: requests share its pages while the first of them still
/// computes it, go on writing them, or only read them.
fn contest(random: &mut Random, requests: &mut [SimRequest]) {
    let common: Vec<u32> = (0..random.size(60, 90)).map(|_| random_token(random)).collect();
    for SimRequest { at, request } in requests {
        let shared = if random.chance(0.5) { common.len() } else { random.size(17, 50) };
        request.prompt.truncate(4);
        request.prompt.splice(..0, common[..shared].iter().copied());
        request.cache_salt = None;
        *at /= 16;
    }
}

/// What goes wrong in some scenarios: a device that stalls now and then, a model that dies, all requests in a few
/// bursts.
fn foul(random: &mut Random, devices: &mut [DeviceSpec], requests: &mut [SimRequest]) {
    let last = devices.len() - 1;
    if random.chance(0.25) {
        devices[random.size(0, last)].stall = 0.01 * random.range(1, 10) as f64;
    }
    if random.chance(0.1) {
        devices[random.size(0, last)].dies_at = Some(10 * random.range(0, 1_000));
    }
    if random.chance(0.2) {
        let apart = 10 * random.range(50, 500);
        requests.iter_mut().for_each(|r| r.at = r.at.div_ceil(apart) * apart);
    }
}

fn random_actions(random: &mut Random, requests: &[SimRequest]) -> Vec<Action> {
    let rate = random.range(0, 6) as f64 / 10.0;
    let mut actions = Vec::new();
    for (client, request) in requests.iter().enumerate() {
        while random.chance(rate) && actions.len() < 4 * requests.len() {
            let at = request.at.saturating_sub(50) + 10 * random.range(0, 300);
            let what = match random.range(0, 1) {
                0 => What::Cancel,
                _ => What::Stop { back: random.range(0, 4) as u32 },
            };
            actions.push(Action { at, client, what });
        }
    }
    actions.sort_by_key(|a| a.at);
    actions
}

fn longest(requests: &[SimRequest]) -> usize {
    let lifetimes = requests.iter().map(|r| r.request.prompt.len() + r.request.max_new_tokens as usize);
    lifetimes.max().unwrap_or(1)
}
