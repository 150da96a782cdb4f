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
from pipeline.core.errors import UsageError
from pipeline.core.params import Params
from pipeline.core.paths import Paths


@click.command()
@params_options
@click.option("--rows", default=32, show_default=True, help="Prompts.")
@click.option("--new-tokens", default=32, show_default=True, help="Tokens of each answer.")
@click.option("--varied", is_flag=True, help="Answers of 4 to 4 x new-tokens instead.")
@click.option("--workload", "file", type=click.Path(dir_okay=False, exists=True, path_type=Path),
              help="JSONL with text, max_new_tokens, ignore_eos instead of prompts made here.")  # fmt: skip
@click.option("--repeats", default=3, show_default=True, help="Runs in turn; the median counts.")
@click.option("--beside", multiple=True, help="Measure this one in turn with it too; may be given again: "
              "static (this engine, 64 rows at a time), no-cache, transformers, transformers-continuous, openvino.")  # fmt: skip
@click.option("--openvino-model", type=click.Path(path_type=Path), help="The checkpoint as exported for OpenVINO.")
@click.option("--precisions", is_flag=True, help="Compare float32, bfloat16, int8 and int4 on the prompts of data.inputs instead.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def bench(
    params_file: Path | None,
    overrides: tuple[str, ...],
    rows: int,
    new_tokens: int,
    varied: bool,
    file: Path | None,
    repeats: int,
    beside: tuple[str, ...],
    openvino_model: Path | None,
    precisions: bool,
    as_json: bool,
) -> None:
    """Tokens per second of the engine, from prompt texts to answer texts, beside the machine's ceilings and other engines.

    With --precisions: bytes, load, speed, perplexity and agreement with float32 for each precision of model.source.

    \b
    Example:
        python -m pipeline bench --rows 16 --new-tokens 16 --beside transformers
        python -m pipeline bench --precisions -S prompt.chat=false
    """
    from pipeline.model.device import pick_device
    from pipeline.model.source import resolve_source
    from pipeline.model.vocabulary import stop_token_ids
    from pipeline.runners import benchmark, contenders

    here = Paths(Path("."))
    params = read_params(params_file, overrides, here.root)
    for name in beside:
        if name not in contenders.CONTENDERS:
            raise UsageError(f"--beside {name}: not one of {', '.join(list(contenders.CONTENDERS)[1:])}")
        contenders.check_installed(name, openvino_model)
    folder = resolve_source(params.model.source, here).absolute()
    if precisions:
        for line in precision_lines(params, here, folder, rows, new_tokens, as_json):
            click.echo(line)
        return
    work = contenders.read_workload(file) if file else benchmark.workload(rows, new_tokens, varied)
    stops = tuple(token for token, _ in stop_token_ids(folder))
    setup = contenders.Setup(folder, params.model, stops, openvino_model)
    about = {
        "machine": machine(),
        "model": params.model.source,
        "dtype": setup.dtype,
        "workload": {"file": file.name if file else None, "rows": len(work.prompts), "new_tokens": sum(work.new_tokens)},
        "ceilings": benchmark.ceilings(pick_device(params.model.device).type),
        "results": benchmark.compare([contenders.THIS, *beside], setup, work, repeats),
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
    return f"{host['card'] or host['processor']}, {host['threads']} threads, torch {host['torch']}, {host['day']}; {model}"


def machine() -> dict[str, Any]:
    """Hardware, versions and day, as every figure should carry them."""
    import torch

    from pipeline.runners.run_record import host

    card = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return host() | {"card": card, "threads": torch.get_num_threads(), "day": time.strftime("%Y-%m-%d")}


def lines(about: dict[str, Any]) -> list[str]:
    """A Markdown table that people can read as it is."""
    host, ceilings, rows = about["machine"], about["ceilings"], about["workload"]["rows"]
    first = about["results"][0]["seconds"]
    out = [
        about_machine(host, f"{about['model']}, {about['dtype']}"),
        f"memory reads {ceilings['memory_read_bytes_per_s'] / 1e9:.1f} GB/s, matrices "
        f"{ceilings['float32_flop_per_s'] / 1e12:.2f} (float32), {ceilings['bfloat16_flop_per_s'] / 1e12:.2f} (bfloat16) TFLOP/s",
        f"{rows} rows, {about['workload']['new_tokens']} new tokens at most",
        "",
        "| engine                  | seconds | times | tokens/s | load s | peak GB | same answers |",
        "|-------------------------|--------:|------:|---------:|-------:|--------:|-------------:|",
    ]
    for result in about["results"]:
        same = f"{result['same_answers']} of {rows}"
        out.append(
            f"| {result['who']:<23} | {result['seconds']:>7.2f} | {result['seconds'] / first:>5.2f} | {result['new_tokens_per_s']:>8,.0f} "
            f"| {result['load_s']:>6.1f} | {result['peak_rss_bytes'] / 1e9:>7.2f} | {same:>12} |"
        )
    return out
