"""The shared preprocessor: one thing for training, service and the night, kept beside a checkpoint."""

import json
import re
import shutil

import pytest
from text_rows import validated, write_model, write_validated

from pipeline.core.errors import MissingInput, ModelError
from pipeline.core.hashing import PACKAGE
from pipeline.core.manifest import read_manifest
from pipeline.core.params import Params, PreprocessParams, PromptParams
from pipeline.stages import bucket, preprocess
from pipeline.text import golden
from pipeline.text.preprocess import Preprocessor
from pipeline.text.steps import STEPS


@pytest.fixture
def checkpoint(tiny_checkpoint, tmp_path):
    return shutil.copytree(tiny_checkpoint, tmp_path / "checkpoint")


def test_fingerprints_follow_params_and_step_versions(monkeypatch):
    plain = Preprocessor(PreprocessParams())
    assert plain.fingerprint == Preprocessor(PreprocessParams()).fingerprint
    options = Preprocessor(PreprocessParams(steps=({"normalize_unicode": {"form": "NFKC"}},)))
    order = Preprocessor(PreprocessParams(steps=tuple(reversed(PreprocessParams().steps))))
    dedup = Preprocessor(PreprocessParams(dedup="exact"))
    assert len({p.fingerprint for p in (plain, options, order, dedup)}) == 4
    assert dedup.row_fingerprint == plain.row_fingerprint != order.row_fingerprint
    spelled_out = ("fix_mojibake", {"normalize_unicode": {"form": "NFC", "fold_width": True}}, *PreprocessParams().steps[2:])
    assert Preprocessor(PreprocessParams(steps=spelled_out)).fingerprint == plain.fingerprint


def test_what_was_saved_is_what_is_loaded(checkpoint):
    saved = Preprocessor(PreprocessParams(min_chars=3, dedup="near"))
    saved.save(checkpoint, PromptParams(system="Be brief."))
    loaded = Preprocessor.load(checkpoint)
    assert loaded.fingerprint == saved.fingerprint
    rows = golden.rows_table([{"text": " a  long  text "}, {"text": "ab"}, {"messages": [{"role": "user", "content": "ＡＢＣ"}]}])
    for ours, theirs in zip(loaded.apply(rows), saved.apply(rows)):
        assert ours.equals(theirs)
    data = json.loads((checkpoint / golden.FILE).read_text())
    assert data["golden"][0]["prompt"].startswith("<|im_start|>system\nBe brief.")
    assert all(vector["token_ids"] for vector in data["golden"])
    assert data["golden"][3]["clean"] == {"text": "The mill & the river"}


def test_golden_vectors_that_no_longer_come_out_are_refused(checkpoint):
    Preprocessor(PreprocessParams()).save(checkpoint)
    file = checkpoint / golden.FILE
    data = json.loads(file.read_text())
    for change, words in [
        (lambda d: d["golden"][1]["clean"].update(text="other"), "golden row 1 gives another clean"),
        (lambda d: d["golden"][2].update(token_ids=[1, 2]), "golden row 2 gives another token_ids"),
        (lambda d: d.update(fingerprint="0" * 64), "fingerprint"),
        (lambda d: d.update(tokenizer_digest="0" * 64), "tokenizer changed"),
        (lambda d: d.update(format="other/9"), "format"),
    ]:
        altered = json.loads(json.dumps(data))
        change(altered)
        file.write_text(json.dumps(altered))
        with pytest.raises(ModelError, match=words):
            Preprocessor.load(checkpoint)
    file.write_text("{")
    with pytest.raises(ModelError, match="damaged"):
        Preprocessor.load(checkpoint)
    file.unlink()
    with pytest.raises(MissingInput):
        Preprocessor.load(checkpoint)


def test_a_changed_template_is_noticed(checkpoint):
    Preprocessor(PreprocessParams()).save(checkpoint)
    (checkpoint / "chat_template.jinja").write_text("{{ messages[-1].content }}")
    with pytest.raises(ModelError, match="template changed"):
        Preprocessor.load(checkpoint)


