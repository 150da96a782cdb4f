"""Stage report from tables to table, page and mail."""

import re
from inspect import signature
from string import Formatter

import night_tree as nt
import pytest

from pipeline.core import schemas
from pipeline.core.errors import ParamsError
from pipeline.core.hashing import PACKAGE
from pipeline.core.manifest import read_table, write_json
from pipeline.core.params import Params
from pipeline.evaluation.baseline import as_json
from pipeline.report.page import words
from pipeline.report.rules import LENIENT, RULES
from pipeline.stages import report
from pipeline.text.tokenizer import Tokenizer

RULE_OF_KIND = {
    "empty": "empty", "loop": "looping", "cut": "truncated", "error": "failed_row", "refusal": "refusal", "language": "wrong_language",
    "json": "invalid_json", "wrong": "low_score", "sensitive": "sensitive_hit", "copied": "copied_prompt", "unsure": "unsure",
}  # fmt: skip


def pairs(paths):
    """(ordinal, rule) of all that was found."""
    return {(item["ordinal"], item["rule"]) for item in read_table(paths.bad_cases).to_pylist()}


def test_every_kind_of_failure_is_found_and_good_rows_are_left_alone(tmp_path):
    kinds = [kind for kind in nt.KINDS for _ in range(3)]
    paths = nt.build(tmp_path, [nt.row(n, kind) for n, kind in enumerate(kinds)], rejected=2)
    manifest = report.run(Params(), paths)
    table = read_table(paths.bad_cases)
    assert table.schema.equals(schemas.BAD_CASES)
    found = pairs(paths)
    for ordinal, kind in enumerate(kinds):
        rules = {rule for at, rule in found if at == ordinal}
        assert (RULE_OF_KIND[kind] in rules) if kind != "good" else not rules, (kind, rules)
    assert {rule for at, rule in found if at >= len(kinds)} == {"rejected_input"}
    assert manifest["rows"] == {"into": 38, "out": 38, "rejected": 0, "failed": 0}
    ranks = table.column("rank").to_pylist()
    assert ranks == sorted(ranks) and set(ranks) == set(range(1, len(set(ranks)) + 1))


def test_the_same_night_gives_the_same_bytes(tmp_path):
    outputs = []
    for name in ("a", "b"):
        paths = nt.build(tmp_path / name, nt.mixed_night(120), rejected=3)
        report.run(Params(), paths)
        outputs.append([f.read_bytes() for f in (paths.bad_cases_html, paths.bad_cases_md, paths.bad_cases / "rows.parquet")])
    assert outputs[0] == outputs[1]


def test_own_rows_come_before_the_control_set(tmp_path):
    rows = [nt.row(n, "empty", control=True) for n in range(20)] + [nt.row(n, "wrong") for n in range(20, 40)]
    paths = nt.build(tmp_path, rows)
    params = Params.model_validate({"report": {"max_cases": 10}})
    report.run(params, paths)
    ranks = {item["ordinal"]: item["rank"] for item in read_table(paths.bad_cases).to_pylist()}
    assert max(ranks[n] for n in range(20, 40)) < min(ranks[n] for n in range(20))
    page, mail = paths.bad_cases_html.read_text(), paths.bad_cases_md.read_text()
    assert page.count('<details class="case"') == 10 and page.count("Cases of the control set: 2") == 1
    assert "Answers to your own rows that failed: 20 of 20 (100 %)" in mail and "100 % of what failed or was turned away, 20 of 20" in mail


def test_a_good_night_says_so(tmp_path):
    paths = nt.build(tmp_path, [nt.row(n) for n in range(30)], gate={"verdict": "green", "reasons": []})
    manifest = report.run(Params(), paths)
    assert manifest["bad_cases"]["cases"] == 0
    assert read_table(paths.bad_cases).num_rows == 0
    assert "Nothing is bad" in paths.bad_cases_html.read_text() and "Nothing is bad" in paths.bad_cases_md.read_text()


@pytest.mark.parametrize("rows", [0, 5])
def test_answers_made_elsewhere_need_no_prompts_and_no_logprobs(tmp_path, rows):
    paths = nt.build(tmp_path, [nt.row(n, "wrong") for n in range(rows)], prompts=False, logprobs=False)
    manifest = report.run(Params(), paths)
    assert manifest["bad_cases"]["failing"] == rows


def test_a_page_to_be_mailed_holds_no_text(tmp_path):
    rows = [*nt.mixed_night(80), nt.row(80, "wrong", answer=nt.HOSTILE)]
    paths = nt.build(tmp_path, rows, rejected=2)
    params = Params.model_validate({"report": {"show_text": False}})
    report.run(params, paths)
    for file in (paths.bad_cases_html, paths.bad_cases_md):
        page = file.read_text()
        for text in ("harbour", "bakery", "quiet evening", "港口", "面包", "owned", "Bonjour"):
            assert text not in page, (file.name, text)
    report.run(Params(), paths)
    assert "quiet evening" in paths.bad_cases_html.read_text()


