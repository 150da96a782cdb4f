"""How fast this machine answers."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from pipeline.cli.options import params_options, read_params
from pipeline.cli.plan import prepare
from pipeline.core.params import Params
from pipeline.core.paths import Paths


@click.command()
@params_options
@click.option("--rows", default=32, show_default=True, help="Prompts.")
@click.option("--new-tokens", default=32, show_default=True, help="Tokens of each answer.")
@click.option("--varied", is_flag=True, help="Answers of 4 to 4 x new-tokens instead.")
@click.option("--repeats", default=3, show_default=True, help="Runs in turn; the median counts.")
@click.option("--beside", type=click.Choice(["transformers"]), help="Measure this one in the same run too.")
@click.option("--precisions", is_flag=True, help="Compare float32, bfloat16, int8 and int4 on the prompts of data.inputs instead.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def bench(
    params_file: Path | None,
    overrides: tuple[str, ...],
    rows: int,
    new_tokens: int,
    varied: bool,
    repeats: int,
    beside: str | None,
    precisions: bool,
    as_json: bool,
) -> None:
    """Tokens per second of the engine, from prompt texts to answer texts, beside the machine's ceilings.

    With --precisions: bytes, load, speed, perplexity and agreement with float32 for each precision of model.source.

    \b
    Example:
        python -m pipeline bench --rows 16 --new-tokens 16 --beside transformers
        python -m pipeline bench --precisions -S prompt.chat=false
    """
    from pipeline.model.config import read_config
    from pipeline.model.device import TORCH_DTYPES, pick_device
    from pipeline.model.source import resolve_source
    from pipeline.runners import benchmark

    here = Paths(Path("."))
    params = read_params(params_file, overrides, here.root)
    folder = resolve_source(params.model.source, here)
    if precisions:
        for line in precision_lines(params, here, folder, rows, new_tokens, as_json):
            click.echo(line)
        return
    measures = list(benchmark.ours(folder, params.model))
    if beside:
        dtype = TORCH_DTYPES[read_config(folder).dtype or "float32"] if params.model.dtype == "auto" else TORCH_DTYPES[params.model.dtype]
        measures += benchmark.transformers_generate(folder, dtype)
    work = benchmark.workload(rows, new_tokens, varied)
    results = benchmark.compare(measures, work, repeats)
    about = {
        "machine": machine(),
        "model": params.model.source,
        "workload": {"rows": rows, "new_tokens": new_tokens, "varied": varied},
        "ceilings": benchmark.ceilings(pick_device(params.model.device).type),
        "results": results,
        "peak_rss_bytes": benchmark.peak_rss_bytes(),
    }
    click.echo(json.dumps(about, indent=2) if as_json else "\n".join(lines(about)))


def precision_lines(params: Params, here: Paths, folder: Path, answers: int, new_tokens: int, as_json: bool) -> Iterator[str]:
    """The table of `--precisions`, a line as soon as it is measured."""
    from pipeline.core.manifest import read_table
    from pipeline.runners.precisions import compare_precisions

    with tempfile.TemporaryDirectory(prefix="pipeline-bench-") as temporary:
        paths = Paths(Path(temporary), imports=here.model_imports)
        prepare(params, paths, here)
        rows = read_table(paths.prompts, columns=["ordinal", "token_ids"]).sort_by("ordinal")["token_ids"].to_pylist()
    if not as_json:
        yield about_machine(machine(), params.model.source)
        yield f"{'':<9}{'MiB':>8}{'load s':>8}{'read s':>8}{'peak':>7}{'tokens/s':>10}{'KL':>9}{'top-1':>8}  perplexity"
    for row in compare_precisions(folder, rows, answers=answers, new_tokens=new_tokens, device=params.model.device):
        perplexity = ", ".join(f"{name} {value:.3f}" for name, value in row["perplexity"].items())
        yield (
            json.dumps(row)
            if as_json
            else (
                f"{row['precision']:<9}{row['bytes'] / 2**20:>8.1f}{row['load_s']:>8.2f}{row['read_s']:>8.2f}{row['load_peak']:>7.2f}"
                f"{row['tokens_per_s']:>10,.0f}{row['kl']:>9.4f}{row['top1']:>8.1%}  {perplexity} ({row['scored_tokens']:,} tokens)"
            )
        )


def about_machine(host: dict[str, Any], model: str) -> str:
    return f"{host['processor']}, {host['threads']} threads, torch {host['torch']}, {host['day']}; {model}"


def machine() -> dict[str, Any]:
    """Hardware, versions and day, as every figure should carry them."""
    import torch

    from pipeline.runners.run_record import host

    return host() | {"threads": torch.get_num_threads(), "day": time.strftime("%Y-%m-%d")}


def lines(about: dict[str, Any]) -> list[str]:
    """A small table for people."""
    host, ceilings = about["machine"], about["ceilings"]
    first = about["results"][0]["seconds"]
    out = [
        about_machine(host, about["model"]),
        f"memory reads {ceilings['memory_read_bytes_per_s'] / 1e9:.1f} GB/s, matrices "
        f"{ceilings['float32_flop_per_s'] / 1e12:.2f} (float32), {ceilings['bfloat16_flop_per_s'] / 1e12:.2f} (bfloat16) TFLOP/s",
        f"{'':<34}{'seconds':>9}{'tokens/s':>10}{'load s':>8}{'first token s':>15}",
    ]
    for result in about["results"]:
        token = f"{result['first_token_s']:.2f}" if "first_token_s" in result else "-"
        times = "" if result["seconds"] == first else f"   {result['seconds'] / first:.2f} times as long"
        out.append(
            f"{result['who']:<34}{result['seconds']:>9.2f}{result['new_tokens_per_s']:>10,.0f}{result['load_s']:>8.1f}{token:>15}{times}"
        )
    return out
