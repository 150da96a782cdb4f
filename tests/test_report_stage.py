"""Stage report from tables to table, page and mail."""

import night_tree as nt
import pytest

from pipeline.core import schemas
from pipeline.core.manifest import read_table
from pipeline.core.params import Params
from pipeline.stages import report

RULE_OF_KIND = {
    "empty": "empty", "loop": "looping", "cut": "truncated", "error": "failed_row", "refusal": "refusal", "language": "wrong_language",
    "json": "invalid_json", "wrong": "low_score", "sensitive": "sensitive_hit", "copied": "copied_prompt", "unsure": "unsure",
}  # fmt: skip


def test_every_kind_of_failure_is_found_and_good_rows_are_left_alone(tmp_path):
    kinds = [kind for kind in nt.KINDS for _ in range(3)]
    paths = nt.build(tmp_path, [nt.row(n, kind) for n, kind in enumerate(kinds)], rejected=2)
    manifest = report.run(Params(), paths)
    table = read_table(paths.bad_cases)
    assert table.schema.equals(schemas.BAD_CASES)
    found = {(item["ordinal"], item["rule"]) for item in table.to_pylist()}
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
        for words in ("harbour", "bakery", "quiet evening", "港口", "面包", "owned", "Bonjour"):
            assert words not in page, (file.name, words)
    report.run(Params(), paths)
    assert "quiet evening" in paths.bad_cases_html.read_text()
