"""Under which licence a checkpoint folder says it stands."""

from __future__ import annotations

import re
from pathlib import Path

from pipeline.model.config import read_json


def licence(folder: Path) -> str | None:
    """The licence as the files say it: the import record, the head of the model card, or the name of a licence file."""
    stated = read_json(record).get("license") if (record := folder / "import.json").is_file() else None
    if stated:
        return str(stated)
    card = folder / "README.md"
    if card.is_file():
        text = card.read_text(encoding="utf-8", errors="replace")
        head = re.match(r"---\n(.*?)\n---", text, re.DOTALL)
        found = re.search(r"^licen[sc]e:\s*(\S+)", head[1], re.MULTILINE) if head else None
        if found:
            return found[1]
    return next((file.name for file in sorted(folder.glob("LICENSE*"))), None)
