use crate::api::messages::tidy;
use crate::text::fixtures::{self, TempDir};
use crate::text::{ChatOptions, TextError, TextModel, TextOptions};
use serde_json::{Map, Value, json};
use std::path::Path;

/// The byte-level tokenizer with this `tokenizer_config.json`.
fn with_config(config: Value) -> TextModel {
    fixtures::load(&fixtures::byte_level_json(), &config)
}

fn with_template(template: &str) -> TextModel {
    with_config(json!({"chat_template": template, "eos_token": "<|end|>", "bos_token": {"content": "<s>"}}))
}

fn render(model: &TextModel, messages: Value, options: &ChatOptions) -> Result<String, TextError> {
    model.chat_prompt(&messages, options).map(|prompt| prompt.plain())
}

fn render_one(template: &str) -> Result<String, TextError> {
    render(&with_template(template), json!([{"role": "user", "content": "hi"}]), &ChatOptions::default())
}

/// Arguments of a golden case.
fn options(arguments: &Map<String, Value>) -> ChatOptions {
    let mut kwargs = arguments.clone();
    let continue_final_message = kwargs.shift_remove("continue_final_message").is_some();
    ChatOptions {
        tools: kwargs.shift_remove("tools"),
        documents: kwargs.shift_remove("documents"),
        add_generation_prompt: kwargs.shift_remove("add_generation_prompt").is_none_or(|flag| flag == true)
            && !continue_final_message,
        continue_final_message,
        kwargs,
        ..ChatOptions::default()
    }
}

/// The demo's tokenizer with another template.
fn demo_with(template: &str) -> TextModel {
    let (dir, demo) = (TempDir::new(), fixtures::root().join("models/demo/slm"));
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        dir.write(file, std::fs::read(demo.join(file)).unwrap());
    }
    dir.write("chat_template.jinja", template);
    TextModel::load(dir.path()).unwrap()
}

/// Compares all cases of a golden file; `folder` has the checkpoints it names. Returns how many cases and how many
/// with token ids there were.
fn compare(path: &Path, folder: &Path) -> (usize, usize) {
    let golden: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let (mut texts, mut ids) = (0, 0);
    for entry in golden["templates"].as_array().unwrap() {
        let model = match (entry["name"].as_str().unwrap(), &entry["template"], &entry["folder"]) {
            ("demo", ..) => TextModel::load(&fixtures::root().join("models/demo/slm")).unwrap(),
            (_, Value::String(template), _) => demo_with(template),
            (_, _, Value::String(name)) => TextModel::load(&folder.join(name)).unwrap(),
            // A checkpoint that is not in the repository; `.ci/run` has it.
            _ => match std::env::var_os("TOKENROUTER_SMOLLM2") {
                Some(dir) => TextModel::load(dir.as_ref()).unwrap(),
                None => continue,
            },
        };
        for case in entry["cases"].as_array().unwrap() {
            let case_options = options(case["arguments"].as_object().unwrap());
            let got = model.chat_prompt(&messages(&case["messages"]), &case_options);
            let title = format!("{}: {}", entry["name"], case["title"]);
            match case["error"].as_str() {
                Some(message) if message.starts_with("continue_final_message") => {
                    assert_eq!(got, Err(TextError::Continue), "{title}");
                }
                Some(message) => assert_eq!(got, Err(TextError::Raised(message.to_owned())), "{title}"),
                None => {
                    let got = got.unwrap_or_else(|error| panic!("{title}: {error}"));
                    assert_eq!(got.plain(), case["text"].as_str().unwrap(), "{title}");
                    let tokens = model.encode_rendered(&got).unwrap();
                    if case.get("ids").is_some() {
                        assert_eq!(json!(tokens), case["ids"], "{title}");
                        ids += 1;
                    }
                    if case.get("controls").is_some() {
                        let added: Vec<u32> = model.added_tokens().into_iter().map(|(id, _)| id).collect();
                        let controls: Vec<u32> = tokens.into_iter().filter(|id| added.contains(id)).collect();
                        assert_eq!(json!(controls), case["controls"], "{title}");
                    }
                }
            }
            texts += 1;
        }
    }
    (texts, ids)
}

/// Messages as the API hands them on: no member is null, and thoughts have one name.
fn messages(given: &Value) -> Value {
    Value::Array(
        given.as_array().unwrap().iter().map(|m| Value::Object(tidy(m.as_object().unwrap()))).collect(),
    )
}

#[test]
fn templates_render_and_tokenize_as_in_transformers() {
    let root = fixtures::root();
    let (texts, ids) = compare(&root.join("tests/golden/templates.json"), &root);
    assert!(texts > 100 && ids > 50, "{texts} {ids}");
    // The templates of real checkpoints, made by the golden script's `--real`.
    if let Some(folder) = std::env::var_os("TOKENROUTER_TEMPLATES") {
        let folder = Path::new(&folder);
        let (texts, ids) = compare(&folder.join("templates.json"), folder);
        assert!(texts > 20 && ids > 20, "{texts} {ids}");
    }
}

#[test]
fn white_space_control_is_that_of_hugging_face() {
    let template =
        "{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}\nend\n";
    assert_eq!(render_one(template).unwrap(), "hi\nend");
}

