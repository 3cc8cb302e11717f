//! Layers, origins and the tables.

use super::*;

const FILE: &str = r#"
    [[model]]
    name = "small"
    path = "slm"
    [[model]]
    name = "Large-2"
    path = "llm"
    [router]
    name = "r-stitch"
    threshold = 0.03
    [server]
    max_n = 3
    http = "127.0.0.1:9000"
"#;

fn flags(list: &[(&str, &str)]) -> Overrides {
    list.iter().fold(Overrides::default(), |all, (key, value)| {
        all.and(&format!("--set {key}"), key, Some((*value).into()))
    })
}

fn resolve(environment: &[(&str, &str)], given: &[(&str, &str)]) -> Result<Config, String> {
    let environment: Vec<_> = environment.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let file = FileText { name: "pair.toml", text: FILE, base: Path::new("/etc/pair") };
    Config::resolve(Some(file), &environment, &flags(given))
}

fn origin(config: &Config, key: &str) -> String {
    config.resolved.origins.get(key).map(ToString::to_string).unwrap_or_default()
}

#[test]
fn flags_win_over_the_environment_over_the_file_over_defaults() {
    let env = [("TOKENROUTER_SERVER_MAX_N", "4"), ("TOKENROUTER_SERVER_MAX_WAITING", "5")];
    let config = resolve(&env, &[("server.max_n", "6")]).expect("good");
    assert_eq!((config.server.max_n, config.server.max_waiting, config.server.max_running), (6, 5, 64));
    assert_eq!(config.server.http.port(), 9000);
    let origins =
        ["max_n", "max_waiting", "max_running", "http"].map(|key| origin(&config, &format!("server.{key}")));
    assert_eq!(origins, ["--set server.max_n", "TOKENROUTER_SERVER_MAX_WAITING", "default", "pair.toml"]);
    assert_eq!(resolve(&env, &[]).expect("good").server.max_n, 4);
    assert_eq!(resolve(&[], &[]).expect("good").server.max_n, 3);
}

#[test]
fn models_and_routers_can_be_set_from_outside() {
    let env = [
        ("TOKENROUTER_MODEL_SMALL_PATH", "here"),
        ("TOKENROUTER_MODEL_LARGE_2_DEVICES", "[1, 2]"),
        ("TOKENROUTER_MODEL_1_THREADS", "3"),
        ("TOKENROUTER_ROUTER_MAX_LLM_FRACTION", "0.5"),
        ("TOKENROUTER_DEVICE", "cuda"),
        ("TOKENROUTER_BUDGET_KV_DTYPE", ""),
    ];
    let set = [("router.threshold", "always"), ("model.Large-2.repo", "a/b"), ("model.Large-2.price", "2.5")];
    let config = resolve(&env, &set).expect("good");
    assert_eq!(config.models[0].path, Path::new("here"), "relative to the working directory");
    let large = &config.models[1];
    assert_eq!((large.devices.as_slice(), large.threads, large.price), (&[1, 2][..], 3, Some(2.5)));
    assert_eq!(
        (large.repo.as_deref(), large.path.as_os_str().is_empty()),
        (Some("a/b"), true),
        "it wins over the path"
    );
    assert_eq!(config.router.params["threshold"].as_str(), Some("always"));
    assert_eq!(config.router.params["max_llm_fraction"].as_float(), Some(0.5));
    assert_eq!(config.device, DeviceName::Cuda);
}

#[test]
fn without_a_file_flags_are_enough() {
    let model = |text: &str| ("model", text.to_owned());
    let all = [model("small=Qwen/Qwen3-0.6B"), model("large=./big"), ("router.name", "r-stitch".into())];
    let given =
        all.iter().fold(Overrides::default(), |o, (key, value)| o.and("--flag", key, Some(value.clone())));
    let config = Config::resolve(None, &[], &given).expect("good");
    let repo = |i: usize| (config.models[i].repo.as_deref(), config.models[i].path.as_path());
    assert_eq!((repo(0), repo(1)), ((Some("Qwen/Qwen3-0.6B"), Path::new("")), (None, Path::new("./big"))));
    assert_eq!((config.models[0].max_batch, config.server.http.port()), (32, 8000));

    // One model needs no router, and its name may be left out.
    let given = Overrides::default().and("--model", "model", Some("/models/Qwen3-0.6B/".into()));
    let config = Config::resolve(None, &[], &given).expect("good");
    assert_eq!((config.models[0].name.as_str(), config.router.name.as_str()), ("Qwen3-0.6B", "single"));
    // A variable does not win over the flag that names the same thing.
    let env = [("TOKENROUTER_MODEL_0_REPO".to_owned(), "a/b".to_owned())];
    let config = Config::resolve(None, &env, &given).expect("good");
    assert_eq!(
        (config.models[0].repo.as_deref(), config.models[0].path.as_path()),
        (None, Path::new("/models/Qwen3-0.6B/"))
    );
}

