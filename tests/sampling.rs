//! How tokens are drawn, compared with a reference that is written here from the rules alone: mask, bias, stop ids
//! before `min_tokens`, repetition, frequency and presence, temperature, `top_k`, `top_p`, `min_p`, draw (bug log L16).
//!
//! The model says the same logits after every token, so that every token of an answer is a draw whose probabilities
//! are known. Seeds are fixed: a run is the same every time.

mod support;

use std::collections::BTreeSet;

use serde_json::{Value, json};
use support::http::{post, request, send};
use support::process::ServerProcess;
use support::scripted::{Script, pair_config};
use support::tokenizers::{START, TestTokenizer, byte_bpe};

/// One rule of the order.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rule {
    Bias,
    MinTokens,
    Repetition,
    Frequency,
    Temperature,
    TopK,
    TopP,
    MinP,
}

use Rule::{Bias, Frequency, MinP, MinTokens, Repetition, Temperature, TopK, TopP};

/// The order that is promised.
const ORDER: [Rule; 8] = [Bias, MinTokens, Repetition, Frequency, Temperature, TopK, TopP, MinP];

/// A request's fields and its history.
#[derive(Clone, Debug)]
struct Ask {
    fields: Value,
    prompt: Vec<u32>,
}

impl Ask {
    fn number(&self, name: &str, otherwise: f64) -> f64 {
        // What a client writes is kept in single precision.
        self.fields[name].as_f64().map_or(otherwise, |x| f64::from(x as f32))
    }

    fn ids(&self, name: &str) -> Vec<usize> {
        let ids = self.fields[name].as_array().into_iter().flatten();
        ids.map(|id| id.as_u64().expect("an id") as usize).collect()
    }

    /// The probabilities of the next token under this order of rules.
    fn probabilities(&self, logits: &[f64], output: &[u32], order: &[Rule]) -> Vec<f64> {
        let mut x = logits.to_vec();
        for rule in order {
            self.apply(*rule, &mut x, output);
        }
        softmax(&x)
    }

    /// Whether what was written changes what comes next.
    fn reads_history(&self) -> bool {
        let fields = ["repetition_penalty", "frequency_penalty", "presence_penalty", "min_tokens"];
        fields.iter().any(|name| !self.fields[name].is_null())
    }

    fn apply(&self, rule: Rule, x: &mut [f64], output: &[u32]) {
        match rule {
            Bias => {
                for (id, bias) in self.fields["logit_bias"].as_object().into_iter().flatten() {
                    x[id.parse::<usize>().expect("an id")] += bias.as_f64().expect("a number");
                }
            }
            MinTokens => {
                if (output.len() as f64) < self.number("min_tokens", 0.0) {
                    self.ids("stop_token_ids").into_iter().for_each(|id| x[id] = f64::NEG_INFINITY);
                }
            }
            Repetition => {
                let penalty = self.number("repetition_penalty", 1.0);
                let seen: BTreeSet<u32> = self.prompt.iter().chain(output).copied().collect();
                for id in seen {
                    let x = &mut x[id as usize];
                    *x = if *x > 0.0 { *x / penalty } else { *x * penalty };
                }
            }
            Frequency => {
                let (each, once) =
                    (self.number("frequency_penalty", 0.0), self.number("presence_penalty", 0.0));
                output.iter().for_each(|id| x[*id as usize] -= each);
                let written: BTreeSet<u32> = output.iter().copied().collect();
                written.into_iter().for_each(|id| x[id as usize] -= once);
            }
            Temperature => x.iter_mut().for_each(|x| *x /= self.number("temperature", 1.0)),
            TopK => keep(x, self.number("top_k", f64::INFINITY) as usize),
            TopP => {
                let (p, wanted) = (softmax(x), self.number("top_p", 1.0));
                let mut sum = 0.0;
                let ids = ranks(x);
                let kept = ids.iter().take_while(|id| {
                    let before = sum;
                    sum += p[**id];
                    before < wanted
                });
                let kept = kept.count().max(1);
                keep(x, kept);
            }
            MinP => {
                let p = softmax(x);
                let least = self.number("min_p", 0.0) * p.iter().copied().fold(0.0, f64::max);
                x.iter_mut().zip(p).filter(|(_, p)| *p < least).for_each(|(x, _)| *x = f64::NEG_INFINITY);
            }
        }
    }
}

fn softmax(x: &[f64]) -> Vec<f64> {
    let most = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let e: Vec<f64> = x.iter().map(|x| (x - most).exp()).collect();
    let sum: f64 = e.iter().sum();
    e.iter().map(|e| e / sum).collect()
}

