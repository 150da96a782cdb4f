"""JSON Schema of params.yaml for editors: types and limits from the typed params, descriptions from params.yaml's comments.

`python -m tests.params_schema --write` puts it into docs/params.schema.json.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from pipeline.core.hashing import PACKAGE
from pipeline.core.params import Params

PROJECT = PACKAGE.parent
PARAMS_YAML = PROJECT / "params.yaml"
SCHEMA = PROJECT / "docs/params.schema.json"
KEY_LINE = re.compile(r"^  (?P<key>\w+):.*?\s#\s(?P<words>.*)$")


def comments() -> dict[str, str]:
    """The comment of each key in params.yaml, by section.key."""
    found: dict[str, str] = {}
    section = ""
    for line in PARAMS_YAML.read_text(encoding="utf-8").splitlines():
        if re.match(r"^\w+:", line):
            section = line.partition(":")[0]
        elif match := KEY_LINE.match(line):
            found[f"{section}.{match['key']}"] = match["words"].strip()
    return found


def schema_text() -> str:
    """The schema as it is checked in."""
    schema: dict[str, Any] = Params.model_json_schema()
    words = comments()
    for section in Params.model_fields:
        name = schema["properties"][section]["$ref"].rpartition("/")[2]
        for key, field in schema["$defs"][name]["properties"].items():
            field["description"] = words.get(f"{section}.{key}", "")
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(schema, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        SCHEMA.write_text(schema_text(), encoding="utf-8")
    else:
        print(schema_text(), end="")
