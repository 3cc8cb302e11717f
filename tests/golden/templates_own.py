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
THINKING = r"""{%- macro open(role) %}{{ '<|im_start|>' ~ role ~ '\n' }}{% endmacro %}
{%- set close = '<|im_end|>\n' %}
{%- set state = namespace(question=0, calls=0) %}
{%- for m in messages[::-1] %}
    {%- set place = messages | length - loop.index %}
    {%- if m.role == 'user' and not m.content.startswith('<result>') and not m.content.endswith('</result>') %}
        {%- set state.question = place %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- set preface = messages[0].content if messages[0].role == 'system' else none %}
{%- if preface is not none or tools %}
    {{- open('system') ~ (preface or '') }}
    {%- if tools %}
        {{- '\n\n' if preface else '' }}
        {{- 'You can call:' }}
        {%- for tool in tools %}
            {{- '\n- ' ~ tool | tojson }}
        {%- endfor %}
        {{- '\nA call looks like <tool_call>\n{"name": "NAME", "arguments": {}}\n</tool_call>' }}
    {%- endif %}
    {{- close }}
{%- endif %}
{%- for m in messages %}
    {%- if m.role == 'tool' %}
        {%- if loop.previtem is undefined or loop.previtem.role != 'tool' %}
            {{- open('user') }}
        {%- endif %}
        {{- '<result>\n' + m.content + '\n</result>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- close }}
        {%- else %}
            {{- '\n' }}
        {%- endif %}
    {%- elif m.role == 'assistant' %}
        {%- set said = m.content if m.content is string else '' %}
        {%- set thought = m.reasoning_content if m.reasoning_content is string else '' %}
        {%- if not thought and '</think>' in said %}
            {%- set thought = said.split('</think>')[0].split('<think>')[-1] %}
        {%- endif %}
        {%- set said = said.split('</think>')[-1].lstrip('\n') %}
        {{- open('assistant') }}
        {%- if loop.index0 > state.question and (thought or loop.last) %}
            {{- '<think>\n' + thought.strip('\n') + '\n</think>\n\n' }}
        {%- endif %}
        {{- said }}
        {%- for call in m.tool_calls or [] %}
            {%- set call = call.function if call.function else call %}
            {%- set state.calls = state.calls + 1 %}
            {{- '\n' if said or not loop.first else '' }}
            {{- '<tool_call>\n{"name": "' ~ call.name ~ '", "arguments": ' }}
            {{- call.arguments if call.arguments is string else call.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- close }}
    {%- elif m.role == 'user' or not loop.first %}
        {{- open(m.role) + m.content + close }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- open('assistant') }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- elif reasoning_effort is defined and reasoning_effort == 'high' %}
        {{- '<think>\n' }}
    {%- endif %}
{%- endif %}
"""

# Headers, tools printed with an indent before the first question, one call at a time, documents, filters.
HEADERS = r"""{%- if not (start is defined and start is false) %}{{ bos_token }}{% endif %}
{%- set date = date if date is defined else ('since ' ~ strftime_now('%Y')[:2] ~ '00' if strftime_now is defined else 'some day') %}
{%- set tools_first = tools_first if tools_first is defined else true %}
{%- if custom_tools is defined %}{% set tools = custom_tools %}{% endif %}
{%- set rules = '' %}
{%- if messages[0]['role'] == 'system' %}
    {%- set rules = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- endif %}

{#- The rules have a header of their own. #}
[system]
{{ 'Today: ' + date + '\n' }}
{%- if builtin is defined %}
    {{- 'Built in: ' + builtin | reject('equalto', 'shell') | join(', ') + '\n' }}
{%- elif tools is not none %}
    {{- 'Tools are on.\n' }}
{%- endif %}
{%- if documents is none %}
    {{- 'No documents.\n' }}
{%- else %}
    {%- for document in documents %}
        {{- loop.index ~ ') ' ~ document['title'] | default('untitled') ~ ': ' ~ document.text | trim ~ '\n' }}
    {%- endfor %}
{%- endif %}
{%- set listing %}
    {%- for t in tools or [] %}
        {{- t | tojson(indent=4) ~ '\n\n' }}
    {%- endfor %}
{%- endset %}
{{- listing if not tools_first else '' }}
{{- rules ~ '[end]' -}}
{% for m in messages %}
    {%- if loop.first and tools_first and listing %}
        {%- if m.role != 'user' %}
            {{- raise_exception("Tools need a user's message to stand before, not one of role " ~ m.role) }}
        {%- endif %}
        {{- '[user]\n\n' ~ listing ~ m.content | trim + '[end]' }}
        {%- continue %}
    {%- endif %}
    {%- if 'tool_calls' in m %}
        {%- if m.tool_calls | length > 1 %}
            {{- raise_exception('One call at a time, not ' ~ m.tool_calls | length) }}
        {%- endif %}
        {%- set call = m['tool_calls'][0].function %}
        {{- '[assistant]\n\n' }}
        {%- if builtin is defined and call.name in builtin %}
            {{- call.name ~ '(' }}
            {%- for name, value in call.arguments | items %}
                {{- name + '="' ~ value ~ '"' ~ (', ' if not loop.last else '') }}
            {%- endfor %}
            {{- ')[end]' }}
        {%- else %}
            {{- '{"name": "' + call.name + '", "parameters": ' + call.arguments | tojson + '}[end]' }}
        {%- endif %}
    {%- elif m.role in ['tool', 'ipython'] %}
        {{- '[ipython]\n\n' ~ (m.content | tojson if m.content is mapping or m.content is iterable else m.content) ~ '[end]' }}
    {%- else %}
        {{- '[' + m['role'] + ']\n\n' + m['content'] | trim + '[end]' }}
    {%- endif %}
{%- endfor %}
{{- '[assistant]\n\n' if add_generation_prompt }}"""

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
