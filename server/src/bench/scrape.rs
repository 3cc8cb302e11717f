//! What our server says about itself in `/metrics`, between two looks.

use super::stats::Buckets;

/// One page, sample by sample.
#[derive(Clone, Debug, Default)]
pub(super) struct Page(Vec<Sample>);

#[derive(Clone, Debug, PartialEq)]
struct Sample {
    name: String,
    labels: Vec<(String, String)>,
    value: f64,
}

impl Page {
    /// Reads a page; lines that are no samples are passed over.
    pub(super) fn parse(text: &str) -> Self {
        Page(text.lines().filter(|line| !line.starts_with('#')).filter_map(sample).collect())
    }

    /// Whether it is one of ours.
    pub(super) fn is_ours(&self) -> bool {
        self.0.iter().any(|s| s.name == "tokenrouter:launches_total")
    }

    /// The sum of a family over all samples that have these labels; none without a sample.
    pub(super) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let mut found = self.family(name, labels).map(|s| s.value).peekable();
        found.peek()?;
        Some(found.sum())
    }

    fn family<'a>(&'a self, name: &'a str, labels: &'a [(&str, &str)]) -> impl Iterator<Item = &'a Sample> {
        let has = |s: &Sample| labels.iter().all(|(key, value)| s.label(key) == Some(value));
        self.0.iter().filter(move |s| s.name == name && has(s))
    }

    /// A histogram, samples with different other labels added up.
    fn buckets(&self, name: &str, labels: &[(&str, &str)]) -> Buckets {
        let mut upto: Vec<(f64, f64)> = Vec::new();
        for sample in self.family(&format!("{name}_bucket"), labels) {
            let Some(bound) = sample.label("le").and_then(|le| le.parse().ok()) else { continue };
            match upto.iter_mut().find(|(known, _)| *known == bound) {
                Some((_, count)) => *count += sample.value,
                None => upto.push((bound, sample.value)),
            }
        }
        upto.sort_by(|a, b| a.0.total_cmp(&b.0));
        Buckets { upto, sum: self.sum(&format!("{name}_sum"), labels).unwrap_or(0.0) }
    }

    /// The models, in the order of the page.
    fn models(&self) -> Vec<&str> {
        self.family("tokenrouter:launches_total", &[]).filter_map(|s| s.label("model")).collect()
    }
}

impl Sample {
    fn label(&self, key: &str) -> Option<&str> {
        self.labels.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }
}

/// `name{key="value",...} number`, or without labels.
fn sample(line: &str) -> Option<Sample> {
    let (head, value) = line.trim().rsplit_once(' ')?;
    let value = value.parse().ok()?;
    let (name, rest) = head.split_once('{').unwrap_or((head, "}"));
    let mut rest = rest.strip_suffix('}')?;
    let mut labels = Vec::new();
    while !rest.is_empty() {
        let (key, behind) = rest.split_once("=\"")?;
        let mut text = String::new();
        let mut chars = behind.char_indices();
        let end = loop {
            match chars.next()? {
                (at, '"') => break at,
                (_, '\\') => text.push(match chars.next()?.1 {
                    'n' => '\n',
                    other => other,
                }),
                (_, other) => text.push(other),
            }
        };
        labels.push((key.to_owned(), text));
        rest = behind[end + 1..].trim_start_matches(',');
    }
    Some(Sample { name: name.to_owned(), labels, value })
}

/// One model between two looks.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ModelSide {
    pub(super) name: String,
    /// Steps launched, those that failed, and their rows and tokens.
    pub(super) launches: f64,
    pub(super) failed_steps: f64,
    pub(super) rows: f64,
    pub(super) fed: f64,
    /// Tokens of answers that it wrote, candidates that were dropped, tokens of prompts that it found in its cache.
    pub(super) committed: f64,
    pub(super) discarded: f64,
    pub(super) cached: f64,
    /// Seconds with a step in flight.
    pub(super) busy: f64,
    /// Requests handed to other models.
    pub(super) handoffs: f64,
    /// The paper's admission delay, in seconds: from the verdict to the launch.
    pub(super) wait: Buckets,
    /// Rows of a step.
    pub(super) batch: Buckets,
    /// Seconds of a step.
    pub(super) step: Buckets,
}

impl ModelSide {
    /// Rows of a step in the mean; none without steps.
    pub(super) fn mean_batch(&self) -> Option<f64> {
        (self.launches > 0.0).then(|| self.rows / self.launches)
    }
}

/// The server between two looks.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ServerSide {
    pub(super) models: Vec<ModelSide>,
    /// From a request's arrival to its admission, in seconds.
    pub(super) admission: Buckets,
    pub(super) preemptions: f64,
    pub(super) guard_launches: f64,
    /// Processor time as the server knows it.
    pub(super) cpu_seconds: Option<f64>,
}

