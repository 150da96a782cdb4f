"""Each metric does what its name says, in every script; where it cannot apply it says nothing."""

import json
import math

import pytest

from pipeline.core.errors import MissingInput, ParamsError
from pipeline.core.params import EvaluateParams
from pipeline.evaluation import behaviour, overlap, structure, translation
from pipeline.evaluation.answer import Answer
from pipeline.evaluation.metrics import METRICS, choose, load_files, metric_columns, signatures
from pipeline.evaluation.units import units
from pipeline.report.rows import Row
from pipeline.report.rules import wrong_language

SIMILARITIES = {
    "exact": overlap.exact, "contains": overlap.contains, "token_f1": overlap.token_f1, "rouge_1": lambda a: overlap.rouge_n(a, 1),
    "rouge_2": lambda a: overlap.rouge_n(a, 2), "rouge_l": overlap.rouge_l, "edit": overlap.edit_similarity,
    "bleu": lambda a: translation.bleu(a) / 100, "chrf": lambda a: translation.chrf(a) / 100,
}  # fmt: skip


def answer(text, *references, **extra):
    return Answer(text, extra.pop("extracted", text), list(references), **extra)


@pytest.mark.parametrize("name", SIMILARITIES)
@pytest.mark.parametrize(
    "text",
    [
        "周末一起去爬山吧", "把GPU报告发给老王 2 份", "สวัสดีครับ วันนี้อากาศดี", "おはようございます。東京は雨です", "안녕하세요 반갑습니다",
        "Привет, как дела?", "مرحبا بالعالم", "好", "OK", "Paris", "42", "ไป", "…", "😀", "The the", "café au lait", "नमस्ते दुनिया",
    ],
)  # fmt: skip
def test_identical_is_full_marks_in_every_script(name, text):
    assert SIMILARITIES[name](answer(text, text)) == pytest.approx(1)


@pytest.mark.parametrize("name", SIMILARITIES)
def test_full_and_half_width_are_the_same_where_width_is_folded(name):
    ours = answer("价格：１００元（含税）", "价格:100元(含税)")
    if name in ("bleu", "chrf"):  # sacrebleu folds nothing, and its numbers are ours
        assert 0 < SIMILARITIES[name](ours) < 1
    else:
        assert SIMILARITIES[name](ours) == pytest.approx(1)


@pytest.mark.parametrize("name", ["token_f1", "rouge_1", "rouge_l", "edit"])
@pytest.mark.parametrize(("text", "near"), [("周末一起去爬山吧", "周末一起去爬山吗"), ("สวัสดีครับ", "สวัสดีค่ะ")])
def test_one_changed_character_is_near_one(name, text, near):
    assert 0.6 <= SIMILARITIES[name](answer(near, text)) < 1


def test_one_changed_character_keeps_most_of_the_bleu_and_chrf():
    ours = answer("周末一起去爬山吗", "周末一起去爬山吧")
    assert translation.bleu(ours) > 80 and translation.chrf(ours) > 70


@pytest.mark.parametrize("name", SIMILARITIES)
def test_an_empty_answer_is_zero_and_the_best_reference_counts(name):
    assert SIMILARITIES[name](answer("", "我在家里看书")) == 0
    assert SIMILARITIES[name](answer("blue sky", "red earth", "blue sky")) == pytest.approx(1)


@pytest.mark.parametrize(
    ("text", "reference", "same"),
    [
        ("The Eiffel Tower!", "eiffel tower", True), ("3.5", "35", False), ("-5", "5", False), ("1,000", "1000", True), ("$12", "12", True),
        ("the", "a", False), ("?", "!", False), ("你好，世界", "你好世界。", True), ("GPU 报告", "gpu报告", True), ("你好", "您好", False),
    ],
)  # fmt: skip
def test_exact(text, reference, same):
    assert overlap.exact(answer(text, reference)) == float(same)
    assert (overlap.token_f1(answer(text, reference)) == 1) is same


@pytest.mark.parametrize(
    ("text", "reference", "inside"),
    [
        ("I think it is 15.", "5", False),
        ("It is 5.", "5", True),
        ("首都是北京。", "北京", True),
        ("catalogue", "cat", False),
        ("a+b", "+", True),
    ],
)
def test_contains_respects_word_ends(text, reference, inside):
    assert overlap.contains(answer(text, reference)) == float(inside)


def test_units_of_mixed_text():
    assert units("把GPU报告发给老王 2 份") == ["把", "gpu", "报", "告", "发", "给", "老", "王", "2", "份"]
    assert units("Don't stop!") == ["don", "t", "stop"]


