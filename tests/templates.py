"""Chat templates in the forms that well-known models have, each with its special tokens: written for the tests, in the syntax of those formats."""
from __future__ import annotations

from dataclasses import dataclass, field

CHATML = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}
{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
# The system message moves into the first message of the user; roles must alternate.
LLAMA_2 = """{% if messages[0]['role'] == 'system' %}{% set others = messages[1:] %}{% set system = messages[0]['content'] %}
{%- else %}{% set others = messages %}{% set system = false %}{% endif %}
{%- for message in others %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{%- if loop.index0 == 0 and system != false %}{% set content = '<<SYS>>\n' + system + '\n<</SYS>>\n\n' + message['content'] %}
{%- else %}{% set content = message['content'] %}{% endif %}
{%- if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
{%- else %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""
LLAMA_3 = """{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim
 + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"""
# There is always a system message, and it has a date.
LLAMA_3_1 = """{{- bos_token }}{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{%- set date_string = strftime_now("%d %b %Y") %}{%- else %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}{%- set system_message = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system_message = "" %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\nToday: " + date_string + "\n\n" + system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}{{- raise_exception('no tools') }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"""
MISTRAL = """{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('roles must alternate') }}{% endif %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}
{%- else %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}"""
# The system message moves into the last message of the user.
MISTRAL_LAST = """{%- if messages[0]["role"] == "system" %}{%- set system = messages[0]["content"] %}{%- set others = messages[1:] %}
{%- else %}{%- set others = messages %}{%- endif %}
{%- set users = others | selectattr("role", "equalto", "user") | list %}{%- set ns = namespace(turn=0) %}
{%- for message in others %}{%- if (message["role"] == "user") != (ns.turn % 2 == 0) %}
{{- raise_exception("user and assistant must alternate") }}{%- endif %}{%- set ns.turn = ns.turn + 1 %}{%- endfor %}
{{- bos_token }}
{%- for message in others %}
    {%- if message["role"] == "user" %}
        {%- if message == users[-1] and system is defined %}{{- "[INST] " + system + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}{{- "[INST] " + message["content"] + "[/INST]" }}{%- endif %}
    {%- else %}{{- " " + message["content"] | trim + eos_token }}{%- endif %}
{%- endfor %}"""
GEMMA = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{- '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""
# As before, with the system message in front of the first message of the user, and contents that may be lists.
GEMMA_3 = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}{%- set prefix = messages[0]['content'] + '\n\n' -%}
    {%- else -%}{%- set prefix = messages[0]['content'][0]['text'] + '\n\n' -%}{%- endif -%}
    {%- set others = messages[1:] -%}
{%- else -%}{%- set prefix = "" -%}{%- set others = messages -%}{%- endif -%}
{%- for message in others -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception("roles must alternate") }}{%- endif -%}
    {{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\n' + (prefix if loop.first else "") }}
    {%- if message['content'] is string -%}{{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}{%- for item in message['content'] -%}{{ item['text'] | trim }}{%- endfor -%}{%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}"""
QWEN_2 = """{%- if messages[0]['role'] == 'system' %}{{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
{%- else %}{{- '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.index0 == 0 or messages[loop.index0 - 1].role != "tool" %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != "tool" %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""
# The last answer has an empty thought before it.
QWEN_3 = """{%- if messages[0].role == 'system' %}{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}{%- endif %}
{%- set ns = namespace(searching=true, last=messages | length - 1) %}
{%- for message in messages[::-1] %}
    {%- if ns.searching and message.role == "user" and message.content is string
           and not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.searching = false %}{%- set ns.last = (messages | length - 1) - loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is string %}{%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or thought) %}
            {{- '<|im_start|>' + message.role + '\n<think>\n' + thought.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}{{- '<|im_start|>' + message.role + '\n' + content }}{%- endif %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""
ZEPHYR = """{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] + eos_token }}\n
{%- elif message['role'] == 'system' %}\n{{ '<|system|>\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}
{% endfor %}"""
# The end of an answer is not the end of the text.
PHI_3 = """{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}
{{- '<|system|>\n' + message['content'] + '<|end|>\n' }}{% elif message['role'] == 'user' %}{{ '<|user|>\n' + message['content'] + '<|end|>\n' }}
{%- elif message['role'] == 'assistant' %}{{ '<|assistant|>\n' + message['content'] + '<|end|>\n' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"""
# The first of these models wrote no system message.
PHI_3_FIRST = """{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') %}
{{- '<|user|>' + '\n' + message['content'] + '<|end|>' + '\n' + '<|assistant|>' + '\n' }}
{%- elif (message['role'] == 'assistant') %}{{ message['content'] + '<|end|>' + '\n' }}{% endif %}{% endfor %}"""
# All system messages come first, without a mark.
DEEPSEEK = """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% set ns = namespace(system='') %}
{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system = ns.system + message['content'] %}{%- endif %}{%- endfor %}
{{- bos_token }}{{ ns.system }}
{%- for message in messages %}
    {%- if message['role'] == 'user' %}{{ '<｜User｜>' + message['content'] }}{%- endif %}
    {%- if message['role'] == 'assistant' and message['content'] is not none %}
        {%- set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}
        {{- '<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}"""
# Roles are words.
DEEPSEEK_2 = """{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ 'User: ' + message['content'] + '\n\n' }}
{%- elif message['role'] == 'assistant' %}{{ 'Assistant: ' + message['content'] + eos_token }}
{%- elif message['role'] == 'system' %}{{ message['content'] + '\n\n' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"""
# Every message ends in the end token.
COMMAND_R = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set others = messages[1:] %}{% set system = messages[0]['content'] %}
{%- elif false == true %}{% set others = messages %}{% set system = 'You help.' %}{% else %}{% set others = messages %}{% set system = false %}{% endif %}
{%- if system != false %}{{ '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>' + system + '<|END_OF_TURN_TOKEN|>' }}{% endif %}
{%- for message in others %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{%- set content = message['content'] %}
{%- if message['role'] == 'user' %}{{ '<|START_OF_TURN_TOKEN|><|USER_TOKEN|>' + content.strip() + '<|END_OF_TURN_TOKEN|>' }}
{%- elif message['role'] == 'assistant' %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>'  + content.strip() + '<|END_OF_TURN_TOKEN|>' }}{% endif %}
{%- endfor %}"""
# The marks of roles are plain text, and one token is both the beginning and the end.
TULU = """{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}{{ '<|system|>\n' + message['content'] + '\n' }}
{%- elif message['role'] == 'user' %}{{ '<|user|>\n' + message['content'] + '\n' }}
{%- elif message['role'] == 'assistant' %}{% if not loop.last %}{{ '<|assistant|>\n' + message['content'] + eos_token + '\n' }}
{%- else %}{{ '<|assistant|>\n' + message['content'] + eos_token }}{% endif %}{% endif %}
{%- if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}{% endfor %}"""
VICUNA = """{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] + ' ' }}{% set others = messages[1:] %}
{%- else %}{{ 'A chat between a user and an assistant. ' }}{% set others = messages %}{% endif %}
{%- for message in others %}{% if message['role'] == 'user' %}{{ 'USER: ' + message['content'] + ' ' }}
{%- elif message['role'] == 'assistant' %}{{ 'ASSISTANT: ' + message['content'] + eos_token }}{% endif %}{% endfor %}"""
# Only the last answer ends in the end token.
HARMONY = """{% for message in messages %}{% if message.role == 'assistant' %}
{{- '<|start|>assistant<|channel|>final<|message|>' + message.content + ('<|return|>' if loop.last else '<|end|>') }}
{%- else %}{{ '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' }}{% endif %}{% endfor %}"""
# No answer has an end: the mark of the next role is it.
GLM = """[gMASK]<sop>{% for message in messages %}{% if message['role'] == 'system' %}{{ '<|system|>\n' + message['content'] }}
{%- elif message['role'] == 'user' %}{{ '<|user|>\n' + message['content'] }}
{%- elif message['role'] == 'assistant' %}{{ '<|assistant|>\n' + message['content'] }}{% endif %}{% endfor %}"""


@dataclass(frozen=True)
class Format:
    """A template and its special tokens; what is learned after an answer, and after the last (the same where None); whether it takes a system message,
    and one in the middle.
    """

    template: str
    begin: str | None
    end: str
    others: list[str] = field(default_factory=list)
    mark: str = ""
    last: str | None = None
    system: bool = True
    late_system: bool = False

    @property
    def last_text(self) -> str:
        """What is learned after the last answer, less the end token that is added to every sample."""
        return (self.mark if self.last is None else self.last).removesuffix(self.end)


FORMATS = {
    "chatml": Format(CHATML, None, "<|im_end|>", ["<|im_start|>"], "<|im_end|>", late_system=True),
    "llama-2": Format(LLAMA_2, "<s>", "</s>", [], " </s>"),
    "llama-3": Format(LLAMA_3, "<|begin_of_text|>", "<|eot_id|>", ["<|start_header_id|>", "<|end_header_id|>"], "<|eot_id|>", late_system=True),
    "llama-3.1": Format(LLAMA_3_1, "<|begin_of_text|>", "<|eot_id|>", ["<|start_header_id|>", "<|end_header_id|>"], "<|eot_id|>", late_system=True),
    "mistral": Format(MISTRAL, "<s>", "</s>", ["[INST]", "[/INST]"], "</s>", system=False),
    "mistral-last": Format(MISTRAL_LAST, "<s>", "</s>", ["[INST]", "[/INST]"], "</s>"),
    "gemma": Format(GEMMA, "<bos>", "<end_of_turn>", ["<start_of_turn>"], "<end_of_turn>", system=False),
    "gemma-3": Format(GEMMA_3, "<bos>", "<end_of_turn>", ["<start_of_turn>"], "<end_of_turn>"),
    "qwen-2": Format(QWEN_2, None, "<|im_end|>", ["<|im_start|>", "<|endoftext|>"], "<|im_end|>", late_system=True),
    "qwen-3": Format(QWEN_3, None, "<|im_end|>", ["<|im_start|>", "<think>", "</think>"], "<|im_end|>", late_system=True),
    "zephyr": Format(ZEPHYR, "<s>", "</s>", [], "</s>", late_system=True),
    "phi-3": Format(PHI_3, "<s>", "<|endoftext|>", ["<|user|>", "<|assistant|>", "<|system|>", "<|end|>"], "<|end|>", "<|end|>\n<|endoftext|>",
                    late_system=True),
    "phi-3-first": Format(PHI_3_FIRST, "<s>", "<|end|>", ["<|user|>", "<|assistant|>", "<|endoftext|>"], "<|end|>", system=False),
    "deepseek": Format(DEEPSEEK, "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", ["<｜User｜>", "<｜Assistant｜>"],
                       "<｜end▁of▁sentence｜>", late_system=True),
    "deepseek-2": Format(DEEPSEEK_2, "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", [], "<｜end▁of▁sentence｜>", late_system=True),
    "command-r": Format(COMMAND_R, "<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>",
                        ["<|START_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>"], "<|END_OF_TURN_TOKEN|>"),
    "tulu": Format(TULU, "<|endoftext|>", "<|endoftext|>", [], "<|endoftext|>", late_system=True),
    "vicuna": Format(VICUNA, "<s>", "</s>", [], "</s>"),
    "harmony": Format(HARMONY, "<|startoftext|>", "<|return|>", ["<|start|>", "<|channel|>", "<|message|>", "<|end|>"], "<|end|>", "<|return|>",
                      late_system=True),
    "glm": Format(GLM, None, "<|endoftext|>", ["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>"], "", "<|endoftext|>", late_system=True),
}
