//! The head that reads whole prompts: whatever way the positions came into the cache, the score is the same to the bit.

use std::ops::Range;

use tokenrouter_engine::executor::RankExecutor;
use tokenrouter_scheduler::{RowFault, RowResult};

use crate::golden;
use crate::refusals::changed;
use crate::steps::{Feed, array, executor_with, greedy, run, whole};

/// Head 0 reads prompts, head 1 every position.
const HEADS: [&str; 2] = ["query", "citer"];
const BOTH: u8 = 0b11;

fn executor(threads: usize) -> RankExecutor {
    executor_with(threads, &HEADS.map(|h| golden().join(h)))
}

fn row(pages: [u32; 4], fed: Range<usize>, prompt: usize) -> Feed {
    let samples = fed.end >= prompt;
    Feed { pages, fed, samples, prompt: Some(prompt) }
}

/// The score of a prompt of `n` tokens fed in one go, alone.
fn alone(executor: &mut RankExecutor, n: usize) -> u32 {
    bits(&run(executor, BOTH, &greedy(), &[whole(0, n)])[0])
}

fn bits(result: &RowResult) -> u32 {
    assert_eq!(result.fault, None);
    result.signals.scores[0].to_bits()
}

#[test]
fn scores_of_prompts_are_those_of_torch() {
    let mut executor = executor(1);
    let truth = HEADS.map(|h| array(&format!("score.{h}")));
    let mut worst = 0.0f32;
    for batch in (1..=40).collect::<Vec<usize>>().chunks(13) {
        let feeds: Vec<Feed> = batch.iter().enumerate().map(|(row, n)| whole(row, *n)).collect();
        for (result, n) in run(&mut executor, BOTH, &greedy(), &feeds).iter().zip(batch) {
            for (head, truth) in truth.iter().enumerate() {
                worst = worst.max((result.signals.scores[head] - truth[n - 1]).abs());
            }
        }
    }
    println!("largest difference of {HEADS:?}: {worst:.2e}");
    assert!(worst < 1e-5, "{worst}");
    assert!(truth[0].iter().any(|x| (x - truth[0][0]).abs() > 0.1), "the prompt matters");
}

#[test]
fn chunks_threads_batches_and_pages_change_no_bit() {
    let mut one = executor(1);
    let mut executor = executor(2);
    for n in [1, 2, 15, 16, 17, 31, 33, 40] {
        let expected = alone(&mut one, n);
        for cuts in [vec![], vec![1], vec![16], vec![3, 16, 20], vec![7, 8, 9, 30, 32], (1..40).collect()] {
            // Other positions stood on these pages.
            let before = [row([3, 9, 1, 30], 0..40, 40), row([2, 60, 0, 61], 0..40, 40)];
            run(&mut executor, BOTH, &greedy(), &before);
            let mut at = 0;
            let ends = cuts.into_iter().filter(|cut| *cut < n).chain([n]);
            for end in ends {
                // Alone, so that a step may sample nothing, and beside rows of every other kind: a decode, a whole prompt, a
                // cut one.
                let alone = run(&mut executor, BOTH, &greedy(), &[row([9, 3, 30, 1], at..end, n)]);
                let feeds = [
                    row([40, 41, 42, 43], 0..5, 4),
                    row([60, 2, 61, 0], at..end, n),
                    whole(3, 21),
                    row([50, 51, 52, 53], 0..18, 30),
                ];
                let results = run(&mut executor, BOTH, &greedy(), &feeds);
                let score = if end == n { expected } else { 0 };
                assert_eq!(bits(&alone[0]), score, "{n} tokens fed up to {end}, alone");
                assert_eq!(bits(&results[1]), score, "{n} tokens fed up to {end}");
                at = end;
            }
        }
    }
}

/// The pages of a prefix were filled by another row, in an earlier step or in this very one.
#[test]
fn a_shared_prefix_is_skipped_and_changes_no_bit() {
    let mut executor = executor(1);
    let expected = alone(&mut executor, 40);
    let longer = [20, 21, 22, 23];
    run(&mut executor, BOTH, &greedy(), &[row(longer, 0..37, 37)]);
    for (pages, fed) in [([20, 21, 30, 31], 32..40), ([20, 33, 34, 35], 16..40)] {
        let results = run(&mut executor, BOTH, &greedy(), &[row(pages, fed.clone(), 40)]);
        assert_eq!(bits(&results[0]), expected, "from {}", fed.start);
    }
    let together = [row([36, 37, 38, 39], 0..33, 33), row([36, 37, 44, 45], 32..40, 40)];
    assert_eq!(bits(&run(&mut executor, BOTH, &greedy(), &together)[1]), expected);
}

/// Pages that somebody else has used since: what is kept there is overwritten with the prompt that is computed again.
#[test]
fn a_prompt_computed_again_on_used_pages_has_the_same_score() {
    let mut executor = executor(1);
    let expected = alone(&mut executor, 20);
    for other in [40, 17] {
        run(&mut executor, BOTH, &greedy(), &[row([4, 5, 2, 3], 0..other, other)]);
        assert_eq!(bits(&run(&mut executor, BOTH, &greedy(), &[row([5, 4, 3, 2], 0..20, 20)])[0]), expected);
    }
}

/// Tokens of the answer are no part of the mean, and only the row that ends the prompt is scored.
#[test]
fn rows_before_and_behind_the_end_of_the_prompt_have_no_score() {
    let mut executor = executor(1);
    let pages = [8, 9, 10, 11];
    let of_tokens = |result: &RowResult| result.signals.scores[1];
    let feeds = [row(pages, 0..12, 12), row([12, 13, 14, 15], 0..20, 12)];
    let results = run(&mut executor, BOTH, &greedy(), &feeds);
    assert!(bits(&results[0]) != 0 && of_tokens(&results[0]) > 0.0);
    assert_eq!(bits(&results[1]), 0, "a prompt of 12 that was fed with 8 tokens of its answer");
    assert!(of_tokens(&results[1]) > 0.0);
    let behind = run(&mut executor, BOTH, &greedy(), &[row(pages, 12..13, 12)]);
    assert_eq!(bits(&behind[0]), 0);
    let unread = run(&mut executor, 0b10, &greedy(), &[row(pages, 0..12, 12)]);
    assert_eq!((bits(&unread[0]), of_tokens(&unread[0])), (0, of_tokens(&results[0])));
}

#[test]
fn a_prompt_score_that_is_no_number_fails_its_row_by_name() {
    // Finite weights whose products overflow in both directions.
    let dir = changed(
        "query",
        |_| {},
        |t| {
            let row = &mut t.get_mut("mlp.2.weight").unwrap().2;
            for (i, value) in row.chunks_exact_mut(4).enumerate() {
                value.copy_from_slice(&if i % 2 == 0 { 3e38f32 } else { -3e38 }.to_le_bytes());
            }
            t.get_mut("mlp.0.bias")
                .unwrap()
                .2
                .chunks_exact_mut(4)
                .for_each(|b| b.copy_from_slice(&9f32.to_le_bytes()));
        },
    );
    let mut executor = executor_with(1, &[dir.path().to_path_buf()]);
    let feeds = [whole(0, 9), row([8, 9, 10, 11], 0..9, 5)];
    let results = run(&mut executor, 1, &greedy(), &feeds);
    assert!(matches!(results[0].fault, Some(RowFault::Other(text)) if text.contains("not a number")));
    assert_eq!(results[1].fault, None, "a row behind its prompt is not scored");
}
