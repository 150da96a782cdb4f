"""`pipeline run` from rows to results on a tiny model: no row lost, nothing generated twice, same input same bytes."""

import json
import random
import shutil

import pytest
from chains import BAD_LINES, manifest, pipeline, results, rows, run_chain, stored_answers, tree, write_rows
from checkpoints import write_tiny_llama

from pipeline.engine.engine import Engine
from pipeline.runners.local import stage_line


@pytest.fixture(scope="module")
def whole(tmp_path_factory, tiny_checkpoint):
    """One finished run that no test changes, and its input file."""
    folder = tmp_path_factory.mktemp("whole")
    file = write_rows(folder / "in.jsonl", rows(21))
    file.write_text(file.read_text() + BAD_LINES + json.dumps(rows(1)[0]) + "\n")
    assert run_chain(file, folder / "out", tiny_checkpoint) == 0
    return folder


def outs(out):
    """Everything that stages put out; reports/runs holds clocks and lies outside."""
    return tree(out / "data") | {name: data for name, data in tree(out / "reports").items() if not name.startswith("runs/")}


def completions(out):
    return {
        row["id"]: (row["completion"], row["finish_reason"], row["completion_tokens"])
        for row in results(out)
        if row["status"] == "answered"
    }


def test_every_row_ends_answered_or_rejected_with_a_reason(whole):
    found = results(whole / "out")
    assert [row["ordinal"] for row in found] == list(range(25))
    assert [row["status"] for row in found] == ["answered"] * 21 + ["rejected"] * 4
    assert all(row["reason"] for row in found if row["status"] == "rejected")
    assert all(row["completion"] is not None and row["completion_tokens"] > 0 for row in found[:21])
    assert [row["source_line"] for row in found] == list(range(1, 26))
    assert manifest(whole / "out")["rows"] == {"into": 25, "out": 21, "rejected": 4, "failed": 0}


def test_the_manifest_names_what_made_the_results(whole):
    made_by = manifest(whole / "out")
    assert {"inputs", "preprocessing", "prompt", "model", "params", "generation", "metrics", "gate", "code", "outputs"} <= made_by.keys()
    assert made_by["mixed"] is False
    assert made_by["params"]["generate.max_new_tokens"] == 8
    assert len(made_by["preprocessing"]["fingerprint"]) == 64
    assert all(canary["equal"] for canary in made_by["generation"]["canaries"])
    assert any(item["path"].endswith("in.jsonl") for item in made_by["inputs"])
    assert (whole / "out/reports/bad_cases.html").is_file()


def test_equal_prompts_are_generated_once(whole):
    assert stored_answers(whole / "out") == 18  # three of 21 rows repeat a text
    answers = completions(whole / "out")
    assert answers["r6"] == answers["r1"]


def test_repeating_it_generates_nothing_and_changes_nothing(whole, tiny_checkpoint, monkeypatch, capsys):
    before = outs(whole / "out")
    monkeypatch.setattr(Engine, "generate", None)
    assert run_chain(whole / "in.jsonl", whole / "out", tiny_checkpoint) == 0
    assert "generate   unchanged" in capsys.readouterr().err
    assert outs(whole / "out") == before


def test_another_folder_gives_the_same_bytes(whole, tmp_path, tiny_checkpoint):
    assert run_chain(whole / "in.jsonl", tmp_path / "again", tiny_checkpoint) == 0
    assert outs(tmp_path / "again") == outs(whole / "out")


def test_the_line_of_a_stage_counts_rejects_by_reason(whole):
    line = stage_line("validate", manifest(whole / "out", "validated"))
    assert line == "validate   25 in, 21 out, 4 rejected: duplicate_identical 1, empty_text 1, invalid_json 1, missing_text 1"


def test_company_and_order_never_change_an_answer(whole, tmp_path, tiny_checkpoint):
    shuffled = rows(21)
    random.Random(5).shuffle(shuffled)
    file = write_rows(tmp_path / "in.jsonl", shuffled)
    options = ("generate.max_running_rows=1", "generate.page_size=16", "bucket.max_batch_tokens=64")
    assert run_chain(file, tmp_path / "out", tiny_checkpoint, *options) == 0
    assert completions(tmp_path / "out") == completions(whole / "out")


