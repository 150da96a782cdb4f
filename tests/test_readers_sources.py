"""Which files are read, in which order."""

import os
from pathlib import Path

import pytest

from pipeline.core.errors import MissingInput, UsageError
from pipeline.core.paths import Paths
from pipeline.tables.sources import find_sources


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in (
        "raw/b.jsonl",
        "raw/a.csv",
        "raw/deep/c.json",
        "raw/README.md",
        "raw/.hidden.jsonl",
        "raw/.cache/d.json",
        "raw/a.csv.dvc",
        "e.json",
    ):
        file = tmp_path / "data" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
    return tmp_path


def names(root: Path, *inputs: str, control: tuple[str, ...] = ()) -> list[str]:
    return [("control:" if source.control else "") + source.name for source in find_sources(inputs, control, Paths(root))]


def test_folders_and_globs_give_sorted_data_files_only(root):
    assert names(root, "data/raw") == ["data/raw/a.csv", "data/raw/b.jsonl", "data/raw/deep/c.json"]
    assert names(root, "data/raw/*") == ["data/raw/a.csv", "data/raw/b.jsonl"]
    assert names(root, "data/**/*.json") == ["data/e.json", "data/raw/deep/c.json"]


def test_files_named_themselves_are_read_whatever_their_name_and_each_once(root):
    assert names(root, "data/raw/README.md", "data/raw/b.jsonl", "data/raw/*") == [
        "data/raw/README.md",
        "data/raw/b.jsonl",
        "data/raw/a.csv",
    ]
    outside = root.parent / "outside.jsonl"
    outside.write_text("{}")
    assert names(root, str(outside)) == [outside.as_posix()]


def test_control_files_come_last_and_their_glob_may_match_nothing(root):
    assert names(root, "data/raw/b.jsonl", control=("data/control/*", "data/e.json")) == ["data/raw/b.jsonl", "control:data/e.json"]
    with pytest.raises(MissingInput, match="nowhere"):
        names(root, "data/raw/b.jsonl", control=("data/nowhere.jsonl",))


@pytest.mark.parametrize("missing", ["data/none.jsonl", "data/none/*", "data/raw/*.parquet"])
def test_an_input_that_leads_nowhere_is_named(root, missing):
    with pytest.raises(MissingInput, match="no such file"):
        names(root, "data/raw", missing)
    with pytest.raises(MissingInput, match="names no file"):
        names(root)


def test_links_neither_repeat_files_nor_lead_in_circles(root):
    for name in ("a loop", "loop"):
        (root / "data/raw/deep" / name).symlink_to("..")
    (root / "data/raw/z.json").symlink_to("b.jsonl")
    (root / "elsewhere").mkdir()
    (root / "elsewhere/f.json").write_text("{}")
    (root / "data/raw/linked").symlink_to(root / "elsewhere")
    assert names(root, "data/raw") == ["data/raw/a.csv", "data/raw/b.jsonl", "data/raw/deep/c.json", "data/raw/linked/f.json"]
    assert names(root, "data/raw/z.json", "data/raw/*.jsonl") == ["data/raw/z.json"]


def test_a_pattern_is_sought_below_a_root_whose_name_looks_like_one(tmp_path):
    for name in ("g[1]", "g1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.json").write_text("{}")
    assert names(tmp_path / "g[1]", "*.json") == ["g[1].json"]


def test_a_name_that_is_not_utf8_is_refused_and_shown_escaped(root):
    (root / os.fsdecode(b"data/raw/x\xff.json")).write_text("{}")
    with pytest.raises(UsageError, match=r"data/raw/x\\udcff\.json: this name is not UTF-8"):
        names(root, "data/raw")
    with pytest.raises(UsageError, match=r"p\\udcff: this name"):
        Paths(root / os.fsdecode(b"p\xff"))