@pytest.mark.parametrize(
    ("text", "reference", "value"),
    [
        ("The total is $1,250.00.", "1250", 1), ("答案是三百零五", "305", 1), ("maybe 7", "8", 0), ("no number", "8", 0),
        ("so 18", "She has 9 * 2 = 18 left.\n#### 18", 1), ("x", "no number here", None), ("-3", "−3", 1), ("0.3333333", "1/3", 1),
    ],
)  # fmt: skip
def test_numeric(text, reference, value):
    assert structure.numeric(answer(text, reference)) == value


def test_numeric_by_itself_looks_only_at_rows_whose_reference_is_a_bare_number():
    assert structure.numeric(answer("12", "The 12 apostles of 1890"), bare=True) is None
    assert structure.numeric(answer("12", "12 km"), bare=True) == 1
    assert structure.numeric(answer("100.4", "100"), tolerance=0.01) == 1


@pytest.mark.parametrize(
    ("text", "references", "options", "value"),
    [
        ("The answer is B.", ["B"], {}, 1), ("故选D", ["C"], {}, 0), ("AC", ["AC"], {}, 1), ("A and C", ["A", "C"], {"all": True}, 1),
        ("A", ["A", "C"], {"all": True}, 0), ("A", ["a long text"], {"bare": True}, None), ("none of it", ["B"], {"bare": True}, 0),
    ],
)  # fmt: skip
def test_choice(text, references, options, value):
    assert structure.choice(answer(text, *references), **options) == value


def test_repetition_and_loops():
    looping = answer("Well then. " + "I do not know. " * 20)
    assert behaviour.repetition(looping) > 0.9
    assert behaviour.loop_share(looping) > 0.9
    assert 0 < behaviour.loop_start(looping) < 0.1
    fine = answer("The quick brown fox jumps over the lazy dog while seven wizards watch from a distant hill.")
    assert behaviour.repetition(fine) == 0 and behaviour.loop_share(fine) == 0 and behaviour.loop_start(fine) is None
    assert behaviour.loop_share(answer("好的好的" * 30)) == 1
    assert behaviour.loop_share(answer("!" * 50)) == 1  # what half precision does when it overflows
    assert behaviour.repetition(answer("")) is None


def test_the_longest_loop_is_found_where_it_is():
    tokens = ["a", "b", "c", *["x", "y", "z"] * 5, "d"]
    assert behaviour.longest_loop(tokens) == (3, 15)
    assert behaviour.longest_loop(list("abcabc")) == (0, 0)
    assert behaviour.longest_loop([]) == (0, 0)


def test_distinct_empty_truncated_perplexity():
    assert behaviour.distinct_n(answer("a b a b"), 2) == pytest.approx(2 / 3)
    assert behaviour.distinct_n(answer("one"), 2) is None
    assert behaviour.empty(answer(" \n")) == 1 and behaviour.empty(answer("x")) == 0
    assert behaviour.truncated(answer("x", finish_reason="length")) == 1
    assert behaviour.perplexity(answer("x", logprob_mean=-1.0)) == pytest.approx(math.e)
    assert behaviour.perplexity(answer("x", logprob_mean=-1e9)) == 1e6
    assert behaviour.perplexity(answer("x")) is None


def test_copied_prompt_and_language_match():
    prompt = "Please summarise the following report about the harvest of apples in the northern valleys this year."
    assert behaviour.copied_prompt(answer(prompt, prompt=prompt)) == 1
    assert behaviour.copied_prompt(answer("Apples did well in the north.", prompt=prompt)) == 0
    assert behaviour.copied_prompt(answer("")) is None
    english = "The weather will be sunny and warm tomorrow."
    assert behaviour.language_match(answer(english, language="zh")) == 0
    assert behaviour.language_match(answer(english, language="en")) == 1
    assert behaviour.language_match(answer(english, "Morgen wird das Wetter sonnig und warm sein.", language="en")) == 0
    assert behaviour.language_match(answer("12", language="en")) is None


GERMAN = "Morgen wird das Wetter sonnig und warm sein."


@pytest.mark.parametrize(
    ("fields", "prompt", "good"),
    [
        ({"instruction_id_list": ["punctuation:no_comma", "language:response_language"], "kwargs": [{}, {"language": "de"}]}, "", 1),
        ({"instruction_id_list": ["language:response_language"], "kwargs": [{"language": "ta", "nth": None}]}, "", 0),
        ({"instruction_id_list": ["language:response_language"], "kwargs": [{}]}, "", 0),
        ({"target_lang": "de-AT"}, "", 1), ({"answer_language": "German"}, "", 1), ({"response_language": "德语"}, "", 1),
        ({"target_language": "French"}, "Now in German", 0), ({"target_lang": 7}, "", 0), ({"target_lang": "easy"}, "", 0),
        ({}, "Translate into German: It will be sunny.", 1), ({}, "Write it using only the German language.", 1),
        ({}, "把这句话翻译成德语：明天是晴天", 1), ({}, "Give me the German translation of it.", 1),
        ({}, "Where do German shepherds come from?", 0), ({}, "把这句话翻译成法语", 0),
    ],
)  # fmt: skip
def test_the_language_wanted_is_the_rows_word_before_that_of_the_prompt(fields, prompt, good):
    assert behaviour.language_match(answer(GERMAN, prompt=prompt, fields=fields, language="en")) == good


