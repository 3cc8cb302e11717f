//! The paper's three workloads (section 5.1): what is asked, and how long answers may be.

use tokenrouter_scheduler::sim::Random;

use super::ask::{Answer, Api, Prompt};
use crate::eval::Problem;

/// A workload of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Short in, short out: prompts of 100 tokens, answers of at most 2,048.
    LowEffort,
    /// Short in, long out: prompts of 100 tokens, answers of exactly 8,192.
    HighEffort,
    /// Conversations whose context grows turn by turn up to 8,192 tokens, answers of at most 1,024.
    Agentic,
}

impl Kind {
    /// As on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::LowEffort => "low-effort",
            Kind::HighEffort => "high-effort",
            Kind::Agentic => "agentic",
        }
    }

    /// The paper's sizes.
    pub(super) fn sizes(self) -> Sizes {
        let (prompt, answer, turns) = match self {
            Kind::LowEffort => (100, 2048, 1),
            Kind::HighEffort => (100, 8192, 1),
            Kind::Agentic => (8192, 1024, 8),
        };
        Sizes { prompt, answer, turns, to_the_end: self == Kind::HighEffort }
    }
}

/// Lengths in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Of the longest prompt: the last one of a conversation.
    pub(super) prompt: u32,
    /// Of an answer at most.
    pub(super) answer: u32,
    /// Most turns of a conversation.
    pub(super) turns: u32,
    /// Answers do not end before.
    pub(super) to_the_end: bool,
}

/// Tokens that a chat template may add to a prompt.
const TEMPLATE: u32 = 64;

impl Sizes {
    /// The sizes that fit a server's context, and what was changed; refused where no token of an answer would fit.
    pub(super) fn within(self, context: Option<u64>) -> (Self, Option<String>) {
        let Some(context) = context.map(|n| n.min(u64::from(u32::MAX)) as u32) else { return (self, None) };
        if u64::from(self.prompt) + u64::from(self.answer) + u64::from(TEMPLATE) <= u64::from(context) {
            return (self, None);
        }
        let room = context.saturating_sub(TEMPLATE).max(2);
        let prompt = self.prompt.min((room / 4 * 3).max(1));
        let sizes = Sizes { prompt, answer: self.answer.min(room - prompt).max(1), ..self };
        let changed = |what: &str, before: u32, after: u32| {
            (before != after).then(|| format!("{what} of at most {after} instead of {before}"))
        };
        let parts =
            [changed("prompts", self.prompt, sizes.prompt), changed("answers", self.answer, sizes.answer)];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        let note = format!("the server's context is {context} tokens: {}", parts.join(", "));
        (sizes, Some(note))
    }
}

/// What prompts are made of.
#[derive(Clone, Debug)]
pub(super) enum Material {
    /// As they are, some with a right answer.
    Problems(Vec<Problem>),
    /// Texts that are put one behind another and cut, and how many characters of them a token has.
    Texts(Vec<String>, f64),
    /// Ids that are drawn at random.
    Ids(Vec<u32>),
}

/// A workload, ready to be asked.
#[derive(Clone, Debug)]
pub(super) struct Workload {
    pub(super) sizes: Sizes,
    pub(super) material: Material,
    pub(super) api: Api,
    pub(super) seed: u64,
}

impl Workload {
    /// The conversation of this number in this repeat: the same for every setting.
    pub(super) fn talk(&self, repeat: u32, index: u64) -> Talk<'_> {
        let key = self.seed ^ (u64::from(repeat) << 40) ^ index;
        Talk {
            workload: self,
            random: Random::new(key),
            // A stride that is no divisor of usual counts: no two repeats begin with the same prompts.
            number: index as usize + 17 * repeat as usize,
            turn: 0,
            context: 0,
            said: Vec::new(),
            ids: Vec::new(),
        }
    }
}

/// One conversation.
pub(super) struct Talk<'a> {
    workload: &'a Workload,
    random: Random,
    number: usize,
    turn: u32,
    /// Tokens so far, prompts and answers.
    context: u32,
    said: Vec<(&'static str, String)>,
    ids: Vec<u32>,
}

impl<'a> Talk<'a> {
    /// The next prompt; none when the conversation is over.
    pub(super) fn next(&mut self) -> Option<Prompt> {
        let Sizes { prompt, turns, .. } = self.workload.sizes;
        let part = (prompt / turns.max(1)).max(1);
        if self.turn >= turns || (self.turn > 0 && self.context + part > prompt) {
            return None;
        }
        self.turn += 1;
        self.context += part;
        let text = match &self.workload.material {
            Material::Ids(known) => {
                self.draw(known, part);
                return Some(Prompt::Ids(self.ids.clone()));
            }
            Material::Problems(problems) => {
                problems[(self.number + self.turn as usize - 1) % problems.len()].prompt.clone()
            }
            Material::Texts(texts, per_token) => {
                let most = ((f64::from(part) * per_token) as usize).max(1);
                joined(texts, most, &mut self.random)
            }
        };
        self.said.push(("user", text));
        Some(match self.workload.api {
            Api::Chat => Prompt::Messages(self.said.clone()),
            Api::Completions => {
                let all: Vec<&str> = self.said.iter().map(|(_, text)| text.as_str()).collect();
                Prompt::Text(all.join("\n"))
            }
        })
    }

