"""Chat templates in the styles that model families use, written for tests."""

CHATML = """{%- for message in messages -%}
{{ '<|im_start|>' ~ message.role ~ '\n' ~ message.content ~ '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

HEADERS = """{{- bos_token }}
{%- if tools %}
    {{- "<|start_header_id|>system<|end_header_id|>\n\nFunctions:\n" }}
    {%- for tool in tools %}
        {{- tool | tojson(indent=2) ~ "\n" }}
    {%- endfor %}
    {{- "<|eot_id|>" }}
{%- endif %}
{%- for message in messages %}
    {%- if message.tool_calls %}
        {%- for call in message.tool_calls %}
            {{- "<|start_header_id|>assistant<|end_header_id|>\n\n" }}
            {{- {"name": call.function.name, "parameters": call.function.arguments} | tojson }}
            {{- "<|eom_id|>" }}
        {%- endfor %}
    {%- elif message.role == "tool" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\n\n" }}
        {%- if message.content is mapping or message.content is iterable and message.content is not string %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>" + message.role + "<|end_header_id|>\n\n" + message.content | trim + "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- "<|start_header_id|>assistant<|end_header_id|>\n\n" }}
{%- endif %}"""

TURNS = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif %}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{- '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""

INSTRUCTIONS = """{%- if messages[0].role == "system" %}
    {%- set system = messages[0].content %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set rest = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in rest %}
    {%- if (message.role == "user") != (loop.index0 % 2 == 0) %}
        {{- raise_exception("After the optional system message, roles must alternate") }}
    {%- endif %}
    {%- if message.role == "user" %}
        {%- if loop.last and system is defined %}
            {{- "[INST] " + system + "\n\n" + message.content + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message.content + "[/INST]" }}
        {%- endif %}
    {%- else %}
        {{- " " + message.content + eos_token }}
    {%- endif %}
{%- endfor %}"""

THINKING = """{%- set ns = namespace(last=messages|length - 1, seen=false) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if not ns.seen and message.role == "user" and not message.content.startswith('<tool_response>') %}
        {%- set ns.seen = true %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and reasoning %}
            {{- '<|im_start|>assistant\n<think>\n' + reasoning + '\n</think>\n\n' + content + '<|im_end|>\n' }}
        {%- else %}
            {{- '<|im_start|>assistant\n' + content + '<|im_end|>\n' }}
        {%- endif %}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>user\n<tool_response>\n' + content + '\n</tool_response><|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}"""

OPENING = """{{ bos_token }}{% for message in messages %}
{%- if message['role'] == 'user' %}{{ '<|User|>' + message['content'] }}{% endif %}
{%- if message['role'] == 'system' %}{{ message['content'] }}{% endif %}
{%- if message['role'] == 'assistant' %}{% set content = message['content'] %}
{%- if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}
{{- '<|Assistant|>' + content + eos_token }}{% endif %}
{%- endfor %}{% if add_generation_prompt %}{{ '<|Assistant|><think>\n' }}{% endif %}"""

PARTS = """{% for message in messages %}{{ '<|im_start|>' + message.role + ':' }}
{%- for part in message.content %}{% if part.type == 'text' %} {{ part.text }}{% else %}<image>{% endif %}{% endfor %}
{{- '<|im_end|>' }}
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant:{% endif %}"""

MARKED = """{%- for message in messages %}
    {%- if message.role == 'assistant' %}
{% generation %}
{% set said = message.content | trim %}
{{ said }}<|im_end|>
{% endgeneration %}
    {%- else %}
{{ '<|im_start|>' ~ message.role ~ ' ' ~ message.content }}
    {%- endif %}
    {%- if loop.index > 3 %}{% break %}{% endif %}
{%- endfor %}"""

TEMPLATES = {
    "chatml": CHATML,
    "headers": HEADERS,
    "turns": TURNS,
    "instructions": INSTRUCTIONS,
    "thinking": THINKING,
    "opening": OPENING,
    "parts": PARTS,
    "marked": MARKED,
}
CONTROL_NAMES = {
    "chatml": ("<|im_start|>", "<|im_end|>"),
    "headers": ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>"),
    "turns": ("<start_of_turn>", "<end_of_turn>"),
    "instructions": ("[INST]", "[/INST]"),
    "thinking": ("<|im_start|>", "<|im_end|>"),
    "opening": ("<|User|>", "<|Assistant|>"),
    "parts": ("<|im_start|>", "<|im_end|>"),
    "marked": ("<|im_start|>", "<|im_end|>"),
}
NAMED = {"bos_token": "<s>", "eos_token": "</s>"}