def test_one_new_row_generates_one_row_and_equals_a_full_run(whole, tmp_path, tiny_checkpoint, monkeypatch):
    shutil.copytree(whole / "out", tmp_path / "night")
    file = write_rows(tmp_path / "in.jsonl", [*rows(21), {"id": "new", "text": "Tell me of the bridge"}])
    asked = []
    generate = Engine.generate

    def counting(self, requests, stop=None):
        return generate(self, (asked.append(request.id) or request for request in requests), stop=stop)

    monkeypatch.setattr(Engine, "generate", counting)
    assert run_chain(file, tmp_path / "night", tiny_checkpoint) == 0
    canary_rows = len(manifest(tmp_path / "night", "completions")["canaries"])
    assert len(asked) == 1 + canary_rows
    assert run_chain(file, tmp_path / "full", tiny_checkpoint) == 0
    assert tree(tmp_path / "night/data/results") == tree(tmp_path / "full/data/results")
    assert stored_answers(tmp_path / "night") == 19


def test_old_params_again_come_from_the_store(whole, tmp_path, tiny_checkpoint):
    shutil.copytree(whole / "out", tmp_path / "out")
    before = tree(tmp_path / "out/data/results")
    assert run_chain(whole / "in.jsonl", tmp_path / "out", tiny_checkpoint, "generate.temperature=0.9") == 0
    assert tree(tmp_path / "out/data/results") != before
    assert stored_answers(tmp_path / "out") == 36
    assert run_chain(whole / "in.jsonl", tmp_path / "out", tiny_checkpoint) == 0
    assert stored_answers(tmp_path / "out") == 36
    assert tree(tmp_path / "out/data/results") == before


def test_reuse_none_generates_again(whole, tmp_path, tiny_checkpoint):
    shutil.copytree(whole / "out", tmp_path / "out")
    shutil.rmtree(tmp_path / "out/data/completions")
    assert run_chain(whole / "in.jsonl", tmp_path / "out", tiny_checkpoint, "generate.reuse=none") == 0
    assert stored_answers(tmp_path / "out") == 36
    assert not list((tmp_path / "out/.work/completions/runs").iterdir())
    assert completions(tmp_path / "out") == completions(whole / "out")


def test_new_weights_in_the_same_folder_are_seen(tmp_path):
    folder = write_tiny_llama(tmp_path / "model", seed=1)
    file = write_rows(tmp_path / "in.jsonl", rows(3))
    assert run_chain(file, tmp_path / "out", folder) == 0
    before = completions(tmp_path / "out")
    write_tiny_llama(folder, seed=2)
    assert run_chain(file, tmp_path / "out", folder) == 0
    assert completions(tmp_path / "out") != before
    assert stored_answers(tmp_path / "out") == 6


def test_samples_and_overrides_of_single_rows(tmp_path, tiny_checkpoint):
    data = [
        {"id": "short", "text": "Say one", "max_new_tokens": 2},
        {"id": "same", "text": "Say one"},
        {"id": "seed", "text": "Say one", "seed": 5},
    ]
    file = write_rows(tmp_path / "in.jsonl", data)
    options = (
        "data.overrides=[max_new_tokens, seed]",
        "generate.samples=2",
        "generate.temperature=1",
        "generate.logprobs=5",
        "generate.top_k=1",
    )
    assert run_chain(file, tmp_path / "out", tiny_checkpoint, *options) == 0
    found = results(tmp_path / "out")
    assert [(row["id"], row["sample"]) for row in found] == [(row["id"], sample) for row in data for sample in (0, 1)]
    assert [row["completion_tokens"] for row in found[:2]] == [2, 2]
    assert all(row["completion_tokens"] > 2 for row in found[2:])
    json.loads((tmp_path / "out/reports/metrics.json").read_text(), parse_constant=lambda name: pytest.fail(name))


def test_samples_differ_and_do_not_depend_on_company(tmp_path, tiny_checkpoint):
    file = write_rows(tmp_path / "in.jsonl", rows(5))
    options = ("generate.samples=3", "generate.temperature=1.0", "generate.seed=7")
    assert run_chain(file, tmp_path / "a", tiny_checkpoint, *options) == 0
    assert run_chain(file, tmp_path / "b", tiny_checkpoint, *options, "generate.max_running_rows=2") == 0
    first = [row["completion"] for row in results(tmp_path / "a")]
    assert first == [row["completion"] for row in results(tmp_path / "b")]
    assert len(set(first[:3])) == 3


