//! Steps beyond their limits: refused in words, and the model goes on.

use tokenrouter_kernels::sampling::SamplingParams;
use tokenrouter_scheduler::{PageId, RowFault};

use super::support::*;
use crate::model::Model;
use crate::ranks::LaunchRecord;

#[test]
fn a_step_beyond_its_limits_is_refused_in_words_and_the_next_one_runs() {
    let Some(emu) = emulation(1) else { return };
    let open = Model::open(&demo("slm")).unwrap();
    let mut model = ready(&open, 64, &BUCKETS, None);
    let (ids, own) = (random_ids(1, 70, 450), pages(0, 70));
    let row = |fed| TestRow { tokens: &ids, fed, pages: &own, sample: greedy() };
    let fine = run(&mut model, step(&[row(0..9)]));
    let mut bad_id = ids.clone();
    bad_id[3] = 455;
    let outside = vec![PageId(PAGES as u32); 5];
    let cases = [
        (step(&[row(0..65)]), None, "65 tokens in a step of at most 64"),
        (step(&(0..13).map(|_| row(0..1)).collect::<Vec<_>>()), None, "13 rows in a step of at most 12"),
        (step(&[TestRow { tokens: &bad_id, ..row(0..9) }]), None, "token 455 of a vocabulary of 455"),
        (step(&[TestRow { pages: &outside, ..row(0..9) }]), None, "page 24 in a cache of 24"),
        (step(&[row(0..9)]), Some(8), "9 tokens in 1 rows, 1 waves, in a graph of 8"),
        (step(&[row(0..9)]), Some(24), "no graph of 24 tokens"),
    ];
    for (step, graph, words) in cases {
        let record = LaunchRecord::new(1, graph, step, false);
        let error = model.launch(&record, None).unwrap_err().to_string();
        assert!(error.contains(words), "{error}: {words}");
        assert_eq!(run(&mut model, step_of(&ids, &own)), fine, "after: {words}");
    }
    let record = |step| LaunchRecord::new(1, None, step, false);
    model.launch(&record(step(&[row(0..9)])), None).unwrap();
    let error = model.launch(&record(step(&[row(0..9)])), None).unwrap_err().to_string();
    assert!(error.contains("still in flight"), "{error}");
    while !model.finished().unwrap() {}
    drop(model);
    drop(emu);
}

fn step_of(ids: &[u32], own: &[PageId]) -> Box<crate::step::Step> {
    step(&[TestRow { tokens: ids, fed: 0..9, pages: own, sample: greedy() }])
}

#[test]
fn lists_beyond_their_buffers_fail_their_row_alone() {
    let Some(emu) = emulation(1) else { return };
    let open = Model::open(&demo("slm")).unwrap();
    let mut model = ready(&open, 64, &BUCKETS, None);
    let (ids, own) = (random_ids(1, 9, 450), [pages(0, 9), pages(1, 9), pages(2, 9)]);
    let biased = |n: usize| SamplingParams {
        temperature: 0.0,
        logit_bias: (0..n).map(|i| (i as u32 % 450, 0.001)).collect(),
        ..SamplingParams::default()
    };
    let plain =
        run(&mut model, step(&[TestRow { tokens: &ids, fed: 0..9, pages: &own[0], sample: greedy() }]));
    let row = |i: usize, sample| TestRow { tokens: &ids, fed: 0..9, pages: &own[i], sample };
    // 12 rows with room for 1024 biases each.
    let rows = [row(0, Some(biased(12 * 1024 + 1))), row(1, greedy()), row(2, Some(biased(2000)))];
    let results = run(&mut model, step(&rows));
    assert!(matches!(results[0].fault, Some(RowFault::Other(why)) if why.contains("logit biases")));
    assert_eq!((results[1].fault, results[1].token), (None, plain[0].token));
    assert_eq!(results[2].fault, None);
    // Stop ids fill the room for all lists.
    let stops = vec![3; 12 * 1024 + 12 * (CONTEXT + 1024) + 1];
    let results = run(&mut model, step_with(&[row(0, greedy())], &stops, true));
    assert!(matches!(results[0].fault, Some(RowFault::Other(why)) if why.contains("penalties")));
    drop(model);
    drop(emu);
}
