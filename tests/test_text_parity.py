"""Ids and templates are those of transformers, for texts that spell no control token."""

import pytest
from checkpoints import CHAT_TEMPLATE
from test_text_tokenizer import byte_fallback, byte_level, unigram

from pipeline.core.params import PromptParams
from pipeline.text.chat_template import ChatTemplate
from pipeline.text.prompt import PromptBuilder, PromptRow
from pipeline.text.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")

TEXTS = [
    "the river runs", "  two  blanks ", "山下的河水很清", "👩‍🚀 café e\u0301 龘", "a\n\n\tb\r\n", "p != q , r . don 't",
    "<b>x</b> [INST] < | >", "\ufffd\u200d\u00a0",
]  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "f", "description": "说<明>"}}]
TEMPLATES = [
    CHAT_TEMPLATE,
    "{{ bos_token }}{%- for m in messages %}\n    {%- if m.role == 'user' %}\n[INST] {{ m.content }} [/INST]\n    {%- else %}\n "
    "{%- generation %}{{ m.content + eos_token }}{% endgeneration %}\n    {%- endif %}\n{%- endfor %}",
    "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{{ m | tojson }}{{ m.content | trim | upper }}{% endfor %}"
    "{{ tools | tojson(indent=2) }}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + m.content | length %}{% endfor %}"
    "{{ ns.n }}{{ missing }}|{{ flag is defined and flag }}|{{ pad_token is defined }}",
    "  {% if true %}\n  kept\n  {% endif %}\n{{ messages[-1]['content'] }}\n",
]


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("text", TEXTS)
def test_templates_render_as_in_transformers(template, text):
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = [
        {"role": "user", "content": text},
        {"role": "assistant", "content": "ok", "extra": None},
        {"role": "user", "content": text[::-1]},
    ]
    tokens = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    given = [{key: value for key, value in m.items() if value is not None} for m in messages]
    (wanted,), _ = render_jinja_template([given], tools=TOOLS, chat_template=template, add_generation_prompt=True, flag=True, **tokens)
    assert ChatTemplate(template, tokens, kwargs={"flag": True, "tools": TOOLS}).render(messages) == wanted


@pytest.fixture(params=[byte_level, byte_fallback, unigram])
def pair(request, tmp_path):
    """Our tokenizer and transformers' own of the same file."""
    ours = request.param()
    (tmp_path / "tokenizer.json").write_text(ours.to_json())
    bos = {"bos_token": ours.named_tokens["bos_token"], "eos_token": list(ours.control_tokens)[2]}
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"), clean_up_tokenization_spaces=False, **bos
    )
    return Tokenizer(ours.to_json(), bos), theirs


def test_prompts_have_the_ids_of_transformers(pair):
    ours, theirs = pair
    theirs.chat_template = TEMPLATES[1]
    builder = PromptBuilder(PromptParams(), ours, ChatTemplate(TEMPLATES[1], ours.named_tokens), max_model_len=10_000)
    for text in TEXTS:
        messages = [{"role": "user", "content": text}, {"role": "assistant", "content": "ok"}, {"role": "user", "content": text}]
        wanted = theirs.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
        (got,) = builder.build([PromptRow("r", messages=messages)])
        assert got.token_ids == wanted
        assert ours.encode_batch([text]) == [theirs.encode(text, add_special_tokens=False)]
        assert ours.decode(got.token_ids, skip_special=False) == theirs.decode(wanted)
