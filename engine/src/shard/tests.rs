//! Every part of a model is held once (key and value heads: equally often), and what does not divide is refused by name.

use super::*;
use crate::config::{Architecture, Biases, RopeConfig, RopeScaling};

fn config(q_heads: usize, kv_heads: usize, head_dim: usize, inner: usize, vocab: usize) -> ModelConfig {
    ModelConfig {
        architecture: Architecture::Qwen3,
        vocab_size: vocab,
        hidden_size: 64,
        intermediate_size: inner,
        layers: 1,
        q_heads,
        kv_heads,
        head_dim,
        rms_norm_eps: 1e-6,
        max_position_embeddings: 64,
        tie_word_embeddings: None,
        biases: Biases::default(),
        qk_norm: true,
        rope: RopeConfig { theta: 10_000.0, scaling: RopeScaling::Default },
        eos_ids: Vec::new(),
    }
}

/// The ranges of all parts follow each other from 0 to `end`.
fn covers(count: usize, end: usize, range: impl Fn(Shard) -> Range<usize>) {
    let mut at = 0;
    for shard in Shard::all(count) {
        let range = range(shard);
        assert_eq!(range.start, at, "{shard:?}");
        at = range.end;
    }
    assert_eq!(at, end, "{count} parts");
}

#[test]
fn parts_cover_the_model_once() {
    let c = config(16, 8, 16, 512, 1000);
    for count in [1, 2, 4, 8] {
        check(&c, count).unwrap();
        covers(count, 16, |s| s.q_heads(&c));
        covers(count, 8, |s| s.kv_heads(&c));
        covers(count, 256, |s| s.q_features(&c));
        covers(count, 128, |s| s.kv_features(&c));
        covers(count, 512, |s| s.intermediate(&c));
        covers(count, 1000, |s| s.vocab_rows(&c));
        covers(count, 1000, |s| s.cuda_vocab_rows(&c));
    }
}

#[test]
fn a_part_holds_the_kv_heads_of_its_query_heads() {
    for (q, kv, counts) in [(8, 2, &[1, 2, 4, 8][..]), (8, 8, &[1, 2, 4, 8]), (12, 3, &[1, 3, 6, 12])] {
        let c = config(q, kv, 16, 12 * 32, 512);
        for count in counts {
            check(&c, *count).unwrap();
            for shard in Shard::all(*count) {
                let read: Vec<usize> = shard.q_heads(&c).map(|h| h / (q / kv)).collect();
                let held = shard.kv_heads(&c);
                assert!(read.iter().all(|h| held.contains(h)), "{shard:?}: reads {read:?}, holds {held:?}");
                assert!(held.clone().all(|h| read.contains(&h)), "{shard:?}: holds {held:?} for nothing");
                let local = shard.local_config(&c);
                assert_eq!(local.q_heads % local.kv_heads, 0);
                // The group of a local query head must be the one of the whole model.
                let group = local.q_heads / local.kv_heads;
                for (i, head) in read.iter().enumerate() {
                    assert_eq!(held.start + i / group, *head, "{shard:?}");
                }
            }
        }
    }
}

#[test]
fn cuda_vocabularies_are_whole_tiles_of_one_width() {
    let qwen3 = config(16, 8, 128, 3072, 151_936);
    let last = Shard { index: 7, count: 8 };
    assert_eq!(last.cuda_vocab_width(&qwen3), 149 * 128);
    assert_eq!(last.cuda_vocab_rows(&qwen3), 7 * 149 * 128..151_936);
    for (vocab, count) in [(1, 1), (127, 1), (129, 2), (512, 4), (513, 4), (640, 4), (1000, 8)] {
        let c = config(8, 8, 16, 512, vocab);
        covers(count, vocab, |s| s.cuda_vocab_rows(&c));
        for shard in Shard::all(count) {
            let width = shard.cuda_vocab_width(&c);
            assert_eq!(width % VOCAB_TILE, 0);
            assert!(shard.cuda_vocab_rows(&c).all(|c| c / width == shard.index), "{vocab} on {count}");
        }
    }
}

#[test]
fn the_local_configuration_is_smaller_in_heads_and_features_only() {
    let c = config(8, 2, 16, 512, 1000);
    let local = Shard { index: 3, count: 4 }.local_config(&c);
    assert_eq!((local.q_heads, local.kv_heads, local.intermediate_size), (2, 1, 128));
    assert_eq!(ModelConfig { q_heads: 8, kv_heads: 2, intermediate_size: 512, ..local }, c);
    assert_eq!(Shard::WHOLE.local_config(&c), c);
}

#[test]
fn what_does_not_divide_is_refused_by_name() {
    let cases = [
        (config(6, 2, 16, 512, 1000), 4, "num_attention_heads is 6, which 4 devices cannot share equally"),
        (config(12, 3, 16, 512, 1000), 4, "num_key_value_heads is 3, fewer than the 4 devices"),
        (config(8, 4, 16, 512, 1000), 3, "num_attention_heads is 8, which 3 devices"),
        (config(12, 4, 16, 512, 1000), 3, "num_key_value_heads is 4, which 3 devices cannot share equally"),
        (config(8, 4, 16, 514, 1000), 4, "intermediate_size is 514, which 4 devices"),
        (config(8, 4, 16, 512, 3), 4, "vocab_size is 3, fewer than 4 devices"),
        (config(8, 4, 16, 512, 3), 0, "devices is empty"),
    ];
    for (config, count, text) in cases {
        let error = check(&config, count).unwrap_err().to_string();
        assert!(error.starts_with(text), "{error}");
        assert!(check_cpu(&config, count).is_err() && check_cuda(&config, count).is_err());
    }
}

#[test]
fn devices_refuse_what_their_products_cannot_cut() {
    let thirds = config(12, 3, 16, 384, 1000);
    assert!(check(&thirds, 3).is_ok() && check_cuda(&config(12, 3, 32, 384, 1000), 3).is_ok());
    let error = check_cpu(&thirds, 3).unwrap_err().to_string();
    assert!(error.starts_with("devices names 3 devices; on the CPU a model runs on 1, 2 or 4"), "{error}");

    let odd = config(2, 2, 2, 6, 1000);
    let error = check_cpu(&odd, 2).unwrap_err().to_string();
    assert!(error.starts_with("intermediate_size is 6: on 2 devices a multiple of 4 is needed"), "{error}");
    assert!(check_cpu(&odd, 1).is_ok());
    let error = check_cpu(&config(2, 2, 3, 8, 1000), 2).unwrap_err().to_string();
    assert!(error.starts_with("num_attention_heads times head_dim is 6: on 2 devices"), "{error}");

    let error = check_cuda(&config(4, 2, 16, 192, 1000), 4).unwrap_err().to_string();
    let text =
        "num_attention_heads times head_dim is 64, of which each of 4 devices holds 16: a multiple of 32";
    assert!(error.starts_with(text), "{error}");
    let error = check_cuda(&config(4, 2, 32, 192, 1000), 4).unwrap_err().to_string();
    assert!(error.starts_with("intermediate_size is 192, of which each of 4 devices holds 48"), "{error}");
    let error = check_cuda(&config(16, 16, 32, 4096, 9000), 16).unwrap_err().to_string();
    assert!(error.starts_with("devices names 16 devices, a model has at most 8"), "{error}");
}
