//! What must be equal to the bit: graphs and single launches, ways of cutting a text into steps, companions in a batch,
//! and whatever lies in memory that no row of the step owns.

use half::bf16;
use tokenrouter_kernels::cuda::Buffer;
use tokenrouter_scheduler::PageId;

use super::support::*;
use crate::cuda::model::CudaModel;
use crate::model::{Model, OpenModel};

/// Prompt lengths on both sides of every bucket border up to 64.
const LENGTHS: [usize; 10] = [1, 7, 8, 9, 16, 17, 32, 33, 64, 65];

fn slm() -> OpenModel {
    Model::open(&demo("slm")).unwrap()
}

/// Logits of the last token of `ids`, whose leading tokens come in steps of the given sizes.
fn last_logits(model: &mut CudaModel, ids: &[u32], sizes: &[usize], graphs: bool) -> Vec<Vec<u32>> {
    let pages = pages(0, ids.len());
    let mut from = 0;
    for size in sizes {
        let fed = from..from + size;
        let step = step(&[TestRow { tokens: ids, fed: fed.clone(), pages: &pages, sample: greedy() }]);
        let key = model.graph_key()(&step).ok().filter(|_| graphs);
        assert_eq!(key.is_some(), graphs && *size <= 64, "{size} tokens");
        run_in(model, step, key);
        from += size;
    }
    assert_eq!(from, ids.len());
    bits(&logits(model, 1))
}

#[test]
fn graphs_and_single_launches_agree_on_both_sides_of_every_border() {
    let Some(emu) = emulation(1) else { return };
    let open = slm();
    let mut model = ready(&open, 128, &BUCKETS[..4], None);
    for length in LENGTHS {
        let ids = random_ids(length as u64, length, 450);
        let eager = last_logits(&mut model, &ids, &[length], false);
        let graph = last_logits(&mut model, &ids, &[length], true);
        assert_eq!(graph, eager, "{length} tokens");
    }
    // As many rows as a bucket holds.
    let texts: Vec<Vec<u32>> = (0..8).map(|i| random_ids(i, 1, 450)).collect();
    let own: Vec<_> = (0..8).map(|i| pages(i, 1)).collect();
    let rows = || (0..8).map(|i| TestRow { tokens: &texts[i], fed: 0..1, pages: &own[i], sample: greedy() });
    let full = [None, Some(8)].map(|graph| {
        let results = run_in(&mut model, step(&rows().collect::<Vec<_>>()), graph);
        (results, bits(&logits(&mut model, 8)))
    });
    assert_eq!(full[0], full[1]);
    drop(model);
    drop(emu);
}

#[test]
fn decode_extend_and_prefill_agree() {
    let Some(emu) = emulation(1) else { return };
    for name in ["slm", "llm"] {
        let open = Model::open(&demo(name)).unwrap();
        let mut model = ready(&open, 128, &BUCKETS, None);
        let ids = &problem(1)[..70];
        let whole = last_logits(&mut model, ids, &[70], false);
        for sizes in [[1; 70].as_slice(), &[40, 1, 20, 9], &[9, 61]] {
            assert_eq!(last_logits(&mut model, ids, sizes, true), whole, "{name} {sizes:?}");
        }
    }
    drop(emu);
}

/// Three rows at different places of their texts, one of them cut, and their parts of the results.
fn mixed(model: &mut CudaModel, texts: &[Vec<u32>; 3], together: bool, graphs: bool) -> Vec<Vec<u32>> {
    let own: Vec<Vec<PageId>> = (0..3).map(|i| pages(8 * i, 100)).collect();
    let row = |i: usize, fed: std::ops::Range<usize>, samples: bool| TestRow {
        tokens: &texts[i],
        fed,
        pages: &own[i],
        sample: greedy().filter(|_| samples),
    };
    let mut go = |rows: Vec<TestRow<'_>>| {
        let step = step(&rows);
        let wanted = step.logit_tokens.len();
        let key = model.graph_key()(&step).ok().filter(|_| graphs);
        let results = run_in(model, step, key);
        assert_eq!(results.len(), rows.len());
        for (row, result) in rows.iter().zip(&results) {
            assert!(result.fault.is_none());
            assert_eq!(result.signals.top_len, if row.sample.is_some() { 8 } else { 0 });
        }
        bits(&logits(model, wanted))
    };
    go(vec![row(0, 0..20, false)]);
    go(vec![row(1, 0..50, false)]);
    if together {
        return go(vec![row(0, 20..21, true), row(2, 0..13, false), row(1, 50..56, true)]);
    }
    let mut out = go(vec![row(0, 20..21, true)]);
    go(vec![row(2, 0..13, false)]);
    out.extend(go(vec![row(1, 50..56, true)]));
    out
}