def test_a_failed_row_is_told_and_tried_again(tmp_path, tiny_checkpoint, monkeypatch):
    file = write_rows(tmp_path / "in.jsonl", rows(4))
    generate = Engine.generate

    def failing(self, requests, stop=None):
        from dataclasses import replace

        for completion in generate(self, requests, stop=stop):
            bad = completion.id == 2
            yield (
                replace(completion, finish_reason="error", error="out_of_memory: too long", token_ids=(), token_logprobs=())
                if bad
                else completion
            )

    monkeypatch.setattr(Engine, "generate", failing)
    assert run_chain(file, tmp_path / "out", tiny_checkpoint) == 0
    row = results(tmp_path / "out")[2]
    assert (row["status"], row["reason"], row["completion"]) == ("failed", "out_of_memory: too long", None)
    assert manifest(tmp_path / "out")["rows"] == {"into": 4, "out": 3, "rejected": 0, "failed": 1}
    assert stored_answers(tmp_path / "out") == 3
    monkeypatch.undo()
    assert run_chain(file, tmp_path / "out", tiny_checkpoint) == 0
    assert [row["status"] for row in results(tmp_path / "out")] == ["answered"] * 4
    assert stored_answers(tmp_path / "out") == 4


def test_the_deadline_publishes_what_is_there_and_the_next_run_goes_on(tmp_path, tiny_checkpoint, monkeypatch):
    from pipeline.runners import generation

    file = write_rows(tmp_path / "in.jsonl", rows(6))
    late = iter([False] * 30)
    monkeypatch.setattr(generation.Job, "late", lambda self: next(late, True))
    assert run_chain(file, tmp_path / "out", tiny_checkpoint, "generate.deadline='03:00'", "generate.max_running_rows=1") == 0
    status = [row["status"] for row in results(tmp_path / "out")]
    assert set(status) == {"answered", "failed"}
    assert {row["reason"] for row in results(tmp_path / "out") if row["status"] == "failed"} == {generation.NOT_REACHED}
    monkeypatch.undo()
    assert run_chain(file, tmp_path / "out", tiny_checkpoint) == 0
    assert [row["status"] for row in results(tmp_path / "out")] == ["answered"] * 6


def test_a_red_gate_exits_1_after_everything_is_written(tmp_path, tiny_checkpoint, capsys):
    file = write_rows(tmp_path / "in.jsonl", rows(3))
    assert run_chain(file, tmp_path / "out", tiny_checkpoint, "gate.min={exact: 0.9}") == 1
    assert "exact" in capsys.readouterr().err
    assert len(results(tmp_path / "out")) == 3
    assert pipeline("verify", "--root", tmp_path / "out") == 0


