//! Scores from torch's own hidden states and logits: only the heads can be at fault here.

use tokenrouter_kernels::cpu::{Isa, StepTokens};

use super::{HeadSet, HeadSizes, PromptEnd, golden};

const HEADS: [&str; 5] = ["r2r-plain", "r2r-widths", "r2r-three", "citer", "co-llm"];

#[test]
fn scores_are_those_of_torch() {
    for name in HEADS {
        let truth = golden::array(&format!("score.{name}"));
        let scores = golden::scores(name, Isa::fastest(), 1, 0..truth.len());
        let worst = scores.iter().zip(&truth).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        println!("{name}: largest difference {worst:.2e}");
        assert!(worst < 1e-6, "{name}: {worst}");
        assert!(
            scores.iter().zip(&truth).any(|(a, b)| (a - 0.5 * b).abs() > 1e-3),
            "{name}: scores are not all 0"
        );
    }
}

#[test]
fn a_score_depends_on_its_row_alone() {
    for name in HEADS {
        let all = golden::scores(name, Isa::fastest(), 1, 0..40);
        for isa in [Isa::Portable, Isa::Avx2, Isa::Avx512] {
            for threads in [1, 3] {
                for rows in [0..1, 7..8, 3..19, 20..40] {
                    let some = golden::scores(name, isa, threads, rows.clone());
                    let same = some.iter().zip(&all[rows.clone()]).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "{name} {isa:?} {threads} threads rows {rows:?}");
                }
            }
        }
    }
}

/// Every prefix of the golden sequence as a prompt, its states kept on pages in disorder.
#[test]
fn scores_of_prompts_are_those_of_torch() {
    let (truth, hidden) = (golden::array("score.query"), golden::array("hidden"));
    let (mut ops, embed) = golden::device(Isa::fastest(), 1);
    let sizes = HeadSizes { rows: truth.len(), hidden: embed.cols(), pages: 5 };
    let mut set = HeadSet::new(&ops, vec![golden::head("query")], sizes);
    let positions: Vec<u32> = (0..truth.len() as u32).collect();
    let step = StepTokens {
        token_row: &vec![0; truth.len()],
        positions: &positions,
        row_pages: &[4, 0, 2],
        row_page_start: &[0, 3],
    };
    assert!(set.keeps_states());
    set.keep(&mut ops, &step, &hidden);
    let ends: Vec<PromptEnd> =
        (0..truth.len()).map(|n| PromptEnd { row: 0, sampled: n, tokens: n + 1 }).collect();
    set.score_prompts(&mut ops, 1, &step, &ends);
    let worst = set.scores(0).iter().zip(&truth).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("query: largest difference {worst:.2e}");
    assert!(worst < 1e-6, "{worst}");
}
