"""The README cannot drift: its commands parse, its files exist, its marked blocks run on a copy of the project."""

import re
import shlex

import click
import pytest
from projects import PROJECT, call

from pipeline.cli.main import cli

TEXT = (PROJECT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"(?:<!-- (?P<mark>run|parse|python) -->\n)?```(?P<kind>\w+)\n(?P<body>.*?)```", re.DOTALL)
BLOCKS = [match.groupdict() for match in BLOCK.finditer(TEXT)]
SHELL = [line.split(" #")[0].strip() for block in BLOCKS if block["kind"] == "sh" for line in block["body"].splitlines()]


def pipeline_calls(line):
    """Arguments of each call of the pipeline in a line of shell."""
    for part in re.split(r"&&|\|\|", line) if "pipeline" in line else ():
        words = shlex.split(part)
        if words[:1] == ["pipeline"]:
            yield words[1:]
        elif "-m" in words and words[words.index("-m") + 1 :][:1] == ["pipeline"]:
            yield words[words.index("pipeline") + 1 :]


def parse(args):
    """Let click read the arguments without running the command. Raises click.UsageError."""
    command, words = cli, list(args)
    context = click.Context(cli, info_name="pipeline")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name = words.pop(0)
        command = command.get_command(context, name)
        assert command is not None, f"no command {name}"
        context = click.Context(command, parent=context, info_name=name)
    options, _, _ = command.make_parser(context).parse_args(words)
    for parameter in command.params:
        if isinstance(parameter, click.Argument) and parameter.required:
            assert options.get(parameter.name), f"{' '.join(args)}: {parameter.name} is missing"


@pytest.mark.parametrize("args", [args for line in SHELL for args in pipeline_calls(line)], ids=" ".join)
def test_commands_of_the_readme_parse(args):
    parse(args)


def test_a_wrong_command_would_be_noticed():
    with pytest.raises(click.UsageError):
        parse(["run", "a.jsonl", "--oot", "b"])
    with pytest.raises(AssertionError):
        parse(["rum", "a.jsonl"])
    assert len([line for line in SHELL if line.startswith("pipeline")]) > 20


def test_make_targets_and_files_of_the_readme_exist():
    targets = set(re.findall(r"^([\w.$()/-]+):", (PROJECT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for line in SHELL:
        for target in re.findall(r"\bmake (\S+)", line):
            assert target in targets or target.replace(".venv", "$(VENV)") in targets, line
    for name in re.findall(r"\]\(([^):]+)\)", TEXT):
        assert (PROJECT / name).exists(), name
    for name in re.findall(r"`((?:pipeline|tests|docs|data/raw|data/control)/[\w./-]+\.\w+)`", TEXT):
        assert (PROJECT / name).exists() or "mine" in name, name


def test_every_section_of_params_is_in_the_table():
    from pipeline.core.params import Params

    for section in Params.model_fields:
        assert f"`{section}`" in TEXT, section


@pytest.mark.slow
@pytest.mark.parametrize("block", [b["body"] for b in BLOCKS if b["mark"] == "run"], ids=lambda body: body.split("\n")[0][:40])
def test_marked_shell_blocks_run(block, night_project):
    assert call(night_project, shell=block.replace("pipeline query", "python -m pipeline query"))


@pytest.mark.slow
@pytest.mark.parametrize("block", [b["body"] for b in BLOCKS if b["mark"] == "python"], ids=lambda body: body.split("\n")[0][:40])
def test_marked_python_blocks_run(block, night_project):
    assert call(night_project, "python", "-c", block)