    /// Takes an answer into the context of the next turn.
    pub(super) fn hear(&mut self, answer: &Answer) {
        self.context += answer.tokens;
        self.said.push(("assistant", answer.text.clone()));
        if let Material::Ids(known) = &self.workload.material {
            self.ids.extend(&answer.ids);
            // A server that does not say the ids gets others in their place, as many.
            self.draw(known, answer.tokens.saturating_sub(answer.ids.len() as u32));
        }
    }

    /// The right answer to the present prompt, where it has one.
    pub(super) fn right(&self) -> Option<&'a str> {
        match &self.workload.material {
            Material::Problems(problems) if self.workload.sizes.turns == 1 => {
                problems[self.number % problems.len()].answer.as_deref()
            }
            _ => None,
        }
    }

    fn draw(&mut self, known: &[u32], count: u32) {
        let random = &mut self.random;
        self.ids.extend((0..count).map(|_| known[random.size(0, known.len() - 1)]));
    }
}

/// Texts in random order, `most` characters of them.
fn joined(texts: &[String], most: usize, random: &mut Random) -> String {
    let mut out = String::new();
    let mut left = most;
    while left > 0 {
        if !out.is_empty() {
            out.push('\n');
            left -= 1;
        }
        let text = &texts[random.size(0, texts.len() - 1)];
        let taken: String = text.chars().take(left).collect();
        if taken.is_empty() && left > 0 {
            // An empty text would not end the loop.
            out.push(' ');
            left -= 1;
        }
        left -= taken.chars().count();
        out.push_str(&taken);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(kind: Kind, material: Material, api: Api) -> Workload {
        Workload { sizes: kind.sizes(), material, api, seed: 5 }
    }

    fn answer(tokens: u32) -> Answer {
        Answer { text: "well".into(), tokens, ..Answer::default() }
    }

    #[test]
    fn a_conversation_grows_until_the_context_is_full() {
        let ids = workload(Kind::Agentic, Material::Ids((10..90).collect()), Api::Completions);
        let mut talk = ids.talk(0, 3);
        let mut lengths = Vec::new();
        let mut before: Vec<u32> = Vec::new();
        while let Some(Prompt::Ids(prompt)) = talk.next() {
            assert!(prompt.starts_with(&before) && prompt.iter().all(|id| (10..90).contains(id)));
            lengths.push(prompt.len());
            before = prompt;
            talk.hear(&answer(1024));
        }
        assert_eq!(lengths, [1024, 3072, 5120, 7168], "a thousand tokens are asked, a thousand answered");
        let mut talk = ids.talk(0, 3);
        assert_eq!(std::iter::from_fn(|| talk.next()).count(), 8, "without answers, a prompt per turn");
    }

    #[test]
    fn prompts_have_the_length_asked_for_and_depend_on_seed_repeat_and_number_alone() {
        let texts = Material::Texts(vec!["äbc".into(), String::new(), "defgh".into()], 2.0);
        let low = workload(Kind::LowEffort, texts, Api::Chat);
        let first = |repeat, index| low.talk(repeat, index).next().expect("a prompt");
        let Prompt::Messages(said) = first(0, 1) else { panic!("a chat") };
        assert_eq!((said[0].0, said[0].1.chars().count()), ("user", 200));
        assert_eq!(first(0, 1), first(0, 1));
        assert!(first(0, 1) != first(0, 2) && first(0, 1) != first(1, 1));
    }

    #[test]
    fn problems_come_in_turn_with_their_answers() {
        let problem = |n: u32| Problem { prompt: format!("p{n}"), answer: Some(n.to_string()), score: None };
        let problems = Material::Problems((0..3).map(problem).collect());
        let low = workload(Kind::LowEffort, problems, Api::Completions);
        for index in 0..6 {
            let mut talk = low.talk(0, index);
            assert_eq!(talk.right(), Some((index % 3).to_string().as_str()));
            assert_eq!(talk.next(), Some(Prompt::Text(format!("p{}", index % 3))));
            assert_eq!(talk.next(), None);
        }
    }

    #[test]
    fn sizes_shrink_to_the_context() {
        let sizes = Kind::HighEffort.sizes();
        assert_eq!(sizes.within(None), (sizes, None));
        assert_eq!(sizes.within(Some(32_768)), (sizes, None));
        let (small, note) = sizes.within(Some(4096));
        assert_eq!((small.prompt, small.answer), (100, 4096 - 64 - 100));
        assert!(note.is_some_and(|n| n.contains("4096") && n.contains("8192")));
        let (tiny, _) = Kind::Agentic.sizes().within(Some(4096));
        assert_eq!((tiny.prompt, tiny.answer), (3024, 1008));
        let (none, _) = sizes.within(Some(1));
        assert!(none.prompt >= 1 && none.answer >= 1);
    }
}
