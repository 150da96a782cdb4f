"""Kill the pipeline with SIGKILL at random moments, go on by the same command, compare with a run that nobody disturbed.

By hand: PYTHONPATH=. python tests/kill_harness.py --kills 50      on a tiny random model, `pipeline run`
         ... --kills 10 --dvc                                      `dvc repro` in a project of its own
         ... --kills 5 --model DIR --rows 40                       on another checkpoint
A small version of it is tests/test_kill.py.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from chains import manifest, results, rows, tree, write_rows
from checkpoints import write_tiny_llama
from projects import environment

HOUSE = Path(__file__).resolve().parents[1]
EVERY_S = 0.3  # generate.checkpoint_every_s
WHILE_GENERATING = 0.6  # share of the kills that wait for the first token


@dataclass
class Project:
    """One way of running: a command, a folder it runs in, and the root its tables lie in."""

    command: list[str]
    folder: Path
    root: Path
    env: dict[str, str] = field(default_factory=dict)

    def start(self) -> subprocess.Popen[bytes]:
        path = f"{HOUSE / 'tests/token_log'}:{self.env.get('PYTHONPATH', HOUSE)}"
        env = {**environment(), **self.env, "PYTHONPATH": path, "TOKEN_LOG": str(self.folder / "tokens.log")}
        with open(self.folder / "log.txt", "ab") as log:
            return subprocess.Popen(self.command, cwd=self.folder, env=env, stdout=log, stderr=log, start_new_session=True)

    def finish(self) -> None:
        """Run to the end; anything but exit code 0 is told with the last words of the log."""
        code = self.start().wait()
        if code:
            sys.exit(f"{' '.join(self.command)} ended with {code}:\n{(self.folder / 'log.txt').read_text()[-1500:]}")


@dataclass
class Outcome:
    """landed: stage each kill hit. stored, needed: tokens in the store after all kills, and of the undisturbed run.

    lost_tokens, lost_s: by kill that met generation, tokens drawn that the store did not have, and how long drawing them took.
    """

    kills: int
    landed: dict[str, int]
    lost_tokens: list[int]
    lost_s: list[float]
    equal: bool
    verified: bool
    stored: int
    needed: int


def local_project(folder: Path, checkpoint: Path, row_count: int, tokens: int, every_s: float) -> Project:
    """`pipeline run` into folder/out."""
    file = write_rows(folder / "in.jsonl", rows(row_count))
    settings = (f"generate.max_new_tokens={tokens}", "generate.max_running_rows=4", f"generate.checkpoint_every_s={every_s}",
                "generate.kv_memory=64000000", "evaluate.bootstrap=50")  # fmt: skip
    options = [item for setting in settings for item in ("-S", setting)]
    command = [sys.executable, "-m", "pipeline", "run", str(file), "--out", "out", "--model", str(checkpoint), *options]
    return Project(command, folder, folder / "out")


def dvc_project(folder: Path, checkpoint: Path, row_count: int, tokens: int, every_s: float) -> Project:
    """`dvc repro` in a copy of this house without Git, on rows of our own."""
    for name in ("pipeline", "dvc.yaml", ".dvcignore"):
        source = HOUSE / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.is_file():
            shutil.copyfile(source, folder / name)
    write_rows(folder / "data/raw/in.jsonl", rows(row_count))
    write_rows(folder / "data/control/control.jsonl", rows(4, start=1000))
    (folder / "data/assets").mkdir(parents=True)
    (folder / "data/assets/note.txt").write_text("files that stages read\n")
    (folder / "reports").mkdir()
    (folder / "reports/baseline.json").write_text("{}\n")
    generate = f"{{max_new_tokens: {tokens}, max_running_rows: 4, checkpoint_every_s: {every_s}, kv_memory: 64000000}}"
    (folder / "params.yaml").write_text(full_params({"model": {"source": str(checkpoint)}}, generate))
    env = {"PYTHONPATH": str(folder)}
    subprocess.run([sys.executable, "-m", "dvc", "init", "--no-scm", "-q"], cwd=folder, check=True, env={**os.environ, **env})
    return Project([sys.executable, "-m", "dvc", "repro"], folder, folder, env)


def full_params(changes: dict[str, dict[str, str]], generate: str) -> str:
    """The built-in params as YAML with every key that dvc.yaml may name, and the given changes."""
    from pipeline.core.params import Params, read_yaml

    data = json.loads(Params().model_dump_json())
    for section, values in changes.items():
        data[section] |= values
    data["generate"] |= read_yaml(generate, "generate")
    data["evaluate"]["bootstrap"] = 50
    return json.dumps(data, indent=1)


def disturb(project: Project, kills: int, seed: int, length_s: float, generating_s: float) -> Outcome:
    """Kill the process group `kills` times, each at a random moment; notes where they landed and what they cost.

    length_s, generating_s: how long a whole run took, and generation in it.
    """
    rnd = random.Random(seed)
    outcome = Outcome(kills, {}, [], [], False, False, 0, 0)
    done = 0
    while done < kills:
        before, drawn_before, held_before = len(starts(project.root)), len(drawn(project)), sum(held(project.root).values())
        process = project.start()
        try:
            if rnd.random() < WHILE_GENERATING:
                while process.poll() is None and len(drawn(project)) == drawn_before:
                    time.sleep(0.01)
                process.wait(timeout=rnd.uniform(0.0, 1.0) * generating_s)
            else:
                process.wait(timeout=rnd.uniform(0.05, 1.0) * length_s)
            reset(project, rnd)  # it came through
            continue
        except subprocess.TimeoutExpired:
            where = next(iter(starts(project.root)[before:][-1:]), "start")
            os.killpg(process.pid, signal.SIGKILL)
            killed_at = time.time()
            process.wait()
        done += 1
        outcome.landed[where] = outcome.landed.get(where, 0) + 1
        times = drawn(project)[drawn_before:]
        lost = len(times) - (sum(held(project.root).values()) - held_before)
        if len(times) and where == "generate":
            outcome.lost_tokens.append(lost)
            outcome.lost_s.append(killed_at - times[-lost] if lost > 0 else 0.0)
    return outcome


def drawn(project: Project) -> np.ndarray:
    """When each token was drawn, in seconds of time.time(); see tests/token_log."""
    log = project.folder / "tokens.log"
    return np.frombuffer(log.read_bytes(), "<f8") if log.is_file() else np.empty(0)


def held(root: Path) -> dict[bytes, int]:
    """Tokens by key that a run which starts now would find: finished answers, and answers begun."""
    folder = root / ".work/completions"
    named = [json.loads(file.read_text())["part"] for file in sorted((folder / "commits").glob("*.json"))]
    tokens: dict[bytes, int] = {}
    for file in [*sorted((folder / "runs").glob("*.parquet")), *(folder / "parts" / name for name in named)]:
        table = pq.read_table(file, columns=["key", "token_ids"])
        for key, token_ids in zip(table["key"].to_pylist(), table["token_ids"].to_pylist()):
            tokens[key] = max(tokens.get(key, 0), len(token_ids))
    return tokens


def reset(project: Project, rnd: random.Random) -> None:
    """Forget a random part of the tables, mostly with all answers, so that there is something to generate again."""
    tables = ("data/completions", "data/results", "data/scores", "data/validated")
    forgotten = (".work/completions", ".dvc/cache", *tables) if rnd.random() < 0.8 else tables[rnd.randrange(4) :]
    for name in forgotten:
        shutil.rmtree(project.root / name, ignore_errors=True)
    (project.root / "dvc.lock").unlink(missing_ok=True)


def starts(root: Path) -> list[str]:
    """The stages that logged their start, in order."""
    lines = [line for file in sorted((root / "logs").glob("*.jsonl")) for line in file.read_text(encoding="utf-8").splitlines()]
    return [item["stage"] for line in lines if (item := json.loads(line))["message"] == "started"]


def compare(whole: Project, killed: Project) -> bool:
    """Are all tables byte for byte the same?"""
    names = ("validated", "clean", "prompts", "completions", "scores", "bad_cases", "results")
    same = all(tree(whole.root / "data" / name) == tree(killed.root / "data" / name) for name in names)
    ids = [(row["ordinal"], row["sample"]) for row in results(killed.root)]
    return same and len(ids) == len(set(ids)) and manifest(killed.root)["rows"] == manifest(whole.root)["rows"]


def run(make, checkpoint: Path, *, kills: int, row_count: int, tokens: int, every_s: float = EVERY_S, seed: int = 0) -> Outcome:
    """make: local_project or dvc_project."""
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "whole").mkdir()
        (Path(name) / "killed").mkdir()
        whole, killed = (make(Path(name) / part, checkpoint, row_count, tokens, every_s) for part in ("whole", "killed"))
        same_input(whole, killed)
        started = time.monotonic()
        whole.finish()
        length_s = time.monotonic() - started
        outcome = disturb(killed, kills, seed, length_s, float(np.ptp(drawn(whole))))
        killed.finish()
        verify = [sys.executable, "-m", "pipeline", "verify", "--root", str(killed.root)]
        outcome.verified = subprocess.run(verify, cwd=HOUSE).returncode == 0
        outcome.equal = compare(whole, killed)
        outcome.stored, outcome.needed = stored_tokens(killed.root), stored_tokens(whole.root)
        return outcome


def same_input(whole: Project, killed: Project) -> None:
    """Both read the very same input file: its absolute path is part of the tables."""
    if whole.root != whole.folder:
        killed.command[:] = [str(whole.folder / "in.jsonl") if part.endswith("in.jsonl") else part for part in killed.command]


def stored_tokens(root: Path) -> int:
    return sum(json.loads(file.read_text())["tokens"] for file in (root / ".work/completions/commits").glob("*.json"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--dvc", action="store_true")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--rows", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--every-s", type=float, default=EVERY_S, help="generate.checkpoint_every_s")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = (options.model or write_tiny_llama(Path(folder) / "model")).absolute()
        make = dvc_project if options.dvc else local_project
        started = time.monotonic()
        sizes = {"row_count": options.rows, "tokens": options.tokens, "every_s": options.every_s}
        found = run(make, checkpoint, kills=options.kills, **sizes, seed=options.seed)
    where = ", ".join(f"{stage} {count}" for stage, count in sorted(found.landed.items(), key=lambda item: -item[1]))
    columns = {
        "way": "dvc repro" if options.dvc else "pipeline run",
        "kills": found.kills,
        "landed in": where,
        "tables equal": found.equal,
        "verify": found.verified,
        "stored twice": f"{max(0, found.stored - found.needed)} tokens",
        "met generation": len(found.lost_s),
        "lost at one kill, most": f"{max(found.lost_tokens, default=0)} tokens",
        "work of": f"{max(found.lost_s, default=0.0):.2f} s",
        "checkpoint_every_s": options.every_s,
        "seconds": f"{time.monotonic() - started:.0f}",
    }
    for line in (columns, ["---"] * len(columns), columns.values()):
        print(f"| {' | '.join(map(str, line))} |")
    print(f"lost seconds by kill: {sorted(round(float(s), 2) for s in found.lost_s)}")
    sys.exit(0 if found.equal and found.verified else 1)


if __name__ == "__main__":
    main()