def test_the_night_refuses_or_warns_when_the_checkpoint_carries_another_preprocessor(checkpoint, tmp_path, capsys):
    paths = write_validated(tmp_path / "root", ["a question"])
    write_model(paths, checkpoint)
    preprocess.run(Params(), paths)
    assert bucket.run(Params(), paths)["warnings"] == []
    Preprocessor(PreprocessParams(dedup="exact")).save(checkpoint)
    assert bucket.run(Params(), paths)["warnings"] == []
    Preprocessor(PreprocessParams(steps=("squeeze_whitespace",))).save(checkpoint)
    with pytest.raises(ModelError, match=r"on_other_preprocessing"):
        bucket.run(Params(), paths)
    manifest = bucket.run(Params(prompt=PromptParams(on_other_preprocessing="warn")), paths)
    assert len(manifest["warnings"]) == 1
    assert "cleaned by" in capsys.readouterr().err
    assert manifest["fingerprint"] == read_manifest(paths.clean)["fingerprint"]


def test_messages_keep_their_roles_and_all_other_keys():
    messages = [
        {"role": "user", "name": "ann", "content": [{"type": "text", "text": "a  b"}, {"type": "image_url", "image_url": {"url": "x  y"}}]},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{ }"}}]},
        {"role": "tool", "content": "ｏｋ"},
    ]
    clean, _ = Preprocessor(PreprocessParams()).apply(validated([messages, "text"]))
    got = json.loads(clean["messages"][0].as_py())
    assert got[0] == messages[0] | {"content": [{"type": "text", "text": "a b"}, messages[0]["content"][1]]}
    assert got[1] == messages[1]
    assert got[2] == {"role": "tool", "content": "ok"}
    assert clean["chars_in"].to_pylist() == [6, 4]
    assert clean["text"].to_pylist() == [None, "text"]


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("The baker opens the window before seven in the morning.", "en"),
        ("今天的面包是谁烤的？", "zh"),
        ("おはようございます、元気ですか", "ja"),
        ("좋은 아침입니다", "ko"),
        ("Le boulanger ouvre la fenêtre avant sept heures.", "fr"),
        ("把GPU报告发给老王 2 份", "zh"),
        ("Bäcker öffnen das Fenster vor sieben Uhr morgens.", "de"),
        ("", "und"),
        ("12345 !!!", "und"),
        ("👩‍🚀", "und"),
    ],
)
def test_languages_are_tagged(text, language):
    clean, _ = Preprocessor(PreprocessParams(min_chars=0)).apply(validated([text]))
    assert clean["language"][0].as_py() == language


def test_lengths_are_limited_after_cleaning():
    clean, rejected = Preprocessor(PreprocessParams(min_chars=3, max_chars=5)).apply(
        validated(["ab ", "abc", "abcde", "abcdef", "<p>abcde</p>"])
    )
    assert clean["ordinal"].to_pylist() == [1, 2, 4]
    assert rejected["reason"].to_pylist() == ["too_short", "too_long"]


def test_the_training_side_of_the_documentation_runs(checkpoint, monkeypatch):
    text = (PACKAGE.parent / "docs/preprocessing.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(checkpoint.parent)
    names = {}
    exec(code, names)
    assert names["train_on"] == ["How many stones?"]
    assert names["served"].fingerprint == names["preprocessor"].fingerprint
    assert (checkpoint / golden.FILE).is_file()


def test_the_documentation_names_every_step_and_reason():
    text = (PACKAGE.parent / "docs/preprocessing.md").read_text(encoding="utf-8")
    sources = "".join((PACKAGE / "text" / f"{name}.py").read_text(encoding="utf-8") for name in ("prompt", "conversation", "preprocess"))
    reasons = set(re.findall(r'(?:Refusal|BadTurns|return)\(?\s*"([a-z]+_[a-z_]+)",', sources))
    assert len(reasons) >= 7
    assert {name for name in (*STEPS, *reasons) if f"`{name}`" not in text} == set()
