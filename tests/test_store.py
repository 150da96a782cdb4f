"""The completion store: which changes miss and which hit, what survives a crash, damage, pruning, sharing."""

import contextlib
import json
import os
import shutil
import threading
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from chains import pipeline, stored_answers

from pipeline.core.errors import UsageError
from pipeline.engine.request import Completion, Sampling
from pipeline.runners import store_care
from pipeline.runners.answer_key import ModelIdentity, Setting, answer_key, key_table, prompt_digest, setting_digest
from pipeline.runners.answer_writer import AnswerWriter
from pipeline.runners.completion_store import CompletionStore, answers_table
from pipeline.runners.generation import unfinished
from pipeline.runners.runs import Run

MODEL = ModelIdentity("w" * 64, "t" * 64, "c" * 64, "bfloat16", "none", "cpu", "engine-1", (2, 3))
SETTING = Setting(Sampling(max_new_tokens=8), stop=("\n\n",), json_schema={"type": "object", "required": ["a"]}, grammar_version="1")


def key(model=MODEL, setting=SETTING, token_ids=(5, 6, 7), sample=0):
    return answer_key(setting_digest(model, setting), prompt_digest(np.array(token_ids)), sample)


def keys(names):
    """A key table from small integers."""
    each = [answer_key(bytes(32), prompt_digest(np.array([name])), 0) for name in names]
    return key_table(each, [prompt_digest(np.array([name])) for name in names])


def answers(names):
    """Recognisable answers: name repeated."""
    done = [Completion(n, 0, (n,) * (n % 5 + 1), (-0.5,) * (n % 5 + 1), "length") for n in names]
    return answers_table(keys(names), done)


def found(store, names):
    return {names[row["n"]]: row["token_ids"] for table in store.ordered(keys(names)) for row in table.to_pylist()}


CHANGED_MODEL = {
    "weights_digest": "x" * 64, "tokenizer_digest": "x" * 64, "template_digest": None, "dtype": "float32", "quantization": "int8",
    "device_kind": "cuda", "numerics": "engine-2", "stop_ids": (2,),
}  # fmt: skip
CHANGED_SAMPLING = {
    "max_new_tokens": 9, "temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.1, "presence_penalty": 0.1,
    "frequency_penalty": 0.1, "seed": 1, "logprobs": 2, "ignore_eos": True,
}  # fmt: skip
CHANGED_SETTING = {"stop": ("\n",), "json_schema": {"type": "array"}, "grammar_version": "2"}


def test_the_lists_of_changes_name_every_ingredient():
    assert set(CHANGED_MODEL) == set(ModelIdentity.__dataclass_fields__)
    assert set(CHANGED_SAMPLING) == set(Sampling.__dataclass_fields__)
    assert set(CHANGED_SETTING) | {"sampling"} == set(Setting.__dataclass_fields__)


@pytest.mark.parametrize("name", CHANGED_MODEL)
def test_another_model_or_arithmetic_misses(name):
    assert key(model=replace(MODEL, **{name: CHANGED_MODEL[name]})) != key()


@pytest.mark.parametrize("name", CHANGED_SAMPLING)
def test_another_sampling_value_misses(name):
    assert key(setting=replace(SETTING, sampling=replace(SETTING.sampling, **{name: CHANGED_SAMPLING[name]}))) != key()


@pytest.mark.parametrize("name", CHANGED_SETTING)
def test_another_stop_or_grammar_misses(name):
    assert key(setting=replace(SETTING, **{name: CHANGED_SETTING[name]})) != key()


def test_another_prompt_or_sample_misses():
    assert len({key(), key(token_ids=(5, 6)), key(token_ids=(6, 5, 7)), key(sample=1)}) == 4


def test_orders_that_mean_nothing_hit():
    other = Setting(Sampling(max_new_tokens=8), ("\n\n", "\n\n"), {"required": ["a"], "type": "object"}, "1")
    assert key(setting=other) == key()
    assert key(model=replace(MODEL, stop_ids=(3, 2))) == key()


