//! Inverse frequencies against numbers that transformers 5.24.0 computed (f32 bit patterns), to one
//! unit in the last place: its power function is not the same library's as ours.

use serde_json::{Value, json};
use tokenrouter_engine::config::ModelConfig;

use crate::support::{TempDir, qwen3_config};

fn check(parameters: Value, attention_factor: f64, bits: &[u32]) {
    let dir = TempDir::new();
    let mut config = qwen3_config();
    config["rope_theta"] = Value::Null;
    config["head_dim"] = json!(bits.len() * 2);
    config["rope_parameters"] = parameters.clone();
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let rope = ModelConfig::load(dir.path()).unwrap().rope;
    assert_eq!(rope.attention_factor(), attention_factor as f32, "{parameters}");
    let found = rope.inv_freq(bits.len() * 2);
    assert_eq!(found.len(), bits.len());
    for (i, (a, b)) in found.iter().zip(bits).enumerate() {
        let apart = a.to_bits().abs_diff(*b);
        assert!(apart <= 1, "{parameters}: frequency {i} is {a}, wanted {}", f32::from_bits(*b));
    }
}

const PLAIN: [u32; 8] =
    [1065353216, 1050798235, 1036831949, 1023510243, 1008981770, 995049016, 981668463, 967166816];

#[test]
fn unscaled() {
    check(json!({"rope_type": "default", "rope_theta": 10000.0}), 1.0, &PLAIN);
    // Inside the context, where this engine stays, dynamic scaling does nothing.
    check(json!({"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 3.0}), 1.0, &PLAIN);
    let bits = [
        1065353216, 1048615884, 1031878742, 1015141789, 998405030, 981668463, 964932085, 948195909,
        931459921, 914724136,
    ];
    check(json!({"rope_type": "default", "rope_theta": 1000000}), 1.0, &bits);
}

#[test]
fn linear() {
    let bits = [1051372203, 1037557967, 1023969417, 1009562585, 995783693, 982133115, 967754559, 954011435];
    check(json!({"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0}), 1.0, &bits);
}

#[test]
fn llama3() {
    let bits = [1065353216, 1034067468, 999950536, 980350799, 960060705, 940558584, 920588484, 900532135];
    let parameters = json!({"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64});
    check(parameters, 1.0, &bits);
}

#[test]
fn yarn() {
    let yarn = |original: u32, extra: Value| {
        let mut all = json!({"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
            "original_max_position_embeddings": original});
        for (name, value) in extra.as_object().unwrap() {
            all[name] = value.clone();
        }
        all
    };
    let bits = [1065353216, 1047715048, 1028443340, 1006733027, 992204554, 978271800, 964891247, 950389600];
    check(yarn(64, json!({})), 1.138629436111989, &bits);
    check(yarn(64, json!({"attention_factor": 1.5, "beta_fast": 32, "beta_slow": 0})), 1.5, &bits);
    check(yarn(64, json!({"mscale": 0.707})), 1.138629436111989, &bits);
    let bits = [1065353216, 1045125499, 1020374305, 1006733027, 992204554, 978271800, 964891247, 950389600];
    check(yarn(64, json!({"truncate": false})), 1.138629436111989, &bits);
    let bits = [1065353216, 1045062338, 1020054733, 1006733027, 992204554, 978271800, 964891247, 950389600];
    let mscale = json!({"mscale": 0.707, "mscale_all_dim": 1.2, "beta_fast": 16, "beta_slow": 2});
    check(yarn(64, mscale), 0.941403523749669, &bits);
    // A null factor is the ratio of the two context lengths, 256 / 32.
    let bits = [1065353216, 1043735982, 1011666125, 998344419, 983815946, 969883192, 956502639, 942000992];
    check(yarn(32, json!({"factor": null})), 1.2079441541679836, &bits);
}
