"""Chat templates as transformers renders them.

    python tests/golden/make_templates_golden.py [SMOLLM2_FOLDER]     (default: models/smollm2)

Writes templates.json: the template of the demo pair, that of SmolLM2, and one of our own that uses what
the templates of larger models use (macros, a namespace, slices, string methods, tojson, tools, enable_thinking). For each
conversation the rendered text, or the message of raise_exception.
"""

import json
import os
import sys

import ml_numbers as num
import transformers
from jinja2.exceptions import TemplateError
from transformers import AutoTokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")

# Written for this test, with markers of its own.
OWN = r"""{#- a comment goes away -#}
{%- macro turn(who, text, more='') -%}
[{{ who | upper }}]{{ text }}{{ more }}[/{{ who | upper }}]{{ '\n' }}
{%- endmacro %}
{%- set state = namespace(question=-1, results=0) %}
{%- for m in messages[::-1] %}
    {%- if state.question < 0 and m['role'] == 'user' and not (m.content or '').startswith('RESULT') %}
        {%- set state.question = (messages | length) - loop.index %}
    {%- endif %}
{%- endfor %}
{%- if messages[0].role == 'system' %}
    {%- set rules, rest = messages[0].content | trim, messages[1:] %}
{%- else %}
    {%- set rules, rest = 'none', messages %}
{%- endif %}
{%- if tools is defined and tools %}
    {{- 'functions (' ~ tools | length ~ '):\n' }}
    {%- for tool in tools %}
        {{- loop.index ~ '. ' ~ (tool.function | tojson) ~ '\n' }}
        {%- for name, kind in tool.function.parameters.properties.items() %}
            {{- '   ' ~ name ~ ': ' ~ kind.get('type', '?') ~ ('' if loop.last else ',') ~ '\n' }}
        {%- endfor %}
    {%- endfor %}
    {{- tools[0] | tojson(indent=2) }}
    {{- '\n' }}
{%- endif %}
{{- 'rules: ' + rules + '\n' if rules != 'none' else '' }}
{%- for m in rest %}
    {%- set at = loop.index0 + (messages | length) - (rest | length) %}
    {%- if m.role == 'user' %}
        {{- turn('user', m.content) }}
    {%- elif m.role == 'assistant' %}
        {%- set parts = (m.content or '').split('</think>') %}
        {%- set thought = m.thoughts if m.thoughts is string else (parts[0].replace('<think>', '').strip() if parts | length > 1 else '') %}
        {%- set shown = parts[-1].lstrip('\n') %}
        {%- if thought and at > state.question %}
            {{- '(' ~ thought.rstrip('.') ~ ')' }}
        {%- endif %}
        {%- for call in m.tool_calls or [] %}
            {%- set a = call.function.arguments %}
            {{- '!' ~ call.function.name ~ ' ' ~ (a if a is string else a | tojson) ~ '\n' }}
        {%- endfor %}
        {{- turn('assistant', shown, '.' if not shown.endswith('.') and shown is not none) }}
    {%- elif m.role == 'tool' %}
        {%- set state.results = state.results + 1 %}
        {{- 'RESULT ' ~ state.results ~ ': ' ~ m.content ~ '\n' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}
            {{- '---\n' }}
        {%- endif %}
    {%- else %}
        {{- raise_exception('unknown role: ' ~ m.role) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '[ASSISTANT]' }}
    {%- if enable_thinking is defined and not enable_thinking %}
        {{- '()' }}
    {%- elif (rest | selectattr('role', 'equalto', 'user') | list | length) > 2 %}
        {{- '(long)' }}
    {%- endif %}
{%- endif %}
"""

say = lambda role, content, **more: dict(role=role, content=content, **more)
TOOLS = [dict(type="function", function=dict(
    name="weather", description="Today's weather <b>in</b> a city & its \"region\"",
    parameters=dict(type="object", properties=dict(city=dict(type="string"), días=dict(type="integer")), required=["city"])))]
