"""Each case gets one cause, by the first sign that stands: errors, the input, the prompt, the answer."""

import numpy as np
import pytest

from pipeline.report.causes import InputNorms, cause_of, looks_cut, norms
from pipeline.report.markdown import inert
from pipeline.report.rows import Row
from pipeline.report.rules import FAIL_AT, RULES, resolve

ASK = "Tell me about the old harbour at low tide, please."
BAD = {"scores": {"exact": 0.0}, "answer": "No.", "references": ["Yes"]}
CASES = [
    ("system", "error", {"finish_reason": "error", "error": "timeout: 30 s"}),
    ("system", "over_limit", {"rejected": "prompt_too_long", "stage": "bucket"}),
    ("data", "bad_input", {"rejected": "no_text", "stage": "validate"}),
    ("data", "conflicting_reference", {**BAD, "ordinal": 7}),
    ("data", "mojibake", {**BAD, "text": "The cafÃ© at the harbour â€œfineâ€\x9d"}),
    ("data", "lost_characters", {**BAD, "text": "The caf\ufffd at the harbour"}),
    ("data", "markup", {**BAD, "text": "The <span class=x>harbour</span> at low tide"}),
    ("data", "cut", {**BAD, "text": "Tell me all that you know about the harbour at low tide, the bridge and the"}),
    ("data", "odd_length", {**BAD, "text": "harbour " * 200}),
    ("prompt", "prompt_cut", {**BAD, "truncated_tokens": 12}),
    ("prompt", "missing_field", {**BAD, "prompt": "Question: None\nAnswer:"}),
    ("prompt", "format_not_asked", {"scores": {"json_valid": 0.0}, "answer": "No."}),
    ("prompt", "format_not_shown", {"scores": {"json_valid": 0.0}, "answer": "No.", "prompt": "Answer in JSON."}),
    ("model", "wrong_answer", {"scores": {"json_valid": 0.0}, "answer": "No.", "prompt": 'Answer in JSON like {"a": 1}.'}),
    ("model", "loop", {"scores": {"loop_share": 0.9}, "answer": "so " * 40, "finish_reason": "length"}),
    ("system", "answer_limit", {"answer": "It is", "finish_reason": "length"}),
    ("model", "wrong_language", {"scores": {"language_match": 0.0}, "answer": "Oui."}),
    ("model", "refusal", {"scores": {"refusal": 1.0}, "answer": "I cannot."}),
    ("model", "echo", {"scores": {"copied_prompt": 0.95}, "answer": ASK}),
    ("model", "silence", {"answer": " "}),
    ("model", "unsure", {"answer": "It is far", "token_logprobs": np.array([-3.0] * 8)}),
    ("model", "wrong_answer", BAD),
]


@pytest.mark.parametrize(("kind", "reason", "given"), CASES, ids=[f"{kind}-{reason}" for kind, reason, _ in CASES])
def test_cause_and_reason(kind, reason, given):
    row = Row(**{"ordinal": 0, "text": ASK, "prompt": ASK, "language": "en", "answer": "Fine.", **given})
    findings = [found for rule in resolve("auto").values() if (found := rule(row))]
    assert findings
    found = cause_of(row, findings, InputNorms({"en": (4.0, 0.2)}, frozenset({7})))
    assert (found.kind, found.reason) == (kind, reason)


@pytest.mark.parametrize(
    "text",
    ["Translate:", "What is 2 + 2?", "请翻译", "Use `<div>` in a sentence about tags, and close it with `</div>` when you are done.",
     "```html\n<div>hello</div>\n```\nWhat does this page show to a person who opens it today?",
     "List three colours that go well with green; one a line",
     "What does this program write to the screen when it is run?\nconst name = 'Alice';\nconsole.log(name + '!');",
     "下列哪一项最能说明两者之间的关系，请从四个选项中选出最合适的一个，并且简单说明你选择它的理由：甲说他们早已和好；乙说，这两种主张之间的矛盾不可调和",
     "下列哪一项最能说明这次活动成功的原因，请从四个选项中选出最合适的一个，并且简单说明你选择它的理由：甲说是资金有保障；乙说，这得益于各阶层的广泛参与",
     "请从四个选项中选出最合适的一个，并且简单说明你选择它的理由：甲说人的需要不仅是生理的，乙说除此之外还是文化的、精神的，丙说这两种看法都是对的",
     "Sum up the notes of the meeting in one sentence for those who were not there.\n---\nWe met at nine and agreed to go on.\n---"],
)  # fmt: skip
def test_honest_questions_are_no_damaged_data(text):
    row = Row(0, text=text, prompt=text, language="en", **BAD)
    assert cause_of(row, [RULES["low_score"](row)], InputNorms()).kind == "model"
    assert not looks_cut(text)