def test_unlikely_tokens_are_shaded_where_the_checkpoint_is_at_hand(tmp_path, tiny_checkpoint):
    tokenizer = Tokenizer.load(tiny_checkpoint)
    answer = nt.row(0, "wrong")["answer"]
    paths = nt.build(tmp_path, [nt.row(n, "wrong", logprob=-4.0, token_ids=tokenizer.encode_batch([answer])[0]) for n in range(3)])
    write_json(paths.model_json, {"source": str(tiny_checkpoint)})
    report.run(Params(), paths)
    assert f'<mark class="p3">{answer}</mark>' in paths.bad_cases_html.read_text()
    write_json(paths.model_json, {"source": str(tmp_path / "gone")})
    report.run(Params(), paths)
    assert "<mark" not in paths.bad_cases_html.read_text()


def test_new_fixed_and_still_failing_against_the_accepted_run(tmp_path):
    kinds = {"still": ("wrong", "wrong"), "new": ("good", "refusal"), "fixed": ("wrong", "good"), "fine": ("good", "good")}
    paths = nt.build(tmp_path, [nt.row(n, before, control=True) for n, (before, _) in enumerate(kinds.values())])
    write_json(paths.scores / "profile.json", {"night": {}, "control": {}})
    write_json(paths.baseline_json, as_json(paths, "for the test"))
    answers = [nt.row(n, now, control=True) for n, (_, now) in enumerate(kinds.values())]
    nt.build(tmp_path, [*answers, nt.row(4, "wrong"), nt.row(5, "wrong", control=True)])
    report.run(Params(), paths)
    states = {item["ordinal"]: item["state"] for item in read_table(paths.bad_cases).to_pylist()}
    assert states == {0: "still", 1: "new", 4: None, 5: None}
    assert "1 newly failing, 1 still failing, 1 fixed" in paths.bad_cases_md.read_text()


def test_rules_are_chosen_and_set_by_params(tmp_path):
    paths = nt.build(tmp_path, [nt.row(0, "wrong"), nt.row(1, "cut"), nt.row(2, "unsure")])
    params = Params.model_validate({"report": {"rules": ({"low_score": {"chrf": 60}}, "truncated")}})
    report.run(params, paths)
    assert pairs(paths) == {(0, "low_score"), (1, "low_score"), (1, "truncated")}


@pytest.mark.parametrize(("rules", "words"), [(("lowscore",), "no rule 'lowscore'"), (({"unsure": {"windw": 3}},), "windw")])
def test_a_misspelt_rule_or_option_is_named(tmp_path, rules, words):
    paths = nt.build(tmp_path, [nt.row(0)])
    with pytest.raises(ParamsError, match=words):
        report.run(Params.model_validate({"report": {"rules": rules}}), paths)


def test_the_measures_that_rules_need_are_worked_out_where_they_were_not_evaluated(tmp_path):
    rows = [
        nt.row(0, answer="so on and on " * 40, scores={}),
        nt.row(1, "refusal", scores={}),
        nt.row(2, "language", scores={"exact": 0.0}),
    ]
    paths = nt.build(tmp_path, rows)
    report.run(Params(), paths)
    found = pairs(paths)
    assert {(0, "looping"), (1, "refusal"), (2, "wrong_language")} <= found


def test_every_sentence_is_there_in_both_languages():
    for key, texts in words().items():
        assert set(texts) == {"en", "zh"} and all(texts.values()), key
        fields = [{name for _, name, _, _ in Formatter().parse(text) if name} for text in texts.values()]
        assert fields[0] == fields[1], key
    keys = set(words())
    for rule in [*RULES, "labelled_bad"]:
        assert {f"rule.{rule}", f"evidence.{rule}"} <= keys
    source = (PACKAGE / "report/causes.py").read_text()
    for reason in [*re.findall(r'Cause\("\w+", "(\w+)"', source), "labelled"]:
        assert {f"why.{reason}", f"reason.{reason}", f"advice.{reason}"} <= keys
    for template in (PACKAGE / "report").glob("*.html"):
        for key in re.findall(r'(?:both|say)\("([\w.]+)"[,)]', template.read_text()):
            assert key in keys, (template.name, key)


