//! `config.json`: accepted settings, and every refusal with file, field, value and remedy.

use serde_json::{Value, json};
use tokenrouter_engine::config::{Architecture, Biases, ModelConfig, RopeScaling};
use tokenrouter_engine::error::LoadError;

use crate::support::{TempDir, qwen3_config};

fn load(config: &Value) -> Result<ModelConfig, LoadError> {
    let dir = TempDir::new();
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    ModelConfig::load(dir.path())
}

/// `base` with fields changed; `null` stays in the file as null, a field given as `"<absent>"` goes.
fn with(base: Value, changes: Value) -> Value {
    let mut config = base;
    for (name, value) in changes.as_object().unwrap() {
        if value == "<absent>" {
            config.as_object_mut().unwrap().remove(name);
        } else {
            config[name] = value.clone();
        }
    }
    config
}

fn load_with(changes: Value) -> Result<ModelConfig, LoadError> {
    load(&with(qwen3_config(), changes))
}

fn llama(changes: Value) -> Result<ModelConfig, LoadError> {
    let base = json!({"architectures": ["LlamaForCausalLM"], "model_type": "llama"});
    load(&with(with(qwen3_config(), base), changes))
}

/// The error must name the file, the field, and hold every given word.
fn refused(result: Result<ModelConfig, LoadError>, field: &str, words: &[&str]) {
    let error = result.expect_err(&format!("{field} should have been refused"));
    let text = error.to_string();
    assert_eq!(error.field, field, "{text}");
    assert!(text.contains("config.json"), "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} not in {text:?}");
    }
}

#[test]
fn reads_every_size() {
    let c = load_with(json!({})).unwrap();
    assert_eq!(c.architecture, Architecture::Qwen3);
    assert_eq!((c.vocab_size, c.hidden_size, c.intermediate_size, c.layers), (50, 24, 40, 2));
    assert_eq!((c.q_heads, c.kv_heads, c.head_dim), (4, 2, 8));
    assert_eq!((c.q_width(), c.kv_width()), (32, 16));
    assert_eq!(c.rms_norm_eps, 1e-6);
    assert_eq!((c.max_position_embeddings, c.context_len(100), c.context_len(1000)), (256, 100, 256));
    assert_eq!(c.attention_scale(), (1.0f64 / 8.0f64.sqrt()) as f32);
    assert_eq!(c.tie_word_embeddings, Some(false));
    assert!(c.qk_norm);
}