@pytest.mark.parametrize(
    "text",
    ["The committee met on Tuesday and agreed on the budget for the coming year, on the new roof and",
     "The committee met on Tuesday and agreed on the budget for the coming year, on the new roof,",
     "委员会在周二开会，" * 8 + "同意了预算和", "委员会在周二开会，" * 8 + "没有同意预算，因为"],
)  # fmt: skip
def test_a_text_that_ends_in_an_open_clause_looks_cut(text):
    assert looks_cut(text)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, "odd_length"),
        ({"finish_reason": "length"}, "answer_limit"),
        ({"scores": {"exact": 0.0, "language_match": 0.0}}, "wrong_language"),
    ],
)
def test_an_odd_length_explains_only_what_nothing_else_does(given, reason):
    row = Row(0, **{"text": ASK * 40, "prompt": ASK * 40, "language": "en", **BAD, **given})
    findings = [found for rule in resolve("auto").values() if (found := rule(row))]
    assert cause_of(row, findings, InputNorms({"en": (4.0, 0.2)})).reason == reason


def test_what_is_usual_is_learned_per_language():
    rows = [(n, "zh" if n % 2 else "en", "港口" * (10 + n % 3) if n % 2 else "harbour " * (20 + n % 5), ()) for n in range(100)]
    usual = norms([*rows, (100, "en", "x", ("a",)), (101, "en", " x ", ("b",)), (102, "en", "x", ("a",))])
    assert usual.odd("en", 10_000) and not usual.odd("en", 170) and not usual.odd("zh", 24) and not usual.odd("fr", 9)
    assert usual.conflicting == {100, 101}


def test_an_answer_far_from_its_reference_in_length_is_a_warning():
    rule = RULES["length_mismatch"]
    assert rule(Row(0, answer="word " * 400, references=["a short reference of a few words"])).severity < 0.5
    assert rule(Row(0, answer="x", references=["a reference of more than twenty characters"]))
    assert rule(Row(0, answer="word " * 60, references=["seven"])) is None
    assert rule(Row(0, answer="four", references=["seven", "five and a good deal more than that"])) is None


def test_a_deciding_metric_speaks_alone_and_else_the_kindest():
    rule = RULES["low_score"]
    assert rule(Row(0, scores={"numeric": 0.0, "chrf": 90.0})).values["metric"] == "numeric"
    assert rule(Row(0, scores={"exact": 0.0, "contains": 1.0, "chrf": 3.0})) is None
    assert rule(Row(0, scores={"exact": 0.0, "chrf": 10.0, "rouge_l": 0.2})).values["metric"] == "rouge_l"
    assert rule(Row(0, scores={"repetition": 0.9})) is None


def test_copying_what_the_reference_asks_for_is_no_fault():
    assert RULES["copied_prompt"](Row(0, scores={"copied_prompt": 1.0, "exact": 1.0})) is None
    assert RULES["copied_prompt"](Row(0, scores={"copied_prompt": 1.0, "exact": 0.0})).severity >= FAIL_AT
    assert RULES["copied_prompt"](Row(0, scores={"copied_prompt": 1.0, "contains": 0.0, "rouge_l": 0.45})).severity < FAIL_AT


def test_the_unsure_span_is_where_the_dip_is():
    values = np.full(40, -0.1, np.float32)
    values[20:26] = -4.0
    found = RULES["unsure"](Row(0, answer="x", token_logprobs=values))
    assert found.span == (20, 26) and found.severity < 0.5
    assert RULES["unsure"](Row(0, answer="x", token_logprobs=np.full(40, -0.3))) is None
    assert RULES["unsure"](Row(0, answer="x", token_logprobs=np.array([-np.inf, -0.1]))).severity <= 0.45
    assert RULES["unsure"](Row(0, answer="", token_logprobs=np.array([]))) is None


def test_text_in_a_mail_is_inert():
    shown = inert("[click](https://x.y) <b>@all</b> `code` #1 | a\n\n# head\u202e www.x.y")
    assert "\n" not in shown and "](" not in shown and "<b>" not in shown and "://" not in shown and "\u202e" not in shown
