"""Commands: each is listed, starts without torch, helps with an example that parses, and says what is wrong in a line."""

import json
import os
import re
import shlex
import subprocess
import sys

import click
import pytest
from chains import write_rows
from projects import PROJECT
from test_readme import parse

from pipeline.cli.main import COMMANDS, cli, main
from pipeline.cli.night import state_lines

CONTRACT = {
    *("run", "score", "night", "query", "verify", "trace", "compare", "accept", "plan", "status", "doctor", "checkpoint"),
    *("store", "label", "bench", "model", "validate", "preprocess", "bucket", "generate", "evaluate", "gate", "report", "publish"),
}


def commands():
    """(words, command) of all commands, those of groups too."""
    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        if isinstance(command, click.Group):
            yield from (((name, sub), command.get_command(context, sub)) for sub in command.list_commands(context))
        else:
            yield (name,), command


def test_the_contract_names_are_all_there():
    assert set(COMMANDS) >= CONTRACT


@pytest.mark.parametrize(("words", "command"), list(commands()), ids=lambda value: " ".join(value) if isinstance(value, tuple) else "")
def test_help_ends_with_an_example_that_parses(words, command):
    text = command.get_help(click.Context(command, info_name=" ".join(words)))
    examples = re.findall(r"^\s+(?:python -m )?pipeline (.*)$", re.split(r"Examples?:", text)[-1].split("Options:")[0], re.MULTILINE)
    assert examples, f"pipeline {' '.join(words)}: no example in its help"
    for example in examples:
        parse(shlex.split(example))


@pytest.mark.parametrize("words", [["run", "a\udcff", "--out", "b"], ["trace", "\udcff"], ["query", "rejects", "--root", "\udcff"]])
def test_words_that_are_not_utf8_are_wrong_usage(words, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert "\\udcff: this name is not UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize(("code", "told"), [(0, False), (1, False), (130, True)])
def test_the_last_stage_is_told_only_of_a_run_that_broke_off(code, told):
    progress = {"stage": "evaluate", "state": "finished", "done": 5, "total": 5, "unit": "rows", "alive": False}
    last = {"command": "night", "started": "2026-12-01T02:00:00", "verdict": "green", "exit_code": code, "wall_s": 9.0}
    text = "\n".join(state_lines({"night": {"state": "free"}, "progress": progress, "last_run": last}))
    assert ("last stage: evaluate" in text) == told and "last run: night" in text


def test_help_and_status_load_no_torch():
    code = "import sys; from pipeline.cli.main import main\ntry: main(sys.argv[1:])\nexcept SystemExit: pass\n"
    code += "assert 'torch' not in sys.modules"
    for args in (["--help"], ["status"], ["run", "--help"]):
        subprocess.run([sys.executable, "-c", code, *args], cwd=PROJECT, check=True, capture_output=True)


@pytest.mark.parametrize(
    "redirected",
    ["| true", "| head -c 1", "2>&-", ">&-", ">/dev/full", "2>/dev/full", ">/dev/full 2>&1", ">&- 2>&-"],
)
def test_work_whose_words_nobody_reads_is_done_all_the_same(tmp_path, redirected):
    file = write_rows(tmp_path / "in.jsonl", [{"id": "a", "text": "say", "answer": "cat", "reference": "cat"}])
    command = f"{shlex.quote(sys.executable)} -m pipeline score in.jsonl --out out -S data.completion_field=answer"
    env = {**os.environ, "PYTHONPATH": str(PROJECT)}
    done = subprocess.run(["bash", "-o", "pipefail", "-c", f"{command} {redirected}"], cwd=file.parent, env=env, stdout=subprocess.DEVNULL)
    assert done.returncode == 0
    history = (tmp_path / "out/reports/runs/history.jsonl").read_text()
    assert json.loads(history)["exit_code"] == 0
    assert (tmp_path / "out/data/results/manifest.json").is_file()