impl ServerSide {
    /// What `after` counts more than `before`; none when they are not of our server.
    pub(super) fn between(before: &Page, after: &Page) -> Option<Self> {
        if !after.is_ours() {
            return None;
        }
        let more = |name: &str, labels: &[(&str, &str)]| {
            after.sum(name, labels).unwrap_or(0.0) - before.sum(name, labels).unwrap_or(0.0)
        };
        let histogram = |name: &str, labels: &[(&str, &str)]| {
            let (old, mut new) = (before.buckets(name, labels), after.buckets(name, labels));
            new.upto.iter_mut().zip(&old.upto).for_each(|(new, old)| new.1 -= old.1);
            new.sum -= old.sum;
            new
        };
        let model = |name: &&str| {
            let of = &[("model", *name)][..];
            let count = |metric: &str| more(&format!("tokenrouter:{metric}"), of);
            ModelSide {
                name: (*name).to_owned(),
                launches: count("launches_total"),
                failed_steps: count("step_failures_total"),
                rows: count("batch_rows_total"),
                fed: count("fed_tokens_total"),
                committed: count("committed_tokens_total"),
                discarded: count("discarded_tokens_total"),
                cached: count("cached_tokens_total"),
                busy: count("busy_seconds_total"),
                handoffs: more("tokenrouter:handoffs_total", &[("from", *name)]),
                wait: histogram("tokenrouter:admission_wait_seconds", of),
                batch: histogram("tokenrouter:batch_size", of),
                step: histogram("tokenrouter:step_seconds", of),
            }
        };
        let cpu = "process_cpu_seconds_total";
        Some(ServerSide {
            models: after.models().iter().map(model).collect(),
            admission: histogram("vllm:request_queue_time_seconds", &[]),
            preemptions: more("vllm:num_preemptions_total", &[]),
            guard_launches: more("tokenrouter:guard_launches_total", &[]),
            cpu_seconds: after.sum(cpu, &[]).map(|_| more(cpu, &[])),
        })
    }

    /// This and another of the same server, added up.
    pub(super) fn and(mut self, other: &Self) -> Self {
        for (mine, theirs) in self.models.iter_mut().zip(&other.models) {
            mine.launches += theirs.launches;
            mine.failed_steps += theirs.failed_steps;
            mine.rows += theirs.rows;
            mine.fed += theirs.fed;
            mine.committed += theirs.committed;
            mine.discarded += theirs.discarded;
            mine.cached += theirs.cached;
            mine.busy += theirs.busy;
            mine.handoffs += theirs.handoffs;
            mine.wait = std::mem::take(&mut mine.wait).and(&theirs.wait);
            mine.batch = std::mem::take(&mut mine.batch).and(&theirs.batch);
            mine.step = std::mem::take(&mut mine.step).and(&theirs.step);
        }
        self.admission = std::mem::take(&mut self.admission).and(&other.admission);
        self.preemptions += other.preemptions;
        self.guard_launches += other.guard_launches;
        self.cpu_seconds = self.cpu_seconds.zip(other.cpu_seconds).map(|(a, b)| a + b);
        self
    }

    /// Requests handed over.
    pub(super) fn handoffs(&self) -> f64 {
        self.models.iter().map(|m| m.handoffs).sum()
    }

    /// Share of the tokens that other models than the first wrote; none without tokens.
    pub(super) fn large_share(&self) -> Option<f64> {
        let all: f64 = self.models.iter().map(|m| m.committed).sum();
        let first = self.models.first()?.committed;
        (all > 0.0).then(|| 1.0 - first / all)
    }

    /// The admission delay over all models.
    pub(super) fn wait(&self) -> Buckets {
        self.models.iter().fold(Buckets::default(), |sum, m| sum.and(&m.wait))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(launches: u32, slow: u32) -> Page {
        let all = launches + slow;
        Page::parse(&format!(
            "# HELP x y\n\
             tokenrouter:launches_total{{model_name=\"a\",model=\"s\\\"m,all\"}} {launches}\n\
             tokenrouter:launches_total{{model_name=\"a\",model=\"large\"}} {slow}\n\
             tokenrouter:batch_rows_total{{model_name=\"a\",model=\"large\"}} {}\n\
             tokenrouter:committed_tokens_total{{model_name=\"a\",model=\"s\\\"m,all\"}} {launches}\n\
             tokenrouter:committed_tokens_total{{model_name=\"a\",model=\"large\"}} {slow}\n\
             tokenrouter:batch_size_bucket{{model_name=\"a\",model=\"large\",phase=\"decode\",le=\"1\"}} {slow}\n\
             tokenrouter:batch_size_bucket{{model_name=\"a\",model=\"large\",phase=\"decode\",le=\"+Inf\"}} {slow}\n\
             tokenrouter:batch_size_bucket{{model_name=\"a\",model=\"large\",phase=\"extend\",le=\"1\"}} 0\n\
             tokenrouter:batch_size_bucket{{model_name=\"a\",model=\"large\",phase=\"extend\",le=\"+Inf\"}} {launches}\n\
             tokenrouter:batch_size_sum{{model_name=\"a\",model=\"large\",phase=\"extend\"}} {all}\n\
             process_cpu_seconds_total {all}.5\nbroken line\n",
            3 * slow
        ))
    }

    #[test]
    fn what_came_between_two_looks_is_counted() {
        let side = ServerSide::between(&page(10, 4), &page(16, 6)).expect("ours");
        let names: Vec<&str> = side.models.iter().map(|m| m.name.as_str()).collect();
        assert_eq!(names, ["s\"m,all", "large"]);
        assert_eq!((side.models[0].launches, side.models[1].launches, side.models[1].rows), (6.0, 2.0, 6.0));
        assert_eq!(side.models[1].mean_batch(), Some(3.0));
        assert_eq!(side.models[1].batch.upto, [(1.0, 2.0), (f64::INFINITY, 8.0)], "both phases");
        assert_eq!(side.models[1].batch.sum, 8.0);
        assert_eq!((side.large_share(), side.cpu_seconds), (Some(0.25), Some(8.0)));
        let foreign = Page::parse("vllm:num_requests_running{model_name=\"a\"} 1\n");
        assert_eq!(ServerSide::between(&foreign, &foreign), None);
    }
}