/// Ids from the best on, ties by the lower id.
fn ranks(x: &[f64]) -> Vec<usize> {
    let mut ids: Vec<usize> = (0..x.len()).collect();
    ids.sort_by(|a, b| x[*b].total_cmp(&x[*a]).then(a.cmp(b)));
    ids
}

fn keep(x: &mut [f64], count: usize) {
    ranks(x).into_iter().skip(count).for_each(|id| x[id] = f64::NEG_INFINITY);
}

/// Logits with a long tail, none of them equal.
fn uneven(vocab: usize) -> Vec<f32> {
    let noise = |i: usize| ((i * 7919 + 13) % 1009) as f32 / 1009.0;
    (0..vocab).map(|i| -3.0 + 5.5 * noise(i).powi(3) - 0.003 * noise(i + 500)).collect()
}

/// Many equal logits, the best of them at ids 40, 90 and 200.
fn tied(vocab: usize) -> Vec<f32> {
    let best = |i: usize| [200, 90, 40].contains(&i);
    (0..vocab).map(|i| if best(i) { 4.0 } else { (i % 3) as f32 }).collect()
}

struct Rig {
    server: ServerProcess,
    start: u32,
    logits: [Vec<f64>; 2],
}

impl Rig {
    fn new() -> Self {
        let tokenizer: TestTokenizer = byte_bpe(&[b"ab"]);
        let vocab = tokenizer.vocab();
        let logits = [uneven(vocab), tied(vocab)];
        let [small, large] = [0, 1].map(|model| {
            let mut script = Script::new(&tokenizer);
            (0..vocab as u32).for_each(|token| script.logits(token, &logits[model]));
            script.write("constant", &tokenizer)
        });
        let server =
            ServerProcess::start(&pair_config(&small, &large, "name = \"single\"\nmodel = \"small\"", ""));
        let logits = logits.map(|list| list.iter().map(|x| f64::from(*x)).collect());
        Rig { server, start: tokenizer.control(START), logits }
    }

    /// The answers of all choices.
    fn ask(&self, model: usize, ask: &Ask, n: usize, most: usize, seed: i64) -> Vec<Vec<u32>> {
        let mut body = ask.fields.clone();
        body["prompt"] = json!(ask.prompt);
        for (key, value) in [("n", json!(n)), ("max_tokens", json!(most)), ("seed", json!(seed))] {
            body[key] = value;
        }
        body["model"] = json!(["small", "large"][model]);
        body["ignore_eos"] = json!(true);
        body["return_token_ids"] = json!(true);
        let answer = post(self.server.http, "/v1/completions", &body);
        assert_eq!(answer.status, 200, "{body}: {}", answer.body);
        let choices = answer.json()["choices"].as_array().expect("choices").clone();
        let ids = |choice: &Value| -> Vec<u32> {
            let ids = choice["token_ids"].as_array().expect("ids").iter();
            ids.map(|id| id.as_u64().expect("an id") as u32).collect()
        };
        choices.iter().map(ids).collect()
    }
}

/// What the draws say about an order of the rules.
#[derive(Default)]
struct Evidence {
    observed: Vec<f64>,
    expected: Vec<f64>,
    /// Draws of tokens that this order never draws.
    impossible: usize,
}

impl Evidence {
    fn of(ask: &Ask, logits: &[f64], answers: &[Vec<u32>], order: &[Rule]) -> Self {
        let mut evidence = Evidence::default();
        let always = ask.probabilities(logits, &[], order);
        for answer in answers {
            for (step, token) in answer.iter().enumerate() {
                if ask.reads_history() {
                    evidence.add(&ask.probabilities(logits, &answer[..step], order), *token);
                } else {
                    evidence.add(&always, *token);
                }
            }
        }
        evidence
    }

    fn add(&mut self, probabilities: &[f64], token: u32) {
        self.observed.resize(probabilities.len(), 0.0);
        self.expected.resize(probabilities.len(), 0.0);
        self.observed[token as usize] += 1.0;
        self.expected.iter_mut().zip(probabilities).for_each(|(sum, p)| *sum += p);
        self.impossible += usize::from(probabilities[token as usize] == 0.0);
    }

    /// Pearson's statistic with rare tokens taken together, and how far it lies above its mean in standard deviations.
    fn excess(&self) -> f64 {
        let (mut sum, mut groups) = (0.0, 0.0);
        let mut rest = (0.0, 0.0);
        let mut group = |o: f64, e: f64| {
            sum += (o - e) * (o - e) / e;
            groups += 1.0;
        };
        for (o, e) in self.observed.iter().zip(&self.expected) {
            if *e >= 8.0 {
                group(*o, *e);
            } else {
                rest = (rest.0 + o, rest.1 + e);
            }
        }
        if rest.1 >= 8.0 {
            group(rest.0, rest.1);
        }
        let freedom: f64 = groups - 1.0;
        if freedom < 1.0 { 0.0 } else { (sum - freedom) / (2.0 * freedom).sqrt() }
    }

