use crate::text::fixtures::{self, TempDir};
use crate::text::{ChatOptions, TextError, TextModel};
use serde_json::{Map, Value, json};

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
    ChatOptions {
        tools: kwargs.shift_remove("tools"),
        add_generation_prompt: kwargs.shift_remove("add_generation_prompt").is_none_or(|flag| flag == true),
        kwargs,
        ..ChatOptions::default()
    }
}

#[test]
fn templates_render_as_in_transformers() {
    let path = fixtures::root().join("tests/golden/templates.json");
    let golden: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let mut compared = 0;
    for entry in golden["templates"].as_array().unwrap() {
        let model = match (entry["name"].as_str().unwrap(), &entry["template"]) {
            ("demo", _) => TextModel::load(&fixtures::root().join("models/demo/slm")).unwrap(),
            (_, Value::String(template)) => with_template(template),
            // The template of a checkpoint that is not in the repository; another test renders it.
            _ => continue,
        };
        for case in entry["cases"].as_array().unwrap() {
            let got =
                render(&model, case["messages"].clone(), &options(case["arguments"].as_object().unwrap()));
            let expected = match case["error"].as_str() {
                Some(message) => Err(TextError::Raised(message.to_owned())),
                None => Ok(case["text"].as_str().unwrap().to_owned()),
            };
            assert_eq!(got, expected, "{}: {}", entry["name"], case["title"]);
            compared += 1;
        }
    }
    assert!(compared > 25, "{compared}");
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
