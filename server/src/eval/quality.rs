//! How good a run's answers are: right answers where they are known, agreement with the large model where not.

use super::problems::Problem;

/// What an answer is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Quality {
    /// The right answer, which every line of the prompt file must have.
    Answer,
    /// The large model's own greedy answer to the same prompt, token by token.
    Agreement,
}

impl Quality {
    /// What was asked for; without that, answers where every prompt has one, agreement where none has.
    ///
    /// # Errors
    /// When answers are needed and a prompt has none.
    pub(super) fn choose(asked: Option<Quality>, problems: &[Problem]) -> Result<Quality, String> {
        let without = problems.iter().position(|p| p.answer.is_none());
        let some = problems.iter().any(|p| p.answer.is_some());
        match (asked, without) {
            (Some(Quality::Agreement), _) => Ok(Quality::Agreement),
            (_, None) => Ok(Quality::Answer),
            (None, Some(_)) if !some => Ok(Quality::Agreement),
            (_, Some(index)) => Err(format!(
                "prompt {index} has no \"answer\"; --quality agreement compares with the large model instead"
            )),
        }
    }
}

/// How good each answer of a run is, from 0 to 1.
#[derive(Clone, Debug)]
pub(super) struct Marks {
    quality: Quality,
    each: Vec<f64>,
}

impl Marks {
    /// From whether each answer is right.
    pub(super) fn right(right: &[bool]) -> Self {
        Marks { quality: Quality::Answer, each: right.iter().map(|r| f64::from(u8::from(*r))).collect() }
    }

    /// From the answers' tokens and the large model's, in the same order.
    pub(super) fn agreement<'a>(pairs: impl Iterator<Item = (&'a [u32], &'a [u32])>) -> Self {
        Marks { quality: Quality::Agreement, each: pairs.map(|(a, b)| rouge_l(a, b)).collect() }
    }

    /// What was measured.
    pub(super) fn quality(&self) -> Quality {
        self.quality
    }

    /// The mark of every answer.
    pub(super) fn each(&self) -> &[f64] {
        &self.each
    }

    /// The mean over the answers: accuracy or agreement.
    pub(super) fn mean(&self) -> f64 {
        self.each.iter().sum::<f64>() / self.each.len().max(1) as f64
    }

    /// The mean, if this quality was measured.
    pub(super) fn mean_of(&self, quality: Quality) -> Option<f64> {
        (self.quality == quality).then(|| self.mean())
    }

    /// Answers with the full mark: the right ones, or those that are the large model's to the token.
    pub(super) fn full(&self) -> usize {
        self.each.iter().filter(|mark| **mark == 1.0).count()
    }

    /// Share of the answers that are the large model's to the token, if agreement was measured.
    pub(super) fn exact(&self) -> Option<f64> {
        let share = self.full() as f64 / self.each.len().max(1) as f64;
        (self.quality == Quality::Agreement).then_some(share)
    }

    /// The standard error of the mean.
    pub(super) fn error(&self) -> f64 {
        let (mean, count) = (self.mean(), self.each.len().max(1) as f64);
        let variance = self.each.iter().map(|mark| (mark - mean).powi(2)).sum::<f64>() / count;
        (variance / count).sqrt()
    }
}

/// ROUGE-L F1 of two sequences: twice the length of their longest common subsequence over the sum of their lengths
/// (Lin 2004, equation 4, with equal weights for recall and precision). 1 for equal sequences, two empty ones among
/// them, and for no others.
fn rouge_l(a: &[u32], b: &[u32]) -> f64 {
    match a.len() + b.len() {
        0 => 1.0,
        both => 2.0 * longest_common(a, b) as f64 / both as f64,
    }
}

