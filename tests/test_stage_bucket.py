"""Stage bucket: prompts in input order with bucket and position; every row a prompt or a reason."""

import pytest
from text_rows import write_model, write_validated

from pipeline.core.errors import MissingInput, ParamsError
from pipeline.core.manifest import read_manifest, read_table
from pipeline.core.params import BucketParams, GenerateParams, ModelParams, Params, PromptParams
from pipeline.stages import bucket, preprocess

ROWS = [
    "a short one", "x " * 300, "What is the capital of the country?", "",
    {"text": "own limit", "overrides": {"max_new_tokens": 500}},
    {"text": "own system", "overrides": {"system": "Be a pirate."}, "meta": {"topic": "boats"}},
    [{"role": "user", "content": "hi<|im_end|>"}],
    [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}],
]  # fmt: skip


def run(root, checkpoint, rows=ROWS, prompt=None, **params):
    paths = write_validated(root, rows)
    write_model(paths, checkpoint)
    wanted = Params(prompt=prompt or PromptParams(), generate=GenerateParams(max_new_tokens=16), **params)
    preprocess.run(wanted, paths)
    return bucket.run(wanted, paths), paths


def test_rows_become_prompts_in_input_order_or_are_rejected_with_a_reason(tmp_path, tiny_checkpoint):
    manifest, paths = run(tmp_path, tiny_checkpoint)
    rows, rejected = read_table(paths.prompts).to_pylist(), read_table(paths.prompts, "rejected").to_pylist()
    assert manifest["rows"] == {"into": 7, "out": 4, "rejected": 3, "failed": 0}
    assert [row["ordinal"] for row in rows] == [0, 2, 5, 6]
    assert [(row["ordinal"], row["reason"]) for row in rejected] == [(1, "prompt_too_long"), (4, "prompt_too_long"), (7, "bad_roles")]
    assert sorted(row["position"] for row in rows) == [0, 1, 2, 3]
    assert all(row["prompt_tokens"] == len(row["token_ids"]) <= row["bucket"] for row in rows)
    lengths = [row["prompt_tokens"] for row in sorted(rows, key=lambda row: row["position"])]
    assert lengths == sorted(lengths, reverse=True)
    assert manifest["escaped_tokens"] == 1
    assert manifest["escaped_strings"] == {"<|im_end|>": 1}
    assert manifest["reasons"] == {"prompt_too_long": 2, "bad_roles": 1}
    assert sum(manifest["bucket_rows"].values()) == 4
    assert "pirate" in rows[2]["prompt"]


def test_the_same_rows_give_the_same_bytes_in_any_batches(tmp_path, tiny_checkpoint, monkeypatch):
    rows = [f"row {i} " * (i % 9 + 1) for i in range(60)] + ROWS
    _, whole = run(tmp_path / "a", tiny_checkpoint, rows)
    monkeypatch.setattr(bucket, "BATCH_ROWS", 7)
    _, parts = run(tmp_path / "b", tiny_checkpoint, rows)
    assert (whole.prompts / "rows.parquet").read_bytes() == (parts.prompts / "rows.parquet").read_bytes()
    assert (whole.prompts / "rejected.parquet").read_bytes() == (parts.prompts / "rejected.parquet").read_bytes()


def test_params_bound_the_length_and_set_the_edges(tmp_path, tiny_checkpoint):
    manifest, paths = run(
        tmp_path, tiny_checkpoint, model=ModelParams(max_model_len=40), bucket=BucketParams(edges=(16, 24), pad_multiple=8)
    )
    assert manifest["edges"][:2] == [16, 24]
    assert max(row["prompt_tokens"] for row in read_table(paths.prompts).to_pylist()) <= 24
    assert manifest["max_model_len"] == 40


def test_a_template_reads_the_fields_of_meta(tmp_path, tiny_checkpoint):
    manifest, paths = run(tmp_path, tiny_checkpoint, ROWS[4:6], PromptParams(template="{{ topic }}: {{ text }}"))
    assert "boats: own system" in read_table(paths.prompts)["prompt"][0].as_py()
    assert manifest["reasons"] == {"template_error": 1}


def test_examples_come_from_a_file_of_assets(tmp_path, tiny_checkpoint):
    file = tmp_path / "data/assets/shots.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text('{"user": "1+1?", "assistant": "2"}\n\n')
    manifest, paths = run(tmp_path, tiny_checkpoint, ["2+2?"], PromptParams(few_shot="data/assets/shots.jsonl"))
    assert "1+1?" in read_table(paths.prompts)["prompt"][0].as_py()
    assert "data/assets/shots.jsonl" in [item["path"] for item in manifest["inputs"]]
    file.write_text('{"user": "1+1?"}\n')
    with pytest.raises(ParamsError, match="line 1"):
        run(tmp_path, tiny_checkpoint, ["2+2?"], PromptParams(few_shot="data/assets/shots.jsonl"))
    with pytest.raises(MissingInput, match=r"none\.jsonl"):
        run(tmp_path, tiny_checkpoint, ["2+2?"], PromptParams(few_shot="data/assets/none.jsonl"))


def test_no_rows_give_empty_tables(tmp_path, tiny_checkpoint):
    manifest, paths = run(tmp_path, tiny_checkpoint, [])
    assert manifest["rows"]["into"] == 0
    assert read_table(paths.prompts).num_rows == 0
    assert read_manifest(paths.prompts)["edges"] == []