def test_answers_come_back_in_the_order_asked_for_and_only_once(tmp_path):
    store = CompletionStore(tmp_path)
    store.commit(answers(range(0, 50)), run="a", model="m")
    store.commit(answers(range(40, 90)), run="b", model="m")  # ten of them twice
    wanted = [7, 88, 500, 7, 45, 3]
    rows = [row for table in store.ordered(keys(wanted)) for row in table.to_pylist()]
    assert [row["n"] for row in rows] == [0, 1, 3, 4, 5]
    assert [row["token_ids"][0] for row in rows] == [7, 88, 7, 45, 3]
    assert store.has(keys(wanted)).tolist() == [True, True, False, True, True, True]
    assert not CompletionStore(tmp_path / "empty").has(keys(wanted)).any()


def test_an_answer_keeps_every_value(tmp_path):
    whole = Completion(1, 0, (5, 2), (-0.25, -1.5), "stop", "token 2", (((5, -0.25), (6, -2.0)), ((2, -1.5), (9, -3.0))))
    CompletionStore(tmp_path).commit(answers_table(keys([1]), [whole]), run="a", model="m")
    row = next(CompletionStore(tmp_path).ordered(keys([1]))).to_pylist()[0]
    assert (row["token_ids"], row["token_logprobs"], row["finish_reason"], row["finish_detail"]) == (
        [5, 2],
        [-0.25, -1.5],
        "stop",
        "token 2",
    )
    assert row["top_logprobs"][1] == [{"token_id": 2, "logprob": -1.5}, {"token_id": 9, "logprob": -3.0}]


def test_a_part_without_a_record_is_not_believed(tmp_path):
    store = CompletionStore(tmp_path)
    part = store.commit(answers(range(5)), run="a", model="m")
    part.record.unlink()
    assert not store.has(keys([1])).any()


