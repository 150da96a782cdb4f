"""The click group. Commands are imported only when called, so that --help and queries never load torch."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import Any

import click

from pipeline import __version__
from pipeline.cli.streams import tolerant
from pipeline.cli.terminal import shown
from pipeline.core.errors import BUG_EXIT_CODE, PipelineError, outcome
from pipeline.core.logging import LEVEL_VARIABLE, LEVELS
from pipeline.core.paths import check_name

# name: (module:attribute, one line of help); a test keeps both true
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("pipeline.cli.run:run", "The whole chain on any files, without DVC or Git."),
    "score": ("pipeline.cli.run:score", "Score answers made elsewhere; no model is loaded."),
    "model": ("pipeline.cli.stages:model", "Stage: find and check the checkpoint."),
    "validate": ("pipeline.cli.stages:validate", "Stage: input files to rows."),
    "preprocess": ("pipeline.cli.stages:preprocess", "Stage: clean the rows."),
    "bucket": ("pipeline.cli.stages:bucket", "Stage: templates, tokens, order by length."),
    "generate": ("pipeline.cli.stages:generate", "Stage: answer every prompt."),
    "evaluate": ("pipeline.cli.stages:evaluate", "Stage: score the answers."),
    "gate": ("pipeline.cli.stages:gate", "Stage: judge the scores."),
    "report": ("pipeline.cli.stages:report", "Stage: bad cases and the report."),
    "publish": ("pipeline.cli.stages:publish", "Stage: results and their manifest."),
    "query": ("pipeline.cli.query:query", "DuckDB over all tables; named queries."),
    "verify": ("pipeline.cli.verify:verify", "Hash again all that the manifests name."),
    "trace": ("pipeline.cli.trace:trace", "One row's whole life; replay it alone."),
    "compare": ("pipeline.cli.compare:compare", "Two runs: which rows changed, why, better or worse."),
    "store": ("pipeline.cli.store:store", "The completion store: stats and prune."),
    "night": ("pipeline.cli.night:night", "What cron calls: dvc repro, the record, the night page, a word when red."),
    "checkpoint": ("pipeline.cli.checkpoint:checkpoint", "Bring, show and shrink checkpoints."),
    "status": ("pipeline.cli.night:status", "What runs now, how far it is, and how the last run ended."),
    "plan": ("pipeline.cli.plan:plan", "Before the night: rows, tokens, padding, memory, time, and what DVC would run."),
    "bench": ("pipeline.cli.bench:bench", "Tokens per second on this machine, beside its ceilings and its peers."),
    "doctor": ("pipeline.cli.doctor:doctor", "What is wrong with this machine or this project."),
    "label": ("pipeline.cli.label:label", "Bad cases out to people, their verdicts back in."),
    "accept": ("pipeline.cli.accept:accept", "Make this run's control-set scores the baseline of the gate."),
}


# Commands that are called for what they leave in files: what they print may be lost.
WORK = {"run", "score", "night", "model", "validate", "preprocess", "bucket", "generate", "evaluate", "gate", "report", "publish"}


class LazyGroup(click.Group):
    """A group whose commands live in modules that are imported on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__)
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.option("--log-level", type=click.Choice(LEVELS), help="What reaches logs/ and the terminal (default: info, warning).")
@click.pass_context
def cli(ctx: click.Context, debug: bool, log_level: str | None) -> None:
    """Batch inference every night: rows in; answers, scores, bad cases and a manifest out.

    \b
    Example:
        python -m pipeline run questions.jsonl --out /tmp/answers
    """
    ctx.obj = {"debug": debug}
    if ctx.invoked_subcommand in WORK:
        ctx.with_resource(tolerant("stdout"))
    if log_level:
        os.environ[LEVEL_VARIABLE] = log_level  # the stages under DVC inherit it


def main(args: list[str] | None = None) -> None:
    """Run the group and turn every outcome into the exit codes of the contract."""
    words = args if args is not None else sys.argv[1:]
    debug = "--debug" in words
    with tolerant("stderr"):
        try:
            for word in words:
                check_name(word)
            code: Any = cli.main(args=args, prog_name="pipeline", standalone_mode=False)
            sys.exit(code if isinstance(code, int) else 0)
        except SystemExit:
            raise
        except BaseException as error:
            if debug:
                traceback.print_exc()
            sys.exit(_report(error))


def _report(error: BaseException) -> int:
    """Say what went wrong in a readable line and return the exit code."""
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, click.ClickException):
        error.show()
        return 2
    if isinstance(error, click.Abort):
        error = KeyboardInterrupt()
    if isinstance(error, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    code, words = outcome(error)
    if code == BUG_EXIT_CODE and not isinstance(error, PipelineError):
        words = f"{type(error).__name__}: {error} (a bug; --debug shows where)"
    click.echo(f"error: {shown(words)}", err=True)
    return code