def test_the_control_sets_move_since_the_accepted_run_stands_beside_its_metric(tmp_path):
    checks = [
        {"check": "drop", "red": True, "metric": "chrf", "value": -9.5, "low": -14.0, "high": -5.0, "p": 0.001, "message": "chrf fell"},
        {"check": "drop", "red": False, "metric": "exact", "slice": "lang=zh", "value": 0.5, "low": 0.1, "high": 0.9, "message": "m"},
    ]
    paths = nt.build(
        tmp_path,
        [nt.row(n, "wrong") for n in range(4)],
        gate={"verdict": "red", "reasons": ["chrf fell"], "checks": checks, "baseline": True},
    )
    report.run(Params(), paths)
    page = paths.bad_cases_html.read_text()
    assert '<span class="fell">−9.5 <small>(−14 … −5)</small></span>' in page and "+0.5" not in page


@pytest.mark.parametrize(
    ("gate", "words_there"),
    [
        (
            {"verdict": "green", "reasons": [], "checks": [{"check": "baseline", "red": False}], "baseline": False},
            "no baseline and no limit",
        ),
        (
            {"verdict": "green", "reasons": [], "checks": [{"check": "min", "red": False}], "baseline": False},
            "no worse than what was accepted",
        ),
        (None, "Not judged"),
    ],
)
def test_green_for_want_of_anything_to_compare_says_so(tmp_path, gate, words_there):
    paths = nt.build(tmp_path, [nt.row(0)], gate=gate)
    report.run(Params(), paths)
    assert words_there in paths.bad_cases_md.read_text()


def test_evidence_names_what_lies_behind_a_score(tmp_path):
    asked = {"instruction_id_list": ["punctuation:no_comma", "length_constraints:number_words"],
             "kwargs": [{}, {"num_words": 3, "relation": "at least"}]}  # fmt: skip
    rows = [
        nt.row(0, reference=[], answer="One, two, three, four.", scores={"instructions": 0.5}, meta=asked),
        nt.row(1, reference=[], answer='{"a": ', scores={"json_valid": 0.0, "json_cut": 1.0}),
        nt.row(2, "sensitive"),
    ]
    paths = nt.build(tmp_path, rows)
    report.run(Params(), paths)
    found = {item["ordinal"]: item["evidence"] for item in read_table(paths.bad_cases).to_pylist()}
    assert found[0] == "followed 50 % of the instructions; not: punctuation:no_comma"
    assert found[1] == "cut in the middle"
    place = rows[2]["answer"].index(nt.SENSITIVE)
    assert "insults:" in found[2] and f"({place}–{place + 2})" in found[2]


def test_the_docs_name_every_rule_and_its_options_with_their_defaults():
    text = (PACKAGE.parent / "docs/report.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \|(.*)\|$", text, re.MULTILINE))
    assert set(rows) == set(RULES)
    for name, rule in RULES.items():
        options = {key: item.default for key, item in signature(rule).parameters.items() if item.kind is item.KEYWORD_ONLY}
        assert dict(re.findall(r"`(\w+): (-?[\d.]+)`", rows[name])) == {key: str(value) for key, value in options.items()}
    for metric, bar in LENIENT.items():
        assert f"`{metric}` {bar:g}" in text


NASTY = [
    "\x00\x07\x1b[31m", "\u202egnp.exe", "\u200b\u2060\ufeff", "\u2028\u2029\x85", "{{ 7 * 7 }} {% raw %}", "{name} {0} %s %(x)s",
    "</style></script><!--", "]]> <![CDATA[", "'\"`$(reboot)`;--", '=HYPERLINK("x")', "👩‍👩‍👧‍👦 🇨🇳 e\u0301\u0301\u0301", "ﷺ\u0600",
    "a" * 9000,
    "\n" * 50, "NaN", "null", "[]", "@json.cut",
]  # fmt: skip


def test_no_text_however_nasty_stops_the_report_or_gets_through(tmp_path):
    rows = [
        nt.row(n, "wrong", text=text, answer=NASTY[-1 - n], reference=[text + "x", NASTY[n - 3]], id=f"{n}{text[:40]}", file=text[:30],
               language=text[:5], error=text, meta={text: text, "length": n, "a": [text, None, 3], "b": {"c": text}, "d": None, "e": True})
        for n, text in enumerate(NASTY)
    ]  # fmt: skip
    paths = nt.build(tmp_path, rows, gate={"verdict": "red", "reasons": NASTY, "checks": []})
    report.run(Params(), paths)
    page, mail = paths.bad_cases_html.read_text(encoding="utf-8"), paths.bad_cases_md.read_text(encoding="utf-8")
    for text in ("\u202e", "\x07", "\u2060", "</script><!--", "<![CDATA["):
        assert text not in page.replace("\u2060//", ""), text
    assert page.count("<script>") == 1 and "\u202e" not in mail
    assert read_table(paths.bad_cases).num_rows >= len(NASTY)
