"""Helpers of the tests that run the chain: rows of our own, the command line in this process, tables as lists."""

from __future__ import annotations

import json
from pathlib import Path

from pipeline.cli.main import main
from pipeline.core.manifest import read_table

WORDS = "river stone lamp paper cloud window green seven market quiet engine bread 山 水 火 月"
THINGS = WORDS.split()
BAD_LINES = '{"id": "bad1", "text": ""}\n{"id": "bad2"}\n{"id": "bad3", "text": "x"\n'


def rows(count, start=0):
    """Rows with ids, tasks and references; lengths differ, every seventh repeats an earlier text."""
    made = []
    for i in range(start, start + count):
        n = i - 5 if i % 7 == 6 else i
        words = " ".join(THINGS[(n * k) % len(THINGS)] for k in range(1, 2 + n * 3 % 11))
        made.append({"id": f"r{i}", "text": f"Say {n} about {words}", "reference": str(n), "task": "odd" if i % 2 else "even"})
    return made


def write_rows(file, data):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in data), encoding="utf-8")
    return file


def pipeline(*args):
    """Run a command in this process; returns its exit code."""
    try:
        main([str(arg) for arg in args])
    except SystemExit as end:
        return int(end.code or 0)
    raise AssertionError("main always exits")


def run_chain(inputs, out, checkpoint, *options, tokens=8):
    """`pipeline run` with a small model and few tokens; returns the exit code."""
    usual = (f"generate.max_new_tokens={tokens}", "generate.kv_memory=8000000", "evaluate.bootstrap=10")
    settings = [item for option in (*usual, *options) for item in ("-S", option)]
    return pipeline("run", inputs, "--out", out, "--model", checkpoint, *settings)


def results(out):
    return read_table(Path(out) / "data/results", "part").to_pylist()


def tree(folder):
    """Every file below a folder with its bytes."""
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in sorted(Path(folder).rglob("*")) if file.is_file()}


def manifest(out, table="results"):
    return json.loads((Path(out) / "data" / table / "manifest.json").read_text(encoding="utf-8"))


def stored_answers(out):
    """Answers in the store of an output folder, counted by its records."""
    commits = (Path(out) / ".work/completions/commits").glob("*.json")
    return sum(json.loads(file.read_text())["rows"] for file in commits)