#[test]
fn companions_and_cut_rows_change_nothing() {
    let Some(emu) = emulation(1) else { return };
    let open = slm();
    let mut model = ready(&open, 64, &BUCKETS, None);
    let texts = [random_ids(1, 100, 450), random_ids(2, 100, 450), random_ids(3, 100, 450)];
    let alone = mixed(&mut model, &texts, false, false);
    assert_eq!(alone.len(), 2);
    assert_eq!(mixed(&mut model, &texts, true, false), alone);
    assert_eq!(mixed(&mut model, &texts, true, true), alone);
    drop(model);
    drop(emu);
}

#[test]
fn attention_in_several_waves_changes_nothing() {
    let Some(emu) = emulation(1) else { return };
    let open = slm();
    let texts = [random_ids(4, 100, 450), random_ids(5, 100, 450), random_ids(6, 100, 450)];
    let ids = random_ids(8, 100, 450);
    let mut one = ready(&open, 128, &BUCKETS, None);
    let expected = (mixed(&mut one, &texts, true, true), last_logits(&mut one, &ids, &[90, 10], false));
    drop(one);
    // Room for three tokens of the longest context or so.
    let mut waves = ready(&open, 128, &BUCKETS, Some(3000));
    let long = step(&[TestRow { tokens: &ids, fed: 0..60, pages: &pages(0, 60), sample: greedy() }]);
    assert!(waves.graph_key()(&long).is_err(), "a step of several waves is no graph's");
    assert_eq!(mixed(&mut waves, &texts, true, false), expected.0);
    assert_eq!(last_logits(&mut waves, &ids, &[90, 10], false), expected.1);
    drop(waves);
    drop(emu);
}

/// NaN in the used columns of all rows: the padding of a row is zero for good.
fn poison(model: &mut CudaModel) {
    let parts = model.parts();
    let (arena, shape, stream) = (parts.arena, parts.shape, parts.stream);
    let nan = bf16::from_bits(0xffff);
    for (buffer, width) in [
        (&arena.h, shape.hidden),
        (&arena.x, shape.hidden),
        (&arena.delta, shape.hidden),
        (&arena.hidden, shape.hidden),
        (&arena.qkv, shape.qkv),
        (&arena.attended, shape.attended),
        (&arena.gate_up, shape.gate_up),
        (&arena.inner, shape.inner),
    ] {
        let mut values = buffer.read(stream).unwrap();
        for row in values.chunks_exact_mut(width.stride as usize) {
            row[..width.used as usize].fill(nan);
        }
        buffer.write(stream, &values).unwrap();
    }
    for buffer in [&arena.logits, &arena.work, &arena.partials] {
        buffer.write(stream, &vec![f32::NAN; buffer.len()]).unwrap();
    }
    parts.block.host_mut().fill(0xdead_beef);
}

/// All numbers of the cache, page by page of layer 0.
fn cache(model: &mut CudaModel) -> Vec<u16> {
    let parts = model.parts();
    parts.cache.unwrap().read(parts.stream).unwrap().iter().map(|x| x.to_bits()).collect()
}

fn poison_cache(model: &mut CudaModel) {
    let parts = model.parts();
    let cache: &Buffer<bf16> = parts.cache.unwrap();
    cache.write(parts.stream, &vec![bf16::from_bits(0xffff); cache.len()]).unwrap();
}

#[test]
fn memory_that_no_row_owns_is_neither_read_nor_written() {
    let Some(emu) = emulation(1) else { return };
    let open = slm();
    let mut model = ready(&open, 64, &BUCKETS, None);
    let texts = [random_ids(1, 100, 450), random_ids(2, 100, 450), random_ids(3, 100, 450)];
    let clean = mixed(&mut model, &texts, true, true);
    for graphs in [true, false] {
        // A large step leaves every buffer dirty, then all of it is NaN, the pages too.
        last_logits(&mut model, &random_ids(9, 64, 450), &[64], graphs);
        poison(&mut model);
        poison_cache(&mut model);
        assert_eq!(mixed(&mut model, &texts, true, graphs), clean, "graphs {graphs}");
        // The last step fed 20 tokens in a bucket of 32: what lies behind its rows is NaN still.
        let written = 50 * usize::try_from(model.parts().shape.hidden.stride).unwrap();
        let parts = model.parts();
        let h = parts.arena.h.read(parts.stream).unwrap();
        let used = parts.shape.hidden.used as usize;
        assert!(
            h[written..]
                .chunks(parts.shape.hidden.stride as usize)
                .all(|r| r[..used].iter().all(|x| x.is_nan()))
        );
        // Pages of no row are untouched: 24 pages, of which the rows use at most 7 + 7 + 7.
        let page = parts.shape.page_elements();
        let mine: Vec<u32> = (0..3).flat_map(|i| pages(8 * i, 100)).map(|p| p.0).collect();
        let all = cache(&mut model);
        for layer in all.chunks_exact((PAGES + 1) * page) {
            for (i, values) in layer.chunks_exact(page).enumerate() {
                if !mine.contains(&(i as u32)) {
                    assert!(values.iter().all(|x| *x == 0xffff), "page {i}");
                }
            }
        }
    }
    drop(model);
    drop(emu);
}
