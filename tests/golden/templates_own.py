"""Chat templates written for the tests: what the templates of larger models use, with words and markers of their own."""

# Macros, a namespace, slices, string methods, tojson, tools, an own field for thoughts, enable_thinking.
GENERAL = r"""{#- a comment goes away -#}
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

# ChatML with blocks of thoughts that are kept after the last question, calls in tags, results in the user's turn.
THINKING = r"""{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\n\n' }}
    {%- endif %}
    {{- "Functions, one a line:\n<functions>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</functions>\nCall one like this:\n<tool_call>\n{\"name\": <name>, \"arguments\": <object>}\n</tool_call><|im_end|>\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set at = namespace(searching=true, question=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if at.searching and message.role == "user" and not(message.content.startswith('<result>') and message.content.endswith('</result>')) %}
        {%- set at.searching = false %}
        {%- set at.question = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content if message.content is string else '' %}
        {%- set thoughts = '' %}
        {%- if message.reasoning_content is defined and message.reasoning_content is not none %}
            {%- set thoughts = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thoughts = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > at.question and (loop.last or (not loop.last and thoughts)) %}
            {{- '<|im_start|>' + message.role + '\n<think>\n' + thoughts.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\n' }}
                {%- endif %}
                {%- if call.function %}
                    {%- set call = call.function %}
                {%- endif %}
                {{- '<tool_call>\n{"name": "' ~ call.name ~ '", "arguments": ' }}
                {%- if call.arguments is string %}
                    {{- call.arguments }}
                {%- else %}
                    {{- call.arguments | tojson }}
                {%- endif %}
                {{- '}\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<result>\n' + message.content + '\n</result>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- elif reasoning_effort is defined and reasoning_effort == 'high' %}
        {{- '<think>\n' }}
    {%- endif %}
{%- endif %}
"""

# Headers, tools printed with an indent before the first question, one call at a time, documents, filters.
HEADERS = r"""{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_first is defined %}
    {%- set tools_first = true %}
{%- endif %}
{%- if not date is defined %}
    {%- if strftime_now is defined %}
        {%- set date = 'since ' ~ strftime_now("%Y")[:2] ~ '00' %}
    {%- else %}
        {%- set date = "some day" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- The system message goes to a place of its own. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set rules = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set rules = "" %}
{%- endif %}

{{- "[system]\n\n" }}
{%- if builtin is defined or tools is not none %}
    {{- "Tools are on.\n" }}
{%- endif %}
{%- if builtin is defined %}
    {{- "Built in: " + builtin | reject('equalto', 'shell') | join(", ") + "\n" }}
{%- endif %}
{{- "Today: " + date + "\n\n" }}
{%- if documents %}
    {%- for document in documents %}
        {{- loop.index ~ ") " ~ document['title'] | default('untitled') ~ ': ' ~ document.text | trim ~ '\n' }}
    {%- endfor %}
{%- elif documents is none %}
    {{- "No documents.\n" }}
{%- endif %}
{%- if tools is not none and not tools_first %}
    {{- "These functions can be called with JSON.\n\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
{%- endif %}
{{- rules }}
{{- "[end]" }}
{%- if tools_first and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set question = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("There is no first user message to put the tools before!") }}
    {%- endif %}
    {{- '[user]\n\n' -}}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
    {{- question + "[end]"}}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '[' + message['role'] + ']\n\n'+ message['content'] | trim + '[end]' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("One call at a time, not " ~ message.tool_calls|length) }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {%- if builtin is defined and call.name in builtin %}
            {{- '[assistant]\n\n' + call.name + '(' -}}
            {%- for name, value in call.arguments | items %}
                {{- name + '="' ~ value ~ '"' }}
                {%- if not loop.last %}{{- ", " }}{% endif %}
            {%- endfor %}
            {{- ')' }}
        {%- else %}
            {{- '[assistant]\n\n' -}}
            {{- '{"name": "' + call.name + '", "parameters": ' }}
            {{- call.arguments | tojson }}
            {{- "}" }}
        {%- endif %}
        {{- '[end]' }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "[ipython]\n\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "[end]" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '[assistant]\n\n' }}
{%- endif %}
"""

# One of each: tests, filters, methods, printing of Python values.
SHAPES = r"""{%- macro show(value) -%}
    {{ value is string }} {{ value is mapping }} {{ value is iterable }} {{ value is sequence }} {{ value is number }} {{ value is none }} {{ value is boolean }}
{%- endmacro -%}
{{ show('ab') }}; {{ show([1]) }}; {{ show({'a': 1}) }}; {{ show(1.5) }}; {{ show(none) }}; {{ show(true) }}
{{ ['a', 1, 2.0, none, true] }} {{ {'k': 'v', 'n': [false]} }} {{ 7 // 2 }} {{ 7 / 2 }} {{ 8 / 2 }} {{ 2 ** 3 }} {{ -7 % 3 }}
{{ 'a,b,,c'.split(',') | join('|') }} {{ '  x y '.split() | length }} {{ 'abc'[1:] }} {{ 'abc'[::-1] }} {{ 'abc'[-1] }}
{{ 'Hello World'.lower() }} {{ 'hello world'.title() }} {{ 'hello'.capitalize() }} {{ 'x'.join(['a', 'b']) }} {{ 'a-b'.replace('-', '+') }}
{{ 'xxabcxx'.strip('x') }} {{ 'abc'.find('c') }} {{ 'abcabc'.count('b') }} {{ 'abc'.endswith(('x', 'c')) }} {{ 'a\nb'.splitlines() | length }}
{{ {'a': 1, 'b': 2}.items() | list | length }} {{ {'a': 1}.keys() | list | first }} {{ {'a': 1}.values() | list | last }} {{ {'a': 1}.get('z', 'none') }}
{{ [3, 1, 2] | sort | join(',') }} {{ ['b', 'a'] | sort(reverse=true) | join }} {{ [1, 2, 3] | map('string') | join('') }} {{ [1, 2, 2] | unique | list | length }}
{{ messages | map(attribute='role') | join(',') }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ messages | rejectattr('role', 'in', ['user']) | list | length }}
{{ 'x' if missing is defined else 'y' }} {{ missing | default('d') }} {{ '' | default('e', true) }} {{ missing }}|{{ none }}|{{ 1 == 1.0 }} {{ 'b' in 'abc' }} {{ 'a' not in {'a': 1} }}
{%- for k, v in {'x': 1, 'y': [2]} | dictsort %}{{ loop.first }}{{ k }}={{ v }}{{ loop.revindex0 }}{% endfor %}
{% for i in range(5) if i % 2 == 0 %}{{ i }}{% else %}none{% endfor %} {% for i in [] %}{% else %}empty{% endfor %} {% for i in range(3) %}{{ loop.cycle('a', 'b') }}{% endfor %}
{% set ns = namespace(n=0, items=[]) %}{% for m in messages %}{% if m.role == 'tool' %}{% continue %}{% endif %}{% set ns.n = ns.n + 1 %}{% set ns.items = ns.items + [m.role] %}{% endfor %}{{ ns.n }} {{ ns.items }}
{% filter upper %}shout{% endfilter %} {% set block %}a {{ 1 + 1 }} b{% endset %}{{ block | length }} {{ '%s-%d' | format('a', 3) }} {{ 'abc' | first }}{{ 'abc' | last }} {{ 3.7 | int }} {{ '4' | int + 1 }} {{ 'a-b-c'.rsplit('-', 1) | join('+') }} {{ 'a=b'.partition('=') | last }} {{ 'abc'.removeprefix('a') ~ 'abc'.removesuffix('c') }} {{ 'aaa' | replace('a', 'b', 2) }} {{ 1e20 }} {{ -3 | abs }}
{{ dict(a=1)['a'] }} {{ "it's" | tojson }} {{ {'b': 1, 'a': [1.0, 1e20, none]} | tojson(sort_keys=true) }} {{ 'é"\\/' | tojson(ensure_ascii=true) }} {{ [1, {'a': []}] | tojson(indent=2) }} {{ [1, 2] | tojson(separators=(',', ':')) }}
{%- if add_generation_prompt %}[go]{% endif %}
"""