@pytest.mark.parametrize("damage", ["flip", "cut", "zero", "gone", "record"])
def test_damage_is_set_aside_and_the_rest_still_answers(tmp_path, damage, capsys):
    store = CompletionStore(tmp_path)
    part = store.commit(answers(range(0, 5)), run="a", model="m")
    store.commit(answers(range(5, 10)), run="a", model="m")
    data = bytearray(part.file.read_bytes())
    if damage == "flip":
        data[len(data) // 3] ^= 1
        part.file.write_bytes(data)
    elif damage == "cut":
        part.file.write_bytes(data[:-20])
    elif damage == "zero":
        part.file.write_bytes(bytes(len(data)))
    elif damage == "gone":
        part.file.unlink()
    else:
        part.record.write_text("{")
    again = CompletionStore(tmp_path)
    assert again.has(keys(range(10))).tolist() == [False] * 5 + [True] * 5
    assert ("set aside" in capsys.readouterr().err) == (damage != "gone")
    again.commit(answers(range(0, 5)), run="b", model="m")
    assert found(again, list(range(10))) == {n: [n] * (n % 5 + 1) for n in range(10)}


def test_a_store_of_a_newer_version_is_refused(tmp_path):
    CompletionStore(tmp_path)
    (tmp_path / "format.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(UsageError, match="format 99"):
        CompletionStore(tmp_path)
    (tmp_path / "format.json").write_text("not json")
    with pytest.raises(UsageError, match="completion store"):
        CompletionStore(tmp_path)


def test_reuse_none_sees_its_own_run_only_and_survives_its_kill(tmp_path):
    killed = Run(tmp_path, "d" * 64)
    CompletionStore(tmp_path).commit(answers(range(3)), run="older", model="m")
    CompletionStore(tmp_path, run=killed.name).commit(answers(range(3, 6)), run=killed.name, model="m")
    resumed = Run(tmp_path, "d" * 64)
    assert resumed.name == killed.name
    assert CompletionStore(tmp_path, run=resumed.name).has(keys(range(6))).tolist() == [False] * 3 + [True] * 3
    resumed.done()
    assert Run(tmp_path, "d" * 64).name != killed.name


def test_merging_keeps_every_answer(tmp_path):
    store = CompletionStore(tmp_path)
    for start in range(0, 40, 10):
        store.commit(answers(range(start, start + 10)), run="a", model="m")
    store.commit(answers(range(40, 50)), run="b", model="m")
    store.merge("a")
    parts = store.parts()
    assert sorted((part.run, part.rows) for part in parts) == [("a", 40), ("b", 10)]
    assert len(list((tmp_path / "parts").iterdir())) == 2
    assert found(CompletionStore(tmp_path), list(range(50))) == {n: [n] * (n % 5 + 1) for n in range(50)}


def test_forgetting_prompts_rewrites_the_parts(tmp_path):
    store = CompletionStore(tmp_path)
    part = store.commit(answers(range(10)), run="a", model="m")
    gone = keys([3, 4])["prompt"].to_pylist()
    assert store.rewrite_without(part, gone) == 2
    assert CompletionStore(tmp_path).has(keys(range(10))).tolist() == [n not in (3, 4) for n in range(10)]
    assert store.rewrite_without(store.parts()[0], gone) == 0


def test_runs_share_a_store_at_once(tmp_path):
    def work(run):
        store = CompletionStore(tmp_path)
        for start in range(0, 100, 10):
            store.commit(answers(range(start, start + 10)), run=run, model="m")
            assert store.has(keys(range(start + 10))).all()
        store.merge(run)

    errors = []

    def guarded(run):
        try:
            work(run)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert sorted(part.rows for part in CompletionStore(tmp_path).parts()) == [100, 100, 100]


def test_the_writer_commits_while_answers_come_and_at_the_end(tmp_path):
    store = CompletionStore(tmp_path)
    table = keys(range(6)).to_pylist()
    with AnswerWriter(store, run="a", model="m", every_s=0.01) as writer:
        for n, row in enumerate(table[:3]):
            writer.add(row["key"], row["prompt"], Completion(n, 0, (n,), (-1.0,), "length"))
        for _ in range(500):
            writer.between_steps(list)
            if store.has(keys(range(3))).all():
                break
            threading.Event().wait(0.01)
        assert store.has(keys(range(6))).tolist() == [True] * 3 + [False] * 3
        for n, row in enumerate(table[3:], 3):
            writer.add(row["key"], row["prompt"], Completion(n, 0, (n,), (-1.0,), "length"))
    assert store.has(keys(range(6))).all()


def test_unfinished_answers_replace_those_of_the_last_checkpoint_and_never_count_as_answers(tmp_path):
    store, top = CompletionStore(tmp_path), (((7, -0.5), (8, -1.5)), ((9, -0.25),))
    for count in (1, 2):
        begun = Completion(1, 0, (7, 9)[:count], (-0.5, -0.25)[:count], "unfinished", top_logprobs=top[:count])
        store.save_begun("a", answers_table(keys([1]), [begun]))
        assert unfinished(store.begun("a").to_pylist()[0]) == replace(begun, id=0)
    assert not store.has(keys([1])).any()
    assert not store.begun("b").num_rows
    store.save_begun("a", answers([]))
    assert not store.begun("a").num_rows


def test_unfinished_answers_that_cannot_be_read_begin_anew(tmp_path, capsys):
    store = CompletionStore(tmp_path)
    store.save_begun("a", answers([1, 2, 3]))
    file = next((tmp_path / "runs").glob("*.parquet"))
    whole = bytearray(file.read_bytes())
    for damaged in (whole[: len(whole) // 2], b"", whole[:20] + bytes([whole[20] ^ 1]) + whole[21:]):
        file.write_bytes(damaged)
        assert not store.begun("a").num_rows
        assert "begin anew" in capsys.readouterr().err


def test_unfinished_answers_go_with_age_and_with_the_prompts_they_belong_to(tmp_path):
    store = CompletionStore(tmp_path)
    for run in "ab":
        store.save_begun(run, answers([1]))
    os.utime(tmp_path / "runs/a.parquet", (0, 0))
    store_care.prune(store, dry_run=True, prompts={bytes(32)})
    store_care.prune(store, model="none")
    assert [store.begun(run).num_rows for run in "ab"] == [0, 1]
    store_care.prune(store, prompts={bytes(32)})
    assert not store.begun("b").num_rows


@pytest.mark.parametrize("end", ["stopped", "failed", "finished"])
def test_what_is_under_way_is_kept_unless_the_work_is_finished(tmp_path, end):
    store, row = CompletionStore(tmp_path), keys([1]).to_pylist()[0]

    def drawn(count):
        return lambda: [(row["key"], row["prompt"], Completion(1, 0, (5,) * count, (-1.0,) * count, "unfinished"))]

    with contextlib.suppress(KeyError), AnswerWriter(store, run="a", model="m", every_s=0.01) as writer:
        while not store.begun("a").num_rows:
            writer.between_steps(drawn(1))
        if end == "stopped":
            writer.between_steps(drawn(2), last=True)
        if end == "failed":
            raise KeyError
    assert store.begun("a")["token_ids"].to_pylist() == {"stopped": [[5, 5]], "failed": [[5]], "finished": []}[end]


def test_the_writer_saves_what_it_has_when_the_work_fails(tmp_path):
    store = CompletionStore(tmp_path)
    row = keys([1]).to_pylist()[0]

    def work():
        with AnswerWriter(store, run="a", model="m", every_s=60) as writer:
            writer.add(row["key"], row["prompt"], Completion(1, 0, (1,), (-1.0,), "length"))
            raise KeyError("boom")

    with pytest.raises(KeyError):
        work()
    assert store.has(keys([1])).all()


def test_a_failing_disk_is_told_between_steps(tmp_path, monkeypatch):
    store = CompletionStore(tmp_path)
    row = keys([1]).to_pylist()[0]

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "commit", full)

    def work():
        with AnswerWriter(store, run="a", model="m", every_s=0.01) as writer:
            for _ in range(1000):
                writer.add(row["key"], row["prompt"], Completion(1, 0, (1,), (-1.0,), "length"))
                writer.between_steps(list)
                threading.Event().wait(0.01)

    with pytest.raises(OSError, match="No space"):
        work()


def test_key_halves_are_the_first_bytes_of_the_key():
    table = keys([1])
    first = table["key"][0].as_py()
    assert int.from_bytes(first[:8], "little", signed=True) == table["hi"][0].as_py()
    assert int.from_bytes(first[8:16], "little", signed=True) == table["lo"][0].as_py()
    assert table.schema.field("key").type == pa.binary(32)


@pytest.fixture
def three_models(tmp_path):
    """A store with 10 answers of model aa made 40 days ago, 20 of bb 20 days ago, 30 of cc today."""
    store = CompletionStore(tmp_path / "store")
    for days, (model, count) in zip((40, 20, 0), (("aa", 10), ("bb", 20), ("cc", 30))):
        part = store.commit(answers(range(100 * days, 100 * days + count)), run=model, model=model)
        record = json.loads(part.record.read_text())
        part.record.write_text(json.dumps(record | {"created_s": record["created_s"] - days * 86_400}))
    return CompletionStore(tmp_path / "store")


def models(store):
    return {part.model: part.rows for part in store.parts()}


def test_stats_count_by_model(three_models):
    about = store_care.stats(three_models)
    assert (about["answers"], about["parts"]) == (60, 3)
    assert {model: item["answers"] for model, item in about["models"].items()} == {"aa": 10, "bb": 20, "cc": 30}
    assert about["tokens"] == sum(n % 5 + 1 for start, count in ((4000, 10), (2000, 20), (0, 30)) for n in range(start, start + count))


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({"older_than_days": 30}, {"bb": 20, "cc": 30}),
        ({"model": "b"}, {"aa": 10, "cc": 30}),
        ({"max_bytes": 0}, {}),
        ({"older_than_days": 30, "model": "c"}, {"bb": 20}),
    ],
)
def test_pruning_forgets_what_is_asked_and_a_dry_run_nothing(three_models, options, left):
    before = models(three_models)
    would = store_care.prune(three_models, **options, dry_run=True)
    assert models(three_models) == before
    assert store_care.prune(three_models, **options) == would
    assert models(three_models) == left
    assert len(list((three_models.folder / "parts").iterdir())) == len(left)


def test_a_size_limit_keeps_the_newest(three_models):
    newest = next(part for part in three_models.parts() if part.model == "cc")
    store_care.prune(three_models, max_bytes=newest.bytes)
    assert models(three_models) == {"cc": 30}


def test_forgetting_one_row_by_id(finished_run, tmp_path, capsys):
    shutil.copytree(finished_run / "out", tmp_path / "out")
    had = stored_answers(tmp_path / "out")
    assert pipeline("store", "prune", "--root", tmp_path / "out", "--id", "r3", "--dry-run") == 0
    assert "would forget 1 answers" in capsys.readouterr().out
    assert pipeline("store", "prune", "--root", tmp_path / "out", "--id", "r3") == 0
    assert stored_answers(tmp_path / "out") == had - 1
    assert pipeline("store", "prune", "--root", tmp_path / "out", "--id", "nobody") == 2
    assert pipeline("store", "prune", "--root", tmp_path / "out") == 2
    assert pipeline("store", "stats", "--root", tmp_path / "out") == 0
    assert f"{had - 1:,} answers" in capsys.readouterr().out
