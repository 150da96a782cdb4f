"""Nights on a copy of this project with a tiny random model: the first, 1 % new rows, a red gate, a crash in publish, the morning after.

By hand: PYTHONPATH=. python tests/three_nights.py      a line per finding; exit code 1 when one is not as it should be
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from chains import results, rows, tree, write_rows
from checkpoints import write_tiny_llama
from projects import commit, copy_project, environment, git

FIRST_ROWS = 200
OLD_DAYS = [f"2026-01-{day:02d}" for day in range(1, 10)]
KEPT_DAYS = 7


class Nights:
    """A project with rows of our own, and what was wrong with its nights."""

    def __init__(self, folder: Path) -> None:
        self.root = copy_project(folder / "project", write_tiny_llama(folder / "model"))
        for file in (self.root / "data/raw").iterdir():
            file.unlink()
        params = (self.root / "params.yaml").read_text(encoding="utf-8")
        told = "import os, sys; open('told.txt', 'w').write(os.environ['PIPELINE_VERDICT'] + '\\n' + sys.stdin.read())"
        params = params.replace("  command: []", f"  command: {json.dumps([sys.executable, '-c', told])}")
        (self.root / "params.yaml").write_text(params, encoding="utf-8")
        self.wrong = 0

    def feed(self, count: int) -> None:
        write_rows(self.root / "data/raw/in.jsonl", rows(count))

    def see(self, what: str, found: Any, expected: Any) -> None:
        good = found == expected
        self.wrong += not good
        print(f"  {'ok   ' if good else 'WRONG'} {what}: {found}" + ("" if good else f", expected {expected}"), flush=True)

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "pipeline", *words]
        return subprocess.Popen(
            command, cwd=self.root, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )

    def call(self, *words: str) -> tuple[int, str]:
        process = self.start(*words)
        said = process.communicate()[0]
        return process.returncode, said

    def history(self) -> list[dict[str, Any]]:
        lines = (self.root / "reports/runs/history.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def last(self) -> tuple[int, str, int | None, int | None]:
        """Exit code, verdict, rows generated and rows reused of the last line of the history."""
        line = self.history()[-1]
        return line["exit_code"], line["verdict"], line["counts"].get("generated_rows"), line["counts"].get("reused_rows")

    def crash_in_publish(self) -> None:
        """Start a night and kill it with all its processes while stage publish writes."""
        process = self.start("night")
        while not list((self.root / "data").glob(".results.*.tmp")):
            if process.poll() is not None:
                raise SystemExit(f"the night ended before publish:\n{process.communicate()[0]}")
            time.sleep(0.001)
        for victim in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]:
            victim.kill()
        process.wait()


def distinct(start: int, end: int) -> int:
    """Rows with a prompt of their own: equal ones are answered once."""
    made = rows(end)
    return len({row["text"] for row in made[start:]} - {row["text"] for row in made[:start]})


def run(folder: Path) -> int:
    nights = Nights(folder)
    more = FIRST_ROWS // 100

    print("first night")
    nights.feed(FIRST_ROWS)
    code, said = nights.call("night")
    control = 8
    nights.see("exit code", code, 0)
    nights.see("generated", nights.last()[2], distinct(0, FIRST_ROWS) + control)
    nights.see("words of DVC", [word for word in ("dvc push", "lock file", "skipping", "auto staging") if word in said], [])
    commit(nights.root, "first night")

    print("1 % new rows, old logs")
    for day in OLD_DAYS:
        (nights.root / f"logs/{day}.jsonl").write_text("{}\n")
    nights.feed(FIRST_ROWS + more)
    nights.see("exit code", nights.call("night")[0], 0)
    generated = distinct(FIRST_ROWS, FIRST_ROWS + more)
    nights.see("exit code, verdict, generated, reused", nights.last(), (0, "green", generated, FIRST_ROWS + more + control - generated))
    nights.see("rows in the results", len(results(nights.root)), FIRST_ROWS + more)
    nights.see("days of logs", len(list((nights.root / "logs").glob("*.jsonl"))), KEPT_DAYS)
    nights.see("notified", (nights.root / "told.txt").exists(), False)
    commit(nights.root, "second night")

    print("nothing new")
    code, said = nights.call("night")
    nights.see("exit code", code, 0)
    nights.see("lines that say that nothing changed", said.count("nothing changed"), 1)
    nights.see("lines in all", len(said.splitlines()) <= 6, True)

    print("red gate")
    params = nights.root / "params.yaml"
    params.write_text(params.read_text(encoding="utf-8").replace("  max_truncated_share: null", "  max_truncated_share: 0.01"))
    code, said = nights.call("night")
    nights.see("exit code", code, 1)
    nights.see("exit code, verdict, generated, reused", nights.last(), (1, "red", None, None))
    told = (nights.root / "told.txt").read_text(encoding="utf-8")
    nights.see("notify.command was told", (told.splitlines()[0], "gate      red" in told), ("red", True))
    nights.see("page says red", 'header class="red"' in (nights.root / "reports/index.html").read_text(encoding="utf-8"), True)
    nights.see("published all the same", len(results(nights.root)), FIRST_ROWS + more)
    commit(nights.root, "red night")

    print("1 % new rows and a crash in publish")
    before, lines = tree(nights.root / "data/results"), len(nights.history())
    nights.feed(FIRST_ROWS + 2 * more)
    nights.crash_in_publish()
    nights.see("results are those of the night before", tree(nights.root / "data/results") == before, True)
    nights.see("lines in the history", len(nights.history()), lines)
    doctor = nights.call("doctor")[1]
    nights.see("doctor names the dead night", "died" in doctor, True)
    print("".join(f"        {line}\n" for line in doctor.splitlines() if line.startswith(("warning", "error"))), end="")

    print("the morning after")
    code, said = nights.call("night", "--gc")
    nights.see("exit code", code, 1)
    nights.see("says who died", "ended without a word" in said, True)
    nights.see("stages run again", [line for line in said.splitlines() if line.startswith("Running")],
               ["Running stage 'model':", "Running stage 'publish':"])  # fmt: skip
    nights.see("rows in the results", len(results(nights.root)), FIRST_ROWS + 2 * more)
    nights.see("leftovers of the dead stage", [file.name for file in (nights.root / "data").glob(".*.tmp")], [])
    nights.see("verify", nights.call("verify")[0], 0)
    nights.see(
        "Git sees",
        git(nights.root, "status", "--porcelain").split(),
        ["M", "data/raw/in.jsonl", "M", "dvc.lock", "M", "reports/metrics.json", "M", "told.txt"],
    )
    codes = [(line["exit_code"], line["verdict"], line["unchanged"]) for line in nights.history()]
    nights.see("history", codes, [(0, "green", False)] * 2 + [(0, "green", True)] + [(1, "red", False)] * 2)
    return nights.wrong


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        wrong = run(Path(folder))
        print(f"{wrong} wrong, {time.monotonic() - started:.0f} s")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
