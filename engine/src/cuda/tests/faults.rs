//! Devices that fail, and too little memory.

use half::bf16;
use tokenrouter_emulate::Settings;
use tokenrouter_scheduler::RowFault;

use super::support::*;
use crate::cuda::model::{CudaModel, ModelSpec};
use crate::model::Model;
use crate::ranks::LaunchRecord;
use crate::shard::Shard;

/// CUDA_ERROR_ILLEGAL_ADDRESS.
const ILLEGAL_ADDRESS: u32 = 700;

#[test]
fn a_lost_device_is_an_error_that_says_where() {
    let Some(emu) = emulation(1) else { return };
    let open = Model::open(&demo("slm")).unwrap();
    let (ids, own) = (random_ids(1, 9, 450), pages(0, 9));
    for (graph, after) in [(None, 4), (Some(16), 9), (None, 0)] {
        let mut model = ready(&open, 64, &BUCKETS, None);
        emu.inject(0, after, ILLEGAL_ADDRESS);
        let step = step(&[TestRow { tokens: &ids, fed: 0..9, pages: &own, sample: greedy() }]);
        let record = LaunchRecord::new(1, graph, step, false);
        let mut failure = model.launch(&record, None).err();
        while failure.is_none() {
            match model.finished() {
                Ok(done) => assert!(!done, "a step with a fault is not done"),
                Err(e) => failure = Some(e),
            }
        }
        let text = failure.unwrap().to_string();
        assert!(text.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{text}");
        let place = ["copy to the device", "embed", "rms_norm", "linear_nt", "qkv_hd16", "attention"];
        assert!(place.iter().any(|p| text.contains(p)), "{text}");
        // The device stays lost, and says so.
        assert!(model.launch(&record, None).is_err());
        drop(model);
        emu.reset(Settings::default());
    }
}

#[test]
fn logits_that_are_no_numbers_fail_their_row_alone() {
    let Some(emu) = emulation(1) else { return };
    let open = Model::open(&demo("slm")).unwrap();
    let mut model = ready(&open, 64, &BUCKETS, None);
    let ids = random_ids(1, 20, 450);
    let own = [pages(0, 20), pages(4, 20)];
    let row = |i: usize, fed| TestRow { tokens: &ids, fed, pages: &own[i], sample: greedy() };
    let fine = run(&mut model, step(&[row(0, 0..19), row(1, 0..19)]));
    assert_eq!(fine[0], fine[1]);
    let both = run(&mut model, step(&[row(0, 19..20), row(1, 19..20)]));
    // The second row's first page loses its values.
    let parts = model.parts();
    let (cache, page) = (parts.cache.unwrap(), parts.shape.page_elements());
    let mut values = cache.read(parts.stream).unwrap();
    values[own[1][0].0 as usize * page..][..page].fill(bf16::NAN);
    cache.write(parts.stream, &values).unwrap();
    let results = run(&mut model, step(&[row(0, 19..20), row(1, 19..20)]));
    assert_eq!(results[0], both[0]);
    assert_eq!((results[1].fault, results[1].token), (Some(RowFault::NonFinite), 0));
    drop(model);
    drop(emu);
}

#[test]
fn a_step_waits_for_the_event_that_it_is_given() {
    let Some(emu) = emulation(1) else { return };
    let open = Model::open(&demo("slm")).unwrap();
    let (ids, own) = (random_ids(1, 9, 450), pages(0, 9));
    let options = options(&open, 64);
    let spec =
        ModelSpec { open: &open, options: &options, shard: Shard::WHOLE, buckets: &[], high_priority: true };
    let context = context(0);
    let make = || {
        let mut model = CudaModel::load(context.clone(), &spec, None).unwrap();
        model.allocate_cache(PAGES).unwrap();
        model.warm_up().unwrap();
        model
    };
    let (mut first, mut second) = (make(), make());
    let record = || {
        let step = step(&[TestRow { tokens: &ids, fed: 0..9, pages: &own, sample: greedy() }]);
        LaunchRecord::new(1, None, step, false)
    };
    first.launch(&record(), None).unwrap();
    second.launch(&record(), Some(first.event())).unwrap();
    while !second.finished().unwrap() {}
    let mut looks = 0;
    while !first.finished().unwrap() {
        looks += 1;
    }
    // A query answers for all operations that were done: none of the first model's was left.
    assert_eq!(looks, 0);
    drop((first, second));
    drop(context);
    drop(emu);
}

#[test]
fn too_little_memory_is_an_error_with_its_size() {
    let Some(emu) = emulation(1) else { return };
    let open = Model::open(&demo("llm")).unwrap();
    let options = options(&open, 64);
    let spec = ModelSpec {
        open: &open,
        options: &options,
        shard: Shard::WHOLE,
        buckets: &BUCKETS,
        high_priority: false,
    };
    // For nothing but the context, for part of the weights, for all but the cache.
    for memory in [1 << 10, 1 << 20, 5 << 20] {
        emu.reset(Settings { memory, ..Settings::default() });
        let text = match CudaModel::load(context(0), &spec, None) {
            Err(error) => error.to_string(),
            Ok(mut model) => model.allocate_cache(100_000).unwrap_err().to_string(),
        };
        assert!(text.contains("CUDA_ERROR_OUT_OF_MEMORY") && text.contains("allocating"), "{text}");
    }
    // A model that did not fit has left nothing behind.
    emu.reset(Settings { memory: 64 << 20, ..Settings::default() });
    let context = context(0);
    let (before, _) = context.device.memory().unwrap();
    let mut model = CudaModel::load(context.clone(), &spec, None).unwrap();
    let (loaded, _) = context.device.memory().unwrap();
    let bytes = model.bytes();
    let counted = bytes.weights + bytes.activations + bytes.heads;
    assert!(
        (before - loaded).abs_diff(counted) < 1 << 16,
        "{} bytes taken, {counted} counted",
        before - loaded
    );
    let graphs = model.measure_graphs().unwrap();
    assert!(graphs > 0);
    assert_eq!(context.device.memory().unwrap().0, loaded, "the measured graphs are gone");
    model.allocate_cache(PAGES).unwrap();
    let (with_cache, _) = context.device.memory().unwrap();
    assert_eq!(loaded - with_cache, model.page_bytes() * (PAGES as u64 + 1));
    drop(model);
    assert_eq!(context.device.memory().unwrap().0, before, "all memory comes back");
    drop(context);
    drop(emu);
}
