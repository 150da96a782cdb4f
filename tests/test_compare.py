"""`pipeline compare`: every changed row with its cause, scores with intervals."""

import json

import pytest
from chains import pipeline, rows, run_chain, write_rows
from checkpoints import write_tiny_llama


@pytest.fixture(scope="module")
def before(tmp_path_factory, tiny_checkpoint):
    folder = tmp_path_factory.mktemp("before")
    assert run_chain(write_rows(folder / "in.jsonl", rows(6)), folder / "out", tiny_checkpoint) == 0
    return folder / "out"


def compare(a, b, capsys):
    capsys.readouterr()
    assert pipeline("compare", a, b, "--json") == 0
    return json.loads(capsys.readouterr().out)


def changed(found):
    return {row["id"]: row["cause"] for row in found["changed"]}


def test_a_run_equals_itself(before, capsys):
    found = compare(before, before, capsys)
    assert found["counts"] == {"same": 6, "changed": 0, "only_a": 0, "only_b": 0}
    assert found["differs"] == {}
    assert all(item["difference"] in (0, None) for item in found["metrics"].values())


def test_data_and_params_are_told_apart(before, tmp_path, tiny_checkpoint, capsys):
    data = [*rows(6)[1:], {"id": "new", "text": "Say more"}]
    data[0]["text"] = "Say something else"
    file = write_rows(tmp_path / "in.jsonl", data)
    assert run_chain(file, tmp_path / "out", tiny_checkpoint, "generate.repetition_penalty=1.7") == 0
    found = compare(before, tmp_path / "out", capsys)
    assert (found["counts"]["only_a"], found["counts"]["only_b"]) == (1, 1)
    assert changed(found)["r1"] == "data"
    assert {cause for row, cause in changed(found).items() if row != "r1"} == {"params"}
    assert found["differs"] == {"params": ["generate.repetition_penalty: 1.0 -> 1.7"]}
    assert all(0 <= row["first_differing_token"] <= 8 for row in found["changed"])


@pytest.mark.parametrize(
    ("option", "cause"), [("preprocess.steps=[{mask_numbers: {}}]", "cleaning"), ("prompt.system=Answer in one word", "prompt")]
)
def test_cleaning_and_prompt_are_told_apart(before, tmp_path, tiny_checkpoint, capsys, option, cause):
    assert run_chain(before.parent / "in.jsonl", tmp_path / "out", tiny_checkpoint, option) == 0
    found = compare(before, tmp_path / "out", capsys)
    assert set(changed(found).values()) == {cause}
    assert found["counts"]["changed"] > 0


def test_another_model_is_told_and_the_text_names_the_metrics(before, tmp_path, capsys):
    model = write_tiny_llama(tmp_path / "model", seed=9)
    assert run_chain(before.parent / "in.jsonl", tmp_path / "out", model) == 0
    assert set(changed(compare(before, tmp_path / "out", capsys)).values()) == {"model"}
    assert pipeline("compare", before, tmp_path / "out") == 0
    text = capsys.readouterr().out
    assert "6 changed" in text
    assert "weights_digest" in text
    assert "rouge_l" in text


@pytest.mark.parametrize("side", ["nowhere", "."])
def test_a_side_that_means_nothing_is_refused(before, tmp_path, monkeypatch, capsys, side):
    monkeypatch.chdir(tmp_path)
    assert pipeline("compare", before, side) == 2
    assert "error: " in capsys.readouterr().err