CALL = dict(id="call_1", type="function", function=dict(name="weather", arguments=dict(city="Zürich", days=2)))
CALL_TEXT = dict(id="call_2", type="function", function=dict(name="weather", arguments='{"city": "Rome"}'))

# name, messages, further template arguments
CONVERSATIONS = [
    ("one question", [say("user", "What is the capital of France?")], {}),
    ("no generation prompt", [say("user", "Hi")], dict(add_generation_prompt=False)),
    ("system message", [say("system", "Be brief."), say("user", "Why is the sky blue?")], {}),
    ("several turns", [say("user", "Hello!"), say("assistant", "Hello! How can I help?"), say("user", "Count to 3.")], {}),
    ("system and turns", [say("system", "Be brief."), say("user", "a"), say("assistant", "b"), say("user", "c"),
                          say("assistant", "d"), say("user", "e")], {}),
    ("thinking off", [say("user", "2+2?")], dict(enable_thinking=False)),
    ("thinking on", [say("user", "2+2?")], dict(enable_thinking=True)),
    ("thoughts in old turns", [say("user", "2+2?"), say("assistant", "<think>\n2+2=4.\n</think>\n\n4"), say("user", "And 3+3?")], {}),
    ("answer last", [say("user", "2+2?"), say("assistant", "<think>\n2+2=4.\n</think>\n\n4")], dict(add_generation_prompt=False)),
    ("separate reasoning", [say("user", "2+2?"), say("assistant", "4", thoughts="2+2=4.")], dict(add_generation_prompt=False)),
    ("special text in a message", [say("user", "say <|im_end|> and {{ braces }} {% raw %}")], {}),
    ("white space kept", [say("user", "  line one\n\n\tline two  \n")], {}),
    ("not only ASCII", [say("user", "Grüße, 世界 👋🏽 — ‘quotes’ & <tags> \"x\"")], {}),
    ("empty message", [say("user", "")], {}),
    ("unknown role", [say("user", "a"), say("critic", "b")], {}),
    ("tools", [say("user", "Weather in Zürich?")], dict(tools=TOOLS)),
    ("tools and system", [say("system", "Be brief."), say("user", "Weather in Zürich?")], dict(tools=TOOLS)),
    ("tool calls", [say("user", "Weather?"), say("assistant", None, tool_calls=[CALL, CALL_TEXT]), say("tool", "18 °C"),
                    say("tool", "27 °C"), say("user", "Which is warmer?")], dict(tools=TOOLS)),
]


def render(tokenizer, messages, more):
    arguments = dict(tokenize=False, add_generation_prompt=True)
    arguments.update(more)
    try:
        return dict(text=tokenizer.apply_chat_template(messages, **arguments))
    except TemplateError as e:
        return dict(error=str(e))


def main():
    smollm2 = sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "models", "smollm2")
    transformers.logging.set_verbosity_error()
    demo = AutoTokenizer.from_pretrained(os.path.join(ROOT, "models", "demo", "slm"))
    own = AutoTokenizer.from_pretrained(os.path.join(ROOT, "models", "demo", "slm"))
    own.chat_template = OWN
    real = AutoTokenizer.from_pretrained(smollm2)
    templates = []
    for name, tokenizer, with_null in (("demo", demo, False), ("smollm2", real, False), ("own", own, True)):
        cases = []
        for title, messages, more in CONVERSATIONS:
            if not with_null and any(m["content"] is None for m in messages):
                continue  # these templates add strings; a null content is an error in their words
            cases.append(dict(title=title, messages=messages, arguments=more, **render(tokenizer, messages, more)))
        entry = dict(name=name, cases=cases)
        if name == "own":
            entry["template"] = OWN
        templates.append(entry)
    num.write_json(os.path.join(HERE, "templates.json"),
                   dict(made_with=dict(transformers=transformers.__version__), templates=templates))
    for t in templates:
        for c in t["cases"]:
            print(t["name"], "|", c["title"], "|", json.dumps(c.get("text", c.get("error")), ensure_ascii=False)[:200])


if __name__ == "__main__":
    main()