    fn refuted(&self) -> bool {
        self.impossible > 0 || self.excess() > 6.0
    }
}

fn cases(rig: &Rig) -> Vec<Ask> {
    let best = ranks(&rig.logits[0]);
    let plain = vec![
        json!({}),
        json!({"temperature": 0.6}),
        json!({"temperature": 1.7, "top_k": 12}),
        json!({"temperature": 0.5, "top_p": 0.7}),
        json!({"temperature": 1.5, "top_p": 0.6}),
        json!({"temperature": 1.4, "min_p": 0.2}),
        json!({"temperature": 0.4, "min_p": 0.3}),
        json!({"top_k": 20, "top_p": 0.8}),
        json!({"temperature": 1.6, "top_k": 30, "top_p": 0.9, "min_p": 0.25}),
        json!({"top_p": 0.5, "min_p": 0.4}),
        json!({"logit_bias": {"7": 4.5, "200": -3, "9": 2.25}, "temperature": 0.7}),
        json!({"min_tokens": 12, "stop_token_ids": best[..2], "top_k": 8}),
        json!({"repetition_penalty": 1.6, "logit_bias": {"101": 5.5, "102": 6.0}, "top_k": 16}),
        json!({"repetition_penalty": 0.6, "temperature": 0.8}),
        json!({"frequency_penalty": 0.9, "presence_penalty": 0.4, "temperature": 0.3, "top_k": 20}),
        json!({"frequency_penalty": -0.3, "temperature": 0.9}),
        json!({"repetition_penalty": 2.0, "presence_penalty": 1.9, "frequency_penalty": 0.2, "top_p": 0.9}),
        json!({"repetition_penalty": 1.3, "presence_penalty": -0.8, "temperature": 0.5, "top_k": 40, "top_p": 0.85,
               "min_p": 0.05, "logit_bias": {"30": 1.5, "31": -100}}),
    ];
    // Tokens 101 and 7 stand in the prompt, for the repetition penalty alone.
    let prompt = vec![101, 7, 31, rig.start];
    plain.into_iter().map(|fields| Ask { fields, prompt: prompt.clone() }).collect()
}

#[test]
fn draws_follow_the_rules_in_their_order_and_in_no_other() {
    let rig = Rig::new();
    let others: [(&str, Vec<Rule>); 7] = [
        (
            "repetition before bias",
            vec![Repetition, Bias, MinTokens, Frequency, Temperature, TopK, TopP, MinP],
        ),
        (
            "frequency before repetition",
            vec![Bias, MinTokens, Frequency, Repetition, Temperature, TopK, TopP, MinP],
        ),
        (
            "temperature before penalties",
            vec![Bias, MinTokens, Temperature, Repetition, Frequency, TopK, TopP, MinP],
        ),
        ("temperature last", vec![Bias, MinTokens, Repetition, Frequency, TopK, TopP, MinP, Temperature]),
        (
            "min_p before the other filters",
            vec![Bias, MinTokens, Repetition, Frequency, Temperature, MinP, TopK, TopP],
        ),
        ("top_p before top_k", vec![Bias, MinTokens, Repetition, Frequency, Temperature, TopP, TopK, MinP]),
        ("stop ids masked last", vec![Bias, Repetition, Frequency, Temperature, TopK, TopP, MinP, MinTokens]),
    ];
    let mut refuted = [false; 7];
    for (at, ask) in cases(&rig).iter().enumerate() {
        let answers: Vec<Vec<u32>> =
            (0..4).flat_map(|seed| rig.ask(0, ask, 8, 32, 100 * at as i64 + seed)).collect();
        let ours = Evidence::of(ask, &rig.logits[0], &answers, &ORDER);
        let (impossible, excess) = (ours.impossible, ours.excess());
        assert!(!ours.refuted(), "{:?}: {impossible} impossible draws, excess {excess:.1}", ask.fields);
        for (refuted, (_, order)) in refuted.iter_mut().zip(&others) {
            *refuted = *refuted || Evidence::of(ask, &rig.logits[0], &answers, order).refuted();
        }
    }
    let undecided: Vec<&str> = others.iter().zip(refuted).filter(|(_, r)| !r).map(|((n, _), _)| *n).collect();
    assert!(undecided.is_empty(), "the draws cannot tell our order from these: {undecided:?}");
    rig.server.stop();
}

