//! Parts of models on CPU ranks: a part that panics in the middle of a step fails that step by name, and nothing else.

use std::sync::Arc;
use std::time::{Duration, Instant};

use safetensors::tensor::Dtype;
use tokenrouter_engine::executor::{CpuModel, Executor, RankExecutor};
use tokenrouter_engine::model::{Model, ModelOptions};
use tokenrouter_engine::step::{RowSampling, SampleSpec, Step, StepLimits};
use tokenrouter_engine::{DType, SamplingParams};
use tokenrouter_kernels::rng::{DrawKey, Purpose};
use tokenrouter_kernels::signals::SignalFlags;
use tokenrouter_scheduler::{ModelId, PageId, RowResult};

use crate::support::{TempDir, qwen3_config, random_checkpoint};

const CUT: ModelId = ModelId(0);
const WHOLE: ModelId = ModelId(1);
const LIMITS: StepLimits = StepLimits { rows: 4, tokens: 32, context_len: 64 };

fn options() -> ModelOptions {
    ModelOptions {
        threads: 1,
        max_batch_rows: 4,
        max_step_tokens: 32,
        kv_dtype: DType::F32,
        real_vocab: 50,
        context_len: 64,
    }
}

/// Model 0 in two parts on ranks 0 and 1 with so many pages each, model 1 whole on rank 1.
fn executor(dir: &TempDir, pages: [usize; 2]) -> RankExecutor {
    let open = Model::open(dir.path()).unwrap();
    let seats = open.seats(&options(), 2).unwrap();
    let parts = seats.into_iter().zip(pages).enumerate();
    let parts = parts.map(|(rank, (seat, pages))| (rank, open.build_part(options(), pages, seat).unwrap()));
    let whole = vec![(1, open.clone().build(options(), 12).unwrap())];
    let models =
        vec![CpuModel { parts: parts.collect(), limits: LIMITS }, CpuModel { parts: whole, limits: LIMITS }];
    RankExecutor::cpu(models, Arc::new(|| {})).unwrap()
}

/// Starts a step that feeds ten tokens on `page` and samples.
fn launch(executor: &mut RankExecutor, model: ModelId, page: u32) {
    let mut step = executor.buffers(model);
    step.begin(1, model, SignalFlags::ENTROPY, 0);
    let params = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let sampling = Arc::new(RowSampling { params, stop_ids: Vec::new(), needs_history: false });
    // The same name for the draw, so that both models answer alike.
    let key = DrawKey { seed: 7, choice: 0, position: 10, purpose: Purpose::Sample, model: 0 };
    let spec = SampleSpec { sampling, key, prompt_len: 10, mask_stops: false, logprobs: None };
    let tokens: Vec<u32> = (3..13).collect();
    step.push_row(&tokens, 0..10, &[PageId(page)], Some(spec));
    executor.launch(step);
}

/// The next step that ends.
fn next(executor: &mut RankExecutor) -> Box<Step> {
    let start = Instant::now();
    loop {
        if let Some(step) = executor.poll() {
            return step;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "a step hangs");
        std::thread::yield_now();
    }
}

fn results(executor: &mut RankExecutor) -> Vec<RowResult> {
    let step = next(executor);
    assert_eq!(step.failure, None);
    let results = step.results.clone();
    executor.recycle(step);
    results
}

#[test]
fn a_part_that_panics_fails_its_step_by_name() {
    let dir = random_checkpoint(&qwen3_config(), Dtype::BF16, 21);
    for (pages, failing) in [([12, 4], 1), ([4, 12], 0)] {
        let mut executor = executor(&dir, pages);
        launch(&mut executor, WHOLE, 9);
        let expected = results(&mut executor);
        assert_eq!(expected.len(), 1);
        launch(&mut executor, CUT, 2);
        assert_eq!(results(&mut executor), expected, "both parts have page 2");
        for round in 0..3 {
            // One part has no page 9 and panics in its first layer; the other waits for it there.
            launch(&mut executor, CUT, 9);
            launch(&mut executor, WHOLE, 5);
            let mut ended = [next(&mut executor), next(&mut executor)];
            ended.sort_by_key(|step| step.model);
            let why = ended[0].failure.as_deref().expect("the step of the model in parts fails");
            let name = format!("rank {failing} (CPU rank {failing}): the step of model 0 panicked");
            assert_eq!(why, name, "round {round}");
            assert_eq!((&ended[1].failure, &ended[1].results), (&None, &expected), "the other model goes on");
            ended.into_iter().for_each(|step| executor.recycle(step));
            launch(&mut executor, CUT, 3);
            assert_eq!(results(&mut executor), expected, "the next step works");
        }
    }
}

/// Steps in flight when everything ends: nobody waits for a part that will not come.
#[test]
fn dropping_ends_everything_whatever_is_in_flight() {
    let dir = random_checkpoint(&qwen3_config(), Dtype::BF16, 22);
    for round in 0..8 {
        let mut executor = executor(&dir, [12, if round % 2 == 0 { 12 } else { 4 }]);
        launch(&mut executor, CUT, 9);
        launch(&mut executor, WHOLE, 9);
        if round > 3 {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
