"""Where everything lies below a root folder. Knows names only; creates and reads nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pipeline.core.errors import UsageError


def check_name(name: str) -> None:
    """Tables and manifests hold names as UTF-8. Raises UsageError for one whose bytes are something else."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{ascii(name)[1:-1]}: this name is not UTF-8, so no table could hold it; rename it") from None


@dataclass(frozen=True)
class Paths:
    """The tree of one project or of one `pipeline run --out` folder."""

    root: Path
    imports: Path | None = None  # where pypi:, hf: and GGUF checkpoints are imported; None: models/ of the main checkout

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", Path(self.root).absolute())
        check_name(str(self.root))

    # stage outs
    @property
    def model_json(self) -> Path:
        return self.root / "models/model.json"

    @property
    def validated(self) -> Path:
        return self.root / "data/validated"

    @property
    def clean(self) -> Path:
        return self.root / "data/clean"

    @property
    def prompts(self) -> Path:
        return self.root / "data/prompts"

    @property
    def completions(self) -> Path:
        return self.root / "data/completions"

    @property
    def scores(self) -> Path:
        return self.root / "data/scores"

    @property
    def bad_cases(self) -> Path:
        return self.root / "data/bad_cases"

    @property
    def results(self) -> Path:
        return self.root / "data/results"

    @property
    def metrics_json(self) -> Path:
        return self.root / "reports/metrics.json"

    @property
    def plots(self) -> Path:
        return self.root / "reports/plots"

    @property
    def gate_json(self) -> Path:
        return self.root / "reports/gate.json"

    @property
    def bad_cases_html(self) -> Path:
        return self.root / "reports/bad_cases.html"

    @property
    def bad_cases_md(self) -> Path:
        return self.root / "reports/bad_cases.md"

    @property
    def stage_folders(self) -> dict[str, Path]:
        """Where each stage's manifest.json lies, in the order of the chain; model and gate put out a single file."""
        return {
            "validate": self.validated, "preprocess": self.clean, "bucket": self.prompts, "generate": self.completions,
            "evaluate": self.scores, "report": self.bad_cases, "publish": self.results,
        }  # fmt: skip

    # outside every stage's outs
    @property
    def assets(self) -> Path:
        return self.root / "data/assets"

    @property
    def baseline_json(self) -> Path:
        return self.root / "reports/baseline.json"

    @property
    def index_html(self) -> Path:
        return self.root / "reports/index.html"

    @property
    def runs(self) -> Path:
        return self.root / "reports/runs"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def work(self) -> Path:
        return self.root / ".work"

    @property
    def main_root(self) -> Path:
        """The main checkout: experiments in temporary folders share its store and its imported models."""
        return Path(os.environ["DVC_ROOT"]).absolute() if os.environ.get("DVC_ROOT") else self.root

    @property
    def model_imports(self) -> Path:
        return self.imports if self.imports is not None else self.main_root / "models"

    def store(self, configured: str) -> Path:
        """The completion store's folder; a relative one lies below the main checkout."""
        return self.main_root / configured

    def relative(self, file: Path) -> str:
        """A path as it is named in tables and manifests: relative to the root where it lies below it."""
        file = Path(file).absolute()
        return file.relative_to(self.root).as_posix() if file.is_relative_to(self.root) else file.as_posix()
