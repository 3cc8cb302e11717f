//! Scores from torch's own hidden states and logits: only the heads can be at fault here.

use tokenrouter_kernels::cpu::Isa;

use super::golden;

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
        for isa in [Isa::Portable, Isa::Avx2] {
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