/// The length of the longest common subsequence; time `|a| |b|`, memory `|b|`.
fn longest_common(a: &[u32], b: &[u32]) -> usize {
    // After each token of `a`: the length for what was read of `a` and the first `j` tokens of `b`.
    let mut lengths = vec![0; b.len() + 1];
    for x in a {
        let mut diagonal = 0;
        for (j, y) in b.iter().enumerate() {
            let above = lengths[j + 1];
            lengths[j + 1] = if x == y { diagonal + 1 } else { above.max(lengths[j]) };
            diagonal = above;
        }
    }
    lengths[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether `part` is left when some tokens of `whole` are struck out.
    fn is_within(part: &[u32], whole: &[u32]) -> bool {
        let mut rest = whole.iter();
        part.iter().all(|x| rest.any(|y| x == y))
    }

    /// By trying every subsequence of `a`.
    fn brute_force(a: &[u32], b: &[u32]) -> usize {
        let subsequence = |mask: u32| -> Vec<u32> {
            a.iter().enumerate().filter(|(i, _)| mask >> i & 1 == 1).map(|(_, x)| *x).collect()
        };
        let common = (0..1_u32 << a.len()).map(subsequence).filter(|part| is_within(part, b));
        common.map(|part| part.len()).max().unwrap_or(0)
    }

    #[test]
    fn the_longest_common_subsequence_is_that_of_brute_force() {
        let mut state = 1_u64;
        let mut below = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        for round in 0..400 {
            let letters = 1 + round % 5;
            let mut sequence = || -> Vec<u32> { (0..below(10)).map(|_| below(letters) as u32).collect() };
            let (a, b) = (sequence(), sequence());
            let expected = brute_force(&a, &b);
            assert_eq!(longest_common(&a, &b), expected, "{a:?} {b:?}");
            assert_eq!(longest_common(&b, &a), expected, "{b:?} {a:?}");
        }
    }

    #[test]
    fn agreement_is_one_for_equal_answers_alone() {
        let abc: &[u32] = &[1, 2, 3];
        let cases: [(&[u32], &[u32], f64); 6] = [
            (abc, abc, 1.0),
            (&[], &[], 1.0),
            (abc, &[], 0.0),
            (abc, &[4, 5], 0.0),
            (abc, &[1, 3], 0.8),
            (abc, &[3, 2, 1], 1.0 / 3.0),
        ];
        for (a, b, expected) in cases {
            assert!((rouge_l(a, b) - expected).abs() < 1e-12, "{a:?} {b:?}: {}", rouge_l(a, b));
        }
        let marks = Marks::agreement(cases.iter().map(|(a, b, _)| (*a, *b)));
        assert_eq!((marks.full(), marks.exact()), (2, Some(2.0 / 6.0)));
        assert!((marks.mean() - (2.8 + 1.0 / 3.0) / 6.0).abs() < 1e-12);
        assert_eq!(marks.mean_of(Quality::Answer), None);
    }

    #[test]
    fn the_standard_error_of_right_answers_is_that_of_a_share() {
        let marks = Marks::right(&[true, false, true, true]);
        assert_eq!((marks.mean_of(Quality::Answer), marks.exact(), marks.full()), (Some(0.75), None, 3));
        assert!((marks.error() - (0.75_f64 * 0.25 / 4.0).sqrt()).abs() < 1e-12);
    }

    #[test]
    fn answers_are_compared_where_there_are_any() {
        let problem = |answer: Option<&str>| Problem {
            prompt: "p".into(),
            answer: answer.map(str::to_owned),
            score: None,
        };
        let (all, none) = ([problem(Some("1")), problem(Some("2"))], [problem(None), problem(None)]);
        let some = [problem(Some("1")), problem(None)];
        let asked = [None, Some(Quality::Answer), Some(Quality::Agreement)];
        let chosen = |problems: &[Problem]| asked.map(|a| Quality::choose(a, problems).ok());
        let (answer, agreement) = (Some(Quality::Answer), Some(Quality::Agreement));
        assert_eq!(chosen(&all), [answer, answer, agreement]);
        assert_eq!(chosen(&none), [agreement, None, agreement]);
        assert_eq!(chosen(&some), [None, None, agreement]);
        assert!(Quality::choose(None, &some).is_err_and(|e| e.contains("prompt 1 has no \"answer\"")));
    }
}