def test_the_report_names_the_language_that_was_wanted():
    told = {"instruction_id_list": ["language:response_language"], "kwargs": [{"language": "kn"}]}
    row = Row(0, text="Are hamburgers sandwiches?", answer="Yes, they are.", language="en", meta=told, scores={"language_match": 0.0})
    assert wrong_language(row).values["wanted"] == "kn"


def test_json_metrics_apply_only_where_json_is_expected():
    good = '{"city": "Lisbon", "temperature": 18}'
    assert structure.json_valid(answer("plain words")) is None
    assert structure.json_valid(answer(good, good)) == 1
    assert structure.json_valid(answer(f"```json\n{good}\n```", good)) == 1
    assert structure.json_is(answer(f"```json\n{good}\n```", good), "strict") == 0
    assert structure.json_valid(answer("plain", wants_json=True)) == 0
    assert structure.json_fields(answer('{"city": "Lisbon", "temperature": 20}', good)) == 0.5
    assert structure.json_fields(answer("{}", good)) == 0


def test_json_schema_from_params_row_or_nowhere():
    schema = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}
    assert structure.json_schema(answer('{"a": 1}'), schema=schema) == 1
    assert structure.json_schema(answer('{"a": "1"}', fields={"json_schema": schema})) == 0
    assert structure.json_schema(answer("not json", overrides={"json_schema": schema})) == 0
    assert structure.json_schema(answer('{"a": 1}')) is None
    with pytest.raises(ParamsError, match="schema"):
        structure.json_schema(answer('{"a": 1}'), schema={"type": "nonsense"})


def test_length_ratio_and_regex_match():
    assert overlap.length_ratio(answer("abcd", "ab", "abcdefgh")) == 2
    assert structure.regex_match(answer("2024-05-01"), pattern=r"^\d{4}-\d\d-\d\d$") == 1
    assert structure.regex_match(answer("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"), pattern=r"^(a+)+$") == 0


def test_every_metric_gives_a_finite_number_or_nothing_on_awkward_answers(tmp_path):
    chosen = load_files(choose(EvaluateParams()), EvaluateParams(), tmp_path)
    texts = ["", " ", "\u200b", "NaN", "{", "[" * 3000, "\ud7ff", "…", "<think>", "0" * 400, "1e999999", "a" * 5000, "零" * 400, "\x00"]
    for text in texts:
        for references in ([], ["x"], [text] if text.strip() else [], ["{}"], ["A"], ["7"]):
            for metric in chosen:
                value = metric.value(Answer(text, text, references, prompt=text))
                assert value is None or math.isfinite(value), (metric.name, text[:10])
                assert references or not metric.metric.needs_reference or value is None


def test_metrics_that_need_no_option_work_without_files():
    found = {name: metric.score(answer("I cannot help with that, idiot.", "fine")) for name, metric in METRICS.items() if metric.auto}
    assert found["refusal"] == 1 and found["sensitive"] == 1


def test_every_metric_has_a_signature_and_a_side():
    told = signatures(choose(EvaluateParams()))
    assert set(told) == {name for name, metric in METRICS.items() if metric.auto}
    assert all(signature.startswith(f"{name}|") and "{" not in signature for name, signature in told.items())
    assert all(metric.better in (-1, 0, 1) for metric in METRICS.values())
    assert "version:" in told["bleu"] and "rouge-score" in told["rouge_l"]


def test_files_of_the_user_must_lie_under_assets(tmp_path):
    with pytest.raises(MissingInput, match="sensitive_words"):
        load_files(choose(EvaluateParams()), EvaluateParams(sensitive_words="none.txt"), tmp_path)
    with pytest.raises(ParamsError, match="outside"):
        load_files(choose(EvaluateParams()), EvaluateParams(refusals="../x.txt"), tmp_path)
    (tmp_path / "schema.json").write_text(json.dumps({"type": "object"}))
    params = EvaluateParams(metrics=({"json_schema": {"schema": "schema.json"}},))
    (metric,) = load_files(choose(params), params, tmp_path)
    assert metric.value(answer("{}")) == 1
    (tmp_path / "schema.json").write_text("{")
    with pytest.raises(ParamsError, match="not JSON"):
        load_files(choose(params), params, tmp_path)


def test_results_columns_never_repeat_a_column_of_the_results_table():
    assert not {"logprob_mean", "logprob_min", "extracted"} & set(metric_columns(EvaluateParams()))