@pytest.mark.parametrize(
    ("content", "options", "code", "says"),
    [
        (None, (), 2, "no such file"),
        ("", (), 3, "not one readable row"),
        ('{"id": 1, "text": "x"}\n', ("generate.temprature=1",), 2, "temperature"),
        ('{"id": 1, "text": "x"}\n', ("model.source=nowhere/at/all",), 2, "nowhere/at/all"),
        ('{"id": 1, "text": "x"}\n', ("model.source={folder}/no_weights",), 4, "safetensors"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_readable_error_and_nothing_is_half_written(tmp_path, tiny_checkpoint, capsys, content, options, code, says):
    shutil.copytree(tiny_checkpoint, tmp_path / "no_weights")
    (tmp_path / "no_weights/model.safetensors").unlink()
    file = tmp_path / "in.jsonl"
    if content is not None:
        file.write_text(content)
    source = [] if any(option.startswith("model.") for option in options) else ["--model", tiny_checkpoint]
    settings = [item for option in options for item in ("-S", option.format(folder=tmp_path))]
    assert pipeline("run", file, "--out", tmp_path / "out", *source, *settings) == code
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out/data/results").exists()
    assert not list((tmp_path / "out").rglob("*.tmp"))


@pytest.mark.parametrize(
    "setting", ["evaluate.metrics=[exct]", "gate.max_drop={exct: 0.1}", "report.rules=[lowscore]", "preprocess.steps=[nfd]",
                "evaluate.sensitive_words=nowhere.txt", "generate.json_schema=nowhere.json"],
)  # fmt: skip
def test_what_only_the_last_stages_read_is_checked_before_the_first(tmp_path, tiny_checkpoint, capsys, setting):
    file = write_rows(tmp_path / "in.jsonl", rows(3))
    section = setting.partition("=")[0]
    assert pipeline("run", file, "--out", tmp_path / "out", "--model", tiny_checkpoint, "-S", setting) == 2
    assert section.rpartition(".")[2] in capsys.readouterr().err
    assert not (tmp_path / "out/data").exists()
    assert pipeline("model", "--root", tmp_path / "out", "--model", tiny_checkpoint, "-S", setting) == 2  # what `dvc repro` runs first


def test_relative_inputs_globs_and_params_of_the_current_folder(tmp_path, tiny_checkpoint, monkeypatch):
    write_rows(tmp_path / "raw/a.jsonl", rows(2))
    write_rows(tmp_path / "raw/b.jsonl", rows(2, start=2))
    (tmp_path / "params.yaml").write_text(f"generate: {{max_new_tokens: 3, temperature: 0.5}}\nmodel: {{source: {tiny_checkpoint}}}\n")
    monkeypatch.chdir(tmp_path)
    assert pipeline("run", "raw/*.jsonl", "--out", "out", "-S", "evaluate.bootstrap=10") == 0
    assert [row["id"] for row in results("out")] == ["r0", "r1", "r2", "r3"]
    assert manifest("out")["params"]["generate.temperature"] == 0.5
    assert "temperature: 0.5" in (tmp_path / "out/effective_params.yaml").read_text()


def test_score_takes_answers_from_the_rows_and_loads_no_model(tmp_path, monkeypatch):
    data = [
        {"id": "a", "text": "say", "answer": "the cat", "reference": "the cat"},
        {"id": "b", "text": "say", "answer": "", "reference": "dog"},
    ]
    file = write_rows(tmp_path / "in.jsonl", data)
    monkeypatch.setattr("pipeline.stages.generate.build", None)
    assert pipeline("score", file, "--out", tmp_path / "out", "-S", "data.completion_field=answer", "-S", "evaluate.bootstrap=10") == 0
    assert [(row["id"], row["status"], row["completion"], row["exact"]) for row in results(tmp_path / "out")] == [
        ("a", "answered", "the cat", 1.0), ("b", "answered", "", 0.0),
    ]  # fmt: skip
    assert pipeline("verify", "--root", tmp_path / "out") == 0
    assert pipeline("score", file, "--out", tmp_path / "out2") == 2


def test_run_and_score_name_their_params_file_and_a_question_that_is_not_where_it_says(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text("data: {text_field: question, completion_field: answer}\npreprocess: {min_chars: 1}\n")
    file = write_rows(tmp_path / "in.jsonl", [{"id": "a", "text": "say", "answer": "x"}, {"id": "b", "question": "say", "answer": "x"}])
    assert pipeline("score", file, "--out", tmp_path / "out", "-S", "evaluate.bootstrap=10") == 0
    assert capfd.readouterr().err.startswith(f"params: {tmp_path}/params.yaml, with -S\n")
    first = results(tmp_path / "out")[0]
    assert first["reason"].startswith("missing_text") and "data.text_field" in first["reason"]


def test_answers_held_to_a_schema_fit_it_and_have_keys_of_their_own(tmp_path, tiny_checkpoint):
    data = rows(3)
    file = write_rows(tmp_path / "in.jsonl", data)
    schema = "generate.json_schema={type: object, properties: {n: {enum: [1, 2, 3]}}, required: [n], additionalProperties: false}"
    assert run_chain(file, tmp_path / "out", tiny_checkpoint, schema, tokens=40) == 0
    assert all(json.loads(row["completion"])["n"] in (1, 2, 3) for row in results(tmp_path / "out"))
    assert run_chain(file, tmp_path / "out", tiny_checkpoint, tokens=40) == 0
    assert stored_answers(tmp_path / "out") == 6


def test_an_out_that_would_replace_what_no_run_wrote_is_refused(whole, tmp_path, tiny_checkpoint, capsys, monkeypatch):
    """A project, a folder with files of others, inputs where outputs go, no folder at all: exit 2 and every byte as before."""
    results_file = tmp_path / "own/data/results/mine.txt"
    results_file.parent.mkdir(parents=True)
    results_file.write_text("mine")
    shutil.copytree(whole / "out", tmp_path / "before")
    inside = write_rows(tmp_path / "before/data/clean/in.jsonl", rows(1))
    (tmp_path / "project").mkdir()
    (tmp_path / "project/dvc.yaml").write_text("stages: {}\n")
    file = write_rows(tmp_path / "in/in.jsonl", rows(1))
    monkeypatch.chdir(tmp_path)
    held = tree(tmp_path)
    refused = [(file, "own", "no run put there"), (file, "project", "is a project"), (inside, "before", "would be lost"),
               (inside.parent / "*.jsonl", "before", "would be lost"), (file.parent, "in/out", "lies in this input"),
               (file, "", "name a folder"), (file, file, "is a file")]  # fmt: skip
    for inputs, out, words in refused:
        assert run_chain(inputs, out, tiny_checkpoint) == 2
        assert words in capsys.readouterr().err
    assert tree(tmp_path) == held
    (tmp_path / "new").mkdir()
    assert run_chain(file, "new", tiny_checkpoint) == 0
    shutil.rmtree(tmp_path / "new/data")
    (tmp_path / "new/effective_params.yaml").unlink()  # as a run leaves it that ended at once
    assert run_chain(file, "new", tiny_checkpoint) == 0


def test_a_template_that_does_not_parse_is_no_red_gate(tmp_path, tiny_checkpoint, capsys):
    file = write_rows(tmp_path / "in.jsonl", rows(2))
    assert run_chain(file, tmp_path / "a", tiny_checkpoint, "prompt.template='{{ text'") == 2
    assert "prompt.template: line 1" in capsys.readouterr().err
    shutil.copytree(tiny_checkpoint, tmp_path / "model")
    (tmp_path / "model/chat_template.jinja").write_text("{% for %}")
    assert run_chain(file, tmp_path / "b", tmp_path / "model") == 4
    assert "chat_template.jinja: line 1" in capsys.readouterr().err


@pytest.mark.parametrize("torn", ["[]", "{}", '{"rows": ', ""])
def test_a_torn_manifest_is_made_again_or_named(finished_run, tmp_path, tiny_checkpoint, capsys, torn):
    shutil.copytree(finished_run / "out", tmp_path / "out")
    file = tmp_path / "out/data/completions/manifest.json"
    file.write_text(torn)
    assert pipeline("evaluate", "--root", tmp_path / "out") == 2
    assert f"{file}: is torn" in capsys.readouterr().err
    assert run_chain(finished_run / "in.jsonl", tmp_path / "out", tiny_checkpoint) == 0
    assert len(results(tmp_path / "out")) == 15


def test_a_run_that_answers_nothing_is_red_and_published(tmp_path, tiny_checkpoint, capsys):
    file = write_rows(tmp_path / "in.jsonl", rows(3))
    assert run_chain(file, tmp_path / "out", tiny_checkpoint, "prompt.template='{{ meta.absent }}'") == 1
    assert "not one was answered: 3 rejected" in capsys.readouterr().err
    assert {row["status"] for row in results(tmp_path / "out")} == {"rejected"}


NAMED = ("evaluate", "gate", "report", "publish", "accept", "verify")


@pytest.mark.parametrize("torn", ["[]", '{"rows": '])
def test_no_command_takes_a_torn_file_for_a_bug(finished_run, tmp_path, capsys, torn):
    """Each JSON file of the chain in turn: the commands that read it go on without it, or name it."""
    shutil.copytree(finished_run / "out", tmp_path / "out")
    out = tmp_path / "out"
    files = [
        *out.glob("data/*/manifest.json"),
        out / "data/scores/profile.json",
        *(out / "reports").glob("*.json"),
        out / "models/model.json",
    ]
    for file in files:
        whole = tree(out)
        for command in NAMED:
            file.write_text(torn)
            code = pipeline(command, "--root", out)
            said = capsys.readouterr().err
            assert code in (0, 2, 3, 5), (file, command, said)
            for name, data in whole.items():
                (out / name).parent.mkdir(parents=True, exist_ok=True)
                (out / name).write_bytes(data)