#[test]
fn token_variables_and_flags_reach_the_template() {
    let template =
        "{{ bos_token }}{{ eos_token }}{{ pad_token }}|{{ tools is none }}|{{ add_generation_prompt }}";
    assert_eq!(render_one(template).unwrap(), "<s><|end|>|True|True");
    let model = with_template("{{ enable_thinking }} {{ messages | length }} {{ x.y }}");
    let kwargs = json!({"enable_thinking": false, "x": {"y": 3}, "messages": 5}).as_object().unwrap().clone();
    let options = ChatOptions { kwargs, ..ChatOptions::default() };
    assert_eq!(render(&model, json!([{"role": "user", "content": ""}]), &options).unwrap(), "False 1 3");
}

#[test]
fn sources_in_their_order() {
    let dir = TempDir::new();
    dir.write("tokenizer.json", fixtures::byte_level_json().to_string());
    let list = json!([{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]);
    dir.write("tokenizer_config.json", json!({"chat_template": list}).to_string());
    let model = TextModel::load(dir.path()).unwrap();
    let tools = ChatOptions { tools: Some(json!([{"type": "function"}])), ..ChatOptions::default() };
    assert_eq!(render(&model, json!([]), &ChatOptions::default()).unwrap(), "plain");
    assert_eq!(render(&model, json!([]), &tools).unwrap(), "tools");
    dir.write("chat_template.jinja", "from the file");
    let model = TextModel::load(dir.path()).unwrap();
    assert_eq!(render(&model, json!([]), &tools).unwrap(), "from the file");
    let path = dir.path().join("mine.jinja");
    let options = TextOptions { template: Some(path.clone()), ..TextOptions::default() };
    match TextModel::load_with(dir.path(), &options) {
        Err(TextError::File { path: named, .. }) => assert_eq!(named, path, "a file that is not there"),
        other => panic!("{other:?}"),
    }
    dir.write("mine.jinja", "the operator's");
    let model = TextModel::load_with(dir.path(), &options).unwrap();
    assert_eq!(render(&model, json!([]), &tools).unwrap(), "the operator's");
}

#[test]
fn a_last_message_goes_on() {
    let go_on =
        ChatOptions { continue_final_message: true, add_generation_prompt: false, ..ChatOptions::default() };
    let run = |template: &str, messages: Value| {
        let model = with_template(template);
        let prompt = model.chat_prompt(&messages, &go_on)?;
        assert_eq!(model.decode(&model.encode_rendered(&prompt)?, false), prompt.plain());
        Ok::<_, TextError>(prompt.plain())
    };
    let say = |content: &str| json!([{"role": "user", "content": "a b"}, {"role": "assistant", "content": content}]);
    let plain = "{% for m in messages %}[{{ m.content }}]<|end|>\n{% endfor %}";
    assert_eq!(run(plain, say(" b ")).unwrap(), "[a b]<|end|>\n[ b ");
    assert_eq!(run(plain, say("")).unwrap(), "[a b]<|end|>\n[");
    assert_eq!(run(plain, say("<|end|>")).unwrap(), "[a b]<|end|>\n[<|end|>");
    let trimmed = "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}";
    assert_eq!(run(trimmed, say(" b ")).unwrap(), "[a b][b");
    for lost in ["{{ messages[0].content }}", "{{ messages[-1].content | replace('b', 'c') }}"] {
        assert_eq!(run(lost, say("b")), Err(TextError::Continue), "{lost}");
    }
    assert_eq!(run(plain, json!([])), Err(TextError::Continue));
}

#[test]
fn functions_templates_expect() {
    assert_eq!(
        render_one("{{ {'b': 1.0, 'a': ['<é>', none]} | tojson }}").unwrap(),
        r#"{"b": 1.0, "a": ["<é>", null]}"#
    );
    assert_eq!(render_one("{{ {'a': [1]} | tojson(indent=2) }}").unwrap(), "{\n  \"a\": [\n    1\n  ]\n}");
    assert_eq!(render_one("{{ [1, 2] | tojson(separators=[',', ':']) }}").unwrap(), "[1,2]");
    let date = render_one("{{ strftime_now('%Y-%m-%d') }}").unwrap();
    assert!(date.len() == 10 && date.starts_with("20"), "{date}");
    assert_eq!(
        render_one("{% for i in range(9) %}{% if i > 2 %}{% break %}{% endif %}{{ i }}{% endfor %}").unwrap(),
        "012"
    );
    assert_eq!(
        render_one(
            "{% generation %}a{% endgeneration %}{%- generation -%} b {%- endgeneration %}{{ '{%' }}c"
        )
        .unwrap(),
        "ab{%c"
    );
}

#[test]
fn a_template_that_refuses_or_fails_says_so() {
    assert_eq!(
        render_one("{% if true %}{{ raise_exception('roles must alternate') }}{% endif %}"),
        Err(TextError::Raised("roles must alternate".into()))
    );
    for template in ["\n{{ messages[0].content.nope.deeper }}", "\n{{ 1 + 'a' }}", "\n{{ messages | nope }}"]
    {
        match render_one(template) {
            Err(TextError::Render(problem)) => assert!(problem.contains("line 2"), "{problem}"),
            other => panic!("{template}: {other:?}"),
        }
    }
}