#[test]
fn architectures_differ_in_biases_and_norms() {
    let both = json!({"attention_bias": true, "mlp_bias": true});
    let none = Biases::default();
    let qwen2 = json!({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"});
    let cases = [
        (load_with(json!({})), true, none),
        (load_with(both.clone()), true, Biases { qkv: true, output: true, mlp: false }),
        (load_with(qwen2.clone()), false, Biases { qkv: true, output: false, mlp: false }),
        (
            load(&with(with(qwen3_config(), qwen2), both.clone())),
            false,
            Biases { qkv: true, output: false, mlp: false },
        ),
        (llama(json!({})), false, none),
        (llama(both), false, Biases { qkv: true, output: true, mlp: true }),
    ];
    for (config, qk_norm, biases) in cases {
        let config = config.unwrap();
        assert_eq!((config.qk_norm, config.biases), (qk_norm, biases), "{:?}", config.architecture);
    }
}

#[test]
fn architecture_is_named_or_refused() {
    assert!(load_with(json!({"model_type": "<absent>"})).is_ok());
    assert!(load_with(json!({"architectures": "<absent>"})).is_ok());
    let names = ["Qwen3ForCausalLM", "Qwen2ForCausalLM", "LlamaForCausalLM"];
    for value in [json!(["MistralForCausalLM"]), json!("Qwen3ForCausalLM"), json!([]), json!([1])] {
        refused(load_with(json!({"architectures": value})), "architectures", &names);
    }
    refused(
        load_with(json!({"architectures": ["Gemma3ForCausalLM"]})),
        "architectures",
        &["Gemma3ForCausalLM"],
    );
    refused(load_with(json!({"model_type": "qwen3_moe"})), "model_type", &["qwen3_moe", "qwen3"]);
    refused(load_with(json!({"architectures": null, "model_type": "gpt2"})), "model_type", &["gpt2"]);
    refused(load_with(json!({"architectures": null, "model_type": null})), "architectures", &names);
}

#[test]
fn head_dim_wins_over_the_quotient() {
    assert_eq!(load_with(json!({"head_dim": 32})).unwrap().head_dim, 32);
    for absent in [json!(null), json!("<absent>")] {
        assert_eq!(load_with(json!({"head_dim": absent})).unwrap().head_dim, 6);
    }
    refused(load_with(json!({"head_dim": 7})), "head_dim", &["7", "even"]);
    refused(load_with(json!({"head_dim": null, "hidden_size": 20})), "head_dim", &["5", "even"]);
    refused(
        load_with(json!({"head_dim": null, "hidden_size": 25})),
        "num_attention_heads",
        &["25", "head_dim"],
    );
    refused(load_with(json!({"num_key_value_heads": 3})), "num_key_value_heads", &["3", "4"]);
    assert_eq!(load_with(json!({"num_key_value_heads": null})).unwrap().kv_heads, 4);
}

#[test]
fn sizes_must_be_there_and_sane() {
    for name in [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "max_position_embeddings",
    ] {
        let change = |value: Value| {
            let mut config = qwen3_config();
            config[name] = value;
            load(&config)
        };
        refused(change(Value::Null), name, &["absent"]);
        for bad in [
            json!(0),
            json!(-3),
            json!(2.5),
            json!("64"),
            json!(u64::MAX),
            json!(1e30),
            json!([1]),
            json!(true),
        ] {
            let text = bad.to_string();
            refused(change(bad), name, &[&text, "whole number"]);
        }
    }
    refused(load_with(json!({"rms_norm_eps": 0})), "rms_norm_eps", &["0"]);
    refused(load_with(json!({"rms_norm_eps": "small"})), "rms_norm_eps", &["small"]);
    refused(
        load_with(json!({"tie_word_embeddings": "yes"})),
        "tie_word_embeddings",
        &["yes", "true or false"],
    );
}

#[test]
fn other_mathematics_is_refused() {
    refused(
        load_with(json!({"quantization_config": {"quant_method": "fp8"}})),
        "quantization_config",
        &["fp8", "bf16"],
    );
    refused(load_with(json!({"num_experts": 8})), "num_experts", &["8", "dense"]);
    refused(load_with(json!({"num_local_experts": 8})), "num_local_experts", &["dense"]);
    refused(load_with(json!({"hidden_act": "gelu"})), "hidden_act", &["gelu", "silu"]);
    refused(load_with(json!({"use_mrope": true})), "use_mrope", &["true"]);
    refused(load_with(json!({"partial_rotary_factor": 0.5})), "partial_rotary_factor", &["0.5"]);
    for fine in [
        json!({"quantization_config": null, "num_experts": 0, "use_mrope": false}),
        json!({"partial_rotary_factor": 1.0, "hidden_act": null, "torch_dtype": "bfloat16"}),
    ] {
        load_with(fine).unwrap();
    }
}

#[test]
fn a_sliding_window_counts_only_when_it_is_on() {
    for fine in [
        json!({"sliding_window": 16, "use_sliding_window": false, "max_window_layers": 1}),
        json!({"sliding_window": 16}),
        json!({"sliding_window": null, "use_sliding_window": true}),
        json!({"sliding_window": 256, "use_sliding_window": true, "max_window_layers": 0}),
        json!({"sliding_window": 16, "use_sliding_window": true, "max_window_layers": 2}),
        json!({"sliding_window": 16, "use_sliding_window": true, "max_window_layers": 0,
               "layer_types": ["full_attention", "full_attention"]}),
    ] {
        load_with(fine).unwrap();
    }
    let on = json!({"sliding_window": 16, "use_sliding_window": true, "max_window_layers": 1});
    refused(load_with(on), "use_sliding_window", &["16", "256", "false"]);
    let types = json!({"layer_types": ["full_attention", "sliding_attention"]});
    refused(load_with(types), "layer_types", &["entry 1", "sliding_attention", "full_attention"]);
    refused(load_with(json!({"layer_types": ["full_attention"]})), "layer_types", &["1", "2"]);
    refused(load_with(json!({"layer_types": "full_attention"})), "layer_types", &["list"]);
}

#[test]
fn eos_ids_are_the_union_of_both_files() {
    let cases = [
        (json!(2), None, vec![2]),
        (json!([3, 2]), None, vec![2, 3]),
        (json!(null), None, vec![]),
        (json!("<absent>"), None, vec![]),
        (json!(2), Some(json!({"eos_token_id": [2, 3]})), vec![2, 3]),
        (json!([7]), Some(json!({"eos_token_id": 1})), vec![1, 7]),
        (json!(null), Some(json!({"eos_token_id": [4]})), vec![4]),
        (json!(5), Some(json!({"eos_token_id": null})), vec![5]),
        (json!(5), Some(json!({})), vec![5]),
    ];
    for (in_config, in_generation, want) in cases {
        let dir = TempDir::new();
        let config = with(qwen3_config(), json!({"eos_token_id": in_config}));
        std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        if let Some(generation) = in_generation {
            std::fs::write(dir.path().join("generation_config.json"), generation.to_string()).unwrap();
        }
        assert_eq!(ModelConfig::load(dir.path()).unwrap().eos_ids, want);
    }
    for bad in [json!(-1), json!("</s>"), json!([1, null]), json!(1.5), json!(1u64 << 40)] {
        refused(load_with(json!({"eos_token_id": bad})), "eos_token_id", &["token id"]);
    }
    let dir = TempDir::new();
    std::fs::write(dir.path().join("config.json"), qwen3_config().to_string()).unwrap();
    std::fs::write(dir.path().join("generation_config.json"), "{").unwrap();
    let error = ModelConfig::load(dir.path()).unwrap_err();
    assert!(error.to_string().contains("generation_config.json: is not valid JSON"), "{error}");
}

#[test]
fn files_that_are_no_configuration() {
    let dir = TempDir::new();
    let error = ModelConfig::load(dir.path()).unwrap_err();
    assert!(error.to_string().contains("config.json: cannot be read"), "{error}");
    for (text, words) in [
        ("", "not valid JSON"),
        ("{\"a\":", "not valid JSON"),
        ("[1]", "object"),
        ("\u{fffd}", "not valid JSON"),
    ] {
        std::fs::write(dir.path().join("config.json"), text).unwrap();
        let error = ModelConfig::load(dir.path()).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
}

/// The same settings in the styles of bug-log L07 give one normalised form.
#[test]
fn rope_styles_are_one() {
    let none = json!({"rope_theta": "<absent>", "rope_scaling": "<absent>"});
    let base = with(qwen3_config(), none);
    let yarn = json!({"factor": 4.0, "original_max_position_embeddings": 64});
    let object = |extra: Value| with(yarn.clone(), extra);
    let styles = [
        json!({"rope_theta": 5e5, "rope_scaling": object(json!({"rope_type": "yarn"}))}),
        json!({"rope_theta": 500000, "rope_scaling": object(json!({"type": "yarn"}))}),
        json!({"rope_theta": 5e5, "rope_scaling": object(json!({"type": "yarn", "rope_type": "yarn", "attention_factor": null}))}),
        json!({"rope_parameters": object(json!({"rope_type": "yarn", "rope_theta": 5e5}))}),
        json!({"rope_theta": 5e5, "rope_scaling": object(json!({"type": "yarn"})),
               "rope_parameters": object(json!({"rope_type": "yarn", "rope_theta": 5e5}))}),
        json!({"rope_theta": 5e5, "rope_parameters": {"rope_theta": 500000}, "rope_scaling": object(json!({"type": "yarn"}))}),
        json!({"rope_theta": 5e5, "original_max_position_embeddings": 64, "rope_scaling": {"type": "yarn", "factor": 4}}),
    ];
    let first = load(&with(base.clone(), styles[0].clone())).unwrap().rope;
    assert_eq!(first.theta, 5e5);
    for style in &styles {
        assert_eq!(load(&with(base.clone(), style.clone())).unwrap().rope, first, "{style}");
    }
    let plain = load(&base).unwrap().rope;
    assert_eq!((plain.theta, plain.scaling), (10_000.0, RopeScaling::Default));
    for style in [
        json!({"rope_scaling": null}),
        json!({"rope_parameters": {"rope_type": "default"}}),
        json!({"rope_scaling": {}}),
    ] {
        assert_eq!(load(&with(base.clone(), style)).unwrap().rope.scaling, RopeScaling::Default);
    }
}

#[test]
fn rope_faults_are_named() {
    let scaling = |v: Value| load_with(json!({"rope_scaling": v}));
    let all = ["default", "linear", "dynamic", "llama3", "yarn"];
    refused(
        scaling(json!({"rope_type": "longrope"})),
        "rope_scaling.rope_type",
        &[&["longrope"], &all[..]].concat(),
    );
    refused(scaling(json!({"type": "su", "factor": 2})), "rope_scaling.type", &["su"]);
    refused(scaling(json!({"factor": 2})), "rope_scaling.rope_type", &["absent", "factor"]);
    refused(
        scaling(json!({"type": "linear", "rope_type": "yarn", "factor": 2})),
        "rope_scaling.type",
        &["linear", "yarn"],
    );
    refused(scaling(json!({"type": "linear"})), "rope_scaling.factor", &["absent"]);
    refused(scaling(json!({"type": "linear", "factor": "4"})), "rope_scaling.factor", &["number"]);
    refused(scaling(json!({"type": "linear", "factor": 0})), "rope_scaling.factor", &["above 0"]);
    refused(scaling(json!({"type": 3})), "rope_scaling.type", &["string"]);
    refused(scaling(json!("yarn")), "rope_scaling", &["object"]);
    refused(
        scaling(json!({"rope_type": "default", "mrope_section": [1, 1]})),
        "rope_scaling.mrope_section",
        &["multimodal"],
    );
    refused(
        scaling(json!({"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4})),
        "rope_scaling.high_freq_factor",
        &["above low_freq_factor"],
    );
    refused(
        scaling(json!({"rope_type": "yarn", "factor": 2, "truncate": 1})),
        "rope_scaling.truncate",
        &["true or false"],
    );
    refused(
        scaling(json!({"rope_type": "yarn", "factor": 2, "beta_fast": 0.5})),
        "rope_scaling.beta_fast",
        &["beta_slow"],
    );
    let nested = json!({"rope_parameters": {"full_attention": {"rope_type": "default"}}});
    refused(load_with(nested), "rope_parameters.full_attention", &["per-layer"]);
    refused(load_with(json!({"rope_theta": "1e4"})), "rope_theta", &["1e4", "number"]);
    refused(load_with(json!({"rope_theta": 0})), "rope_theta", &["above 0"]);
    refused(load_with(json!({"rope_theta": 1.0})), "rope_theta", &["above 1"]);
    let theta = json!({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e6}});
    refused(load_with(theta), "rope_parameters.rope_theta", &["1000000", "rope_theta", "10000", "agree"]);
    let types =
        json!({"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"rope_type": "default"}});
    refused(load_with(types), "rope_parameters", &["Default", "Linear", "rope_scaling", "agree"]);
    let original = json!({"original_max_position_embeddings": 32,
        "rope_scaling": {"type": "yarn", "factor": 2, "original_max_position_embeddings": 64}});
    refused(load_with(original), "rope_scaling.original_max_position_embeddings", &["64", "32"]);
}