/// Temperature 0 and below 1e-5: the best of the penalised logits, the lowest id among equals, whatever the filters.
#[test]
fn temperature_zero_took_the_filters_into_account() {
    let rig = Rig::new();
    let more = [
        json!({}),
        json!({"top_p": 0.5, "top_k": 5, "min_p": 0.3}),
        json!({"top_p": 0}),
        json!({"repetition_penalty": 1.7}),
        json!({"frequency_penalty": 0.7, "presence_penalty": 0.3, "top_p": 0.1}),
        json!({"logit_bias": {"8": 100, "5": 100}, "frequency_penalty": 2}),
    ];
    for model in [0, 1] {
        for more in &more {
            for temperature in [0.0, 1e-8, 9e-6] {
                let mut fields = more.clone();
                fields["temperature"] = json!(temperature);
                let ask = Ask { fields, prompt: vec![90, rig.start] };
                let mut wanted: Vec<u32> = Vec::new();
                for _ in 0..20 {
                    let mut x = rig.logits[model].clone();
                    [Bias, Repetition, Frequency].iter().for_each(|rule| ask.apply(*rule, &mut x, &wanted));
                    // In single precision, as the model has them: equals stay equals.
                    let x: Vec<f64> = x.iter().map(|x| f64::from(*x as f32)).collect();
                    wanted.push(ranks(&x)[0] as u32);
                }
                for seed in 0..10 {
                    assert_eq!(
                        rig.ask(model, &ask, 1, 20, seed),
                        [wanted.clone()],
                        "{model} {:?}",
                        ask.fields
                    );
                }
            }
        }
    }
    rig.server.stop();
}

/// `top_p` 0 and `min_p` 1 leave the best token; a small temperature that is still one overflows nothing.
#[test]
fn filters_that_would_leave_nothing_keep_the_best() {
    let rig = Rig::new();
    let best = ranks(&rig.logits[0])[0] as u32;
    for fields in [
        json!({"top_p": 0}),
        json!({"top_p": 0, "temperature": 2}),
        json!({"min_p": 1}),
        json!({"top_k": 1}),
        json!({"temperature": 2e-5}),
        json!({"temperature": 0.004, "logit_bias": {(best.to_string()): 100}}),
        json!({"top_p": 1e-9, "min_p": 1, "top_k": 1, "temperature": 1.9}),
    ] {
        let ask = Ask { fields, prompt: vec![rig.start] };
        for seed in 0..4 {
            assert_eq!(rig.ask(0, &ask, 1, 16, seed), [vec![best; 16]], "{:?}", ask.fields);
        }
    }
    // Of equals, `top_p` 0 and `top_k` 1 take the lowest id.
    for fields in [json!({"top_p": 0}), json!({"top_k": 1})] {
        let ask = Ask { fields, prompt: vec![rig.start] };
        assert_eq!(rig.ask(1, &ask, 1, 16, 3), [vec![40; 16]], "{:?}", ask.fields);
    }
    rig.server.stop();
}

#[test]
fn temperatures_that_mean_nothing_are_refused() {
    let rig = Rig::new();
    for value in ["-1", "-1e-9", "2.01", "NaN", "Infinity", "1e999", "\"0\"", "true", "[]"] {
        let body = format!("{{\"prompt\": [{}], \"temperature\": {value}}}", rig.start);
        let answer = send(rig.server.http, &request("POST", "/v1/completions", body.as_bytes()));
        assert_eq!(answer.status, 400, "{value}: {}", answer.body);
    }
    rig.server.stop();
}

/// Equal seeds give equal draws, also negative ones; choices and seeds differ from one another.
#[test]
fn seeds_and_choices_name_the_draws() {
    let rig = Rig::new();
    let ask = Ask { fields: json!({}), prompt: vec![rig.start] };
    for seed in [0, 1, -1, i64::MAX, i64::MIN] {
        let (a, b) = (rig.ask(0, &ask, 4, 24, seed), rig.ask(0, &ask, 4, 24, seed));
        assert_eq!(a, b, "{seed}");
        let alone = rig.ask(0, &ask, 1, 24, seed);
        assert_eq!(alone[0], a[0], "the first of four is that of one");
        let different = (0..4).all(|i| (0..i).all(|j| a[i] != a[j]));
        assert!(different, "{seed}: {a:?}");
        assert_ne!(a, rig.ask(0, &ask, 4, 24, seed ^ 2));
    }
    rig.server.stop();
}