#[test]
fn host_and_port_are_halves_of_the_address() {
    let http = |list: &[(&str, &str)]| resolve(&[], list).map(|config| config.server.http.to_string());
    assert_eq!(http(&[("port", "81")]).as_deref(), Ok("127.0.0.1:81"));
    assert_eq!(http(&[("host", "0.0.0.0")]).as_deref(), Ok("0.0.0.0:9000"));
    assert_eq!(http(&[("host", "::"), ("port", "0")]).as_deref(), Ok("[::]:0"));
    assert_eq!(http(&[("host", "localhost")]).as_deref(), Ok("127.0.0.1:9000"));
    assert!(http(&[("port", "65536")]).is_err_and(|e| e.contains("--set port") && e.contains("65535")));
    assert!(http(&[("host", "my host")]).is_err_and(|e| e.contains("--set host")));
}

#[test]
fn every_refusal_names_its_place_and_key() {
    type Pairs<'a> = &'a [(&'a str, &'a str)];
    let cases: [(Pairs<'_>, Pairs<'_>, &[&str]); 18] = [
        (
            &[("TOKENROUTER_SERVER_MAX_N", "0")],
            &[],
            &["TOKENROUTER_SERVER_MAX_N: server.max_n is 0", "1 to 1024"],
        ),
        (
            &[("TOKENROUTER_MODEL_SMALL_THREADS", "many")],
            &[],
            &["MODEL_SMALL_THREADS", "model \"small\": threads"],
        ),
        (&[], &[("server.max_m", "1")], &["--set server.max_m", "did you mean \"max_n\""]),
        (&[], &[("servr.max_n", "1")], &["--set servr.max_n", "did you mean \"server\""]),
        (&[], &[("model.smal.path", "x")], &["there is no model \"smal\"", "small, Large-2"]),
        (&[], &[("model.path", "x")], &["model.NAME.KEY"]),
        (&[], &[("server", "x")], &["unknown key \"server\""]),
        (&[], &[("chat.reasoning_parser", "qwen")], &["chat.reasoning_parser", "did you mean \"qwen3\""]),
        (&[], &[("faults.on_peer_loss", "continu")], &["faults.on_peer_loss", "did you mean \"continue\""]),
        (&[], &[("server.tls_cert", "c.pem")], &["server.tls_cert needs server.tls_key"]),
        (&[], &[("server.tls_cert", "c"), ("server.tls_key", "k")], &["server.tls_cert", "feature `tls`"]),
        (
            &[],
            &[("model.small.max_batch", "600"), ("model.small.max_step_tokens", "512")],
            &["model \"small\": max_step_tokens is 512", "600"],
        ),
        (
            &[],
            &[("model.small.weights", "int4")],
            &["--set model.small.weights", "model \"small\": weights is \"int4\"", "must be \"int8\""],
        ),
        (&[], &[("server.served_model_name", "small")], &["--set server.served_model_name", "must differ"]),
        (&[], &[("request_limits.threshold", "[0.5, 0.1]")], &["--set request_limits.threshold", "lowest"]),
        (
            &[],
            &[("request_limits.threshold", "often")],
            &["request_limits.threshold is \"often\"", "two numbers"],
        ),
        (&[], &[("model.small.revision", "main")], &["model \"small\": revision needs a repo"]),
        (
            &[],
            &[("model.small.repo", "nobody")],
            &["--set model.small.repo", "\"nobody\"", "Qwen/Qwen3-0.6B"],
        ),
    ];
    for (environment, given, parts) in cases {
        // A feature that is built in refuses nothing.
        if cfg!(feature = "tls") && parts.contains(&"feature `tls`") {
            continue;
        }
        let error = resolve(environment, given).expect_err(parts[0]);
        assert!(parts.iter().all(|part| error.contains(part)), "{environment:?} {given:?}: {error}");
    }
    let error = Config::resolve(
        Some(FileText { name: "a.toml", text: "x = 1", base: Path::new("") }),
        &[],
        &flags(&[]),
    );
    assert!(error.is_err_and(|e| e.starts_with("a.toml: unknown key \"x\"")));
}

#[test]
fn the_form_of_weights_belongs_to_a_model() {
    use tokenrouter_engine::WeightForm::{Int8, Stored};
    let config = resolve(&[], &[("model.small.weights", "int8")]).expect("good");
    let forms: Vec<_> = config.models.iter().map(|model| model.weight_form()).collect();
    assert_eq!(forms, [Int8, Stored]);
}

/// A key of a client must not end up in a log or on a screen.
#[test]
fn a_refused_secret_is_not_shown() {
    let error = resolve(&[], &[("server.api_keys", "[7, \"sk-secret\"]")]).expect_err("a number");
    assert!(error.contains("server.api_keys") && !error.contains("sk-secret"), "{error}");
}

#[test]
fn unknown_variables_are_warned_of_and_those_of_kubernetes_are_not() {
    let env = [
        ("TOKENROUTER_SERVER_MAX_M", "1"),
        ("TOKENROUTER_SERVER_SERVICE_HOST", "10.0.0.1"),
        ("TOKENROUTER_ROUTER_PORT_8000_TCP_ADDR", "10.0.0.1"),
        ("TOKENROUTER_SERVER_PORT", "tcp://10.0.0.1:8000"),
        ("TOKENROUTER_LOG", "debug"),
        ("TOKENROUTER_CPU_ISA", "portable"),
    ];
    let config = resolve(&env, &[]).expect("good");
    assert_eq!(config.warnings().len(), 1, "{:?}", config.warnings());
    assert!(config.warnings()[0].contains("TOKENROUTER_SERVER_MAX_M"));
    assert_eq!(config.router.params.len(), 1);
}

/// Every default is of its own type and range, and every word of a list is one that the value knows.
#[test]
fn the_tables_agree_with_the_types() {
    let config = resolve(&[], &[]).expect("good");
    assert_eq!(config.cuda.memory_fraction, tokenrouter_engine::CudaOptions::default().memory_fraction);
    assert_eq!(config.cuda.largest_bucket, tokenrouter_engine::CudaOptions::default().largest_bucket);
    assert_eq!(format!("{:?}", config.scheduling), format!("{:?}", SchedulingSection::default()));
    for section in keys::SECTIONS {
        for key in section.keys {
            assert!(key.meaning.ends_with('.'), "{}: a sentence", key.name);
            if let Some(value) = key.default_value() {
                assert!(key.kind.accepts(&value), "{}.{}", section.name, key.name);
            }
            let kind::Kind::Word(words) = key.kind else { continue };
            for word in words.iter().filter(|_| section.form == keys::Form::Once) {
                let name = format!("{}.{}", section.name, key.name);
                resolve(&[], &[(&name, word)]).unwrap_or_else(|e| panic!("{name} = {word}: {e}"));
            }
        }
    }
}

/// No key may be called like a variable of another one.
#[test]
fn variables_are_told_apart() {
    let mut all: Vec<String> = Vec::new();
    for section in keys::SECTIONS {
        all.extend(section.keys.iter().map(|key| variables::name(section.name, key.name)));
    }
    let count = all.len();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), count);
}

/// `TOKENROUTER_WRITE_DOCS=1 cargo test -p tokenrouter-server configuration_reference` writes it anew.
#[test]
fn the_configuration_reference_is_up_to_date() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/configuration.md");
    if std::env::var_os("TOKENROUTER_WRITE_DOCS").is_some() {
        std::fs::write(&file, reference()).expect("writable");
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        found == reference(),
        "docs/configuration.md differs: `tokenrouter config-reference > docs/configuration.md`"
    );
}

#[test]
fn a_step_feeds_what_suits_the_device_unless_it_is_stated() {
    let steps = |set: &[(&str, &str)]| {
        let config = resolve(&[], set).unwrap();
        config.models.first().map(|m| [m.step_tokens(DeviceName::Cpu), m.step_tokens(DeviceName::Cuda)])
    };
    assert_eq!(steps(&[]), Some([128, 512]));
    assert_eq!(steps(&[("model.small.max_batch", "300")]), Some([300, 512]));
    assert_eq!(steps(&[("model.small.max_step_tokens", "40")]), Some([40, 40]));
}
