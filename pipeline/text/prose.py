"""Tells prose from code in a text: what is fenced, indented, in backticks, in a diff or in columns is left byte for byte."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

FENCE = re.compile(r"[ \t>]*(`{3,}|~{3,})")
INLINE_CODE = re.compile(r"(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
DIFF = re.compile(r"^(?:diff --git |@@ -\d|--- \S.*\n\+\+\+ )", re.MULTILINE)
COLUMNS = re.compile(r"\S {3,}\S|\t|^\s*\|")

BLANKS = re.compile(r"(?<=\S)[ \u00a0\u2000-\u200a\u202f\u205f\u3000]{2,}(?=\S)")
TRAILING = re.compile(r"[ \t\r\u00a0\u2000-\u200a\u202f\u205f\u3000]+$")


def squeeze(text: str) -> str:
    """Prose with single blanks inside lines, no blanks at line ends, at most one empty line in a row, none at the ends.

    Kept: code of every kind, diffs, columns set with tabs or blanks, indentation, Markdown's line break of two blanks.
    """
    if DIFF.search(text):
        return text
    out: list[str] = []
    lines = text.split("\n")
    code = [kind for kind, _ in _blocks(lines)]
    for number, line in enumerate(lines):
        if code[number]:
            out.append(line)
            continue
        before = number > 0 and not code[number - 1] and COLUMNS.search(lines[number - 1])
        after = number + 1 < len(lines) and not code[number + 1] and COLUMNS.search(lines[number + 1])
        columns = COLUMNS.search(line) and (before or after or "\t" in line or line.lstrip().startswith("|"))
        last = number + 1 == len(lines) or not lines[number + 1].strip()
        line = _line(line, keep_inside=bool(columns), line_break=not last)
        if line or (out and not _is_empty_prose(out, code, number - 1)):
            out.append(line)
    return _trimmed("\n".join(out), bool(code and code[0]), bool(code and code[-1]))


def in_prose(text: str, change: Callable[[str], str]) -> str:
    """The text with `change` applied outside fenced, indented and inline code."""
    lines = text.split("\n")
    out: list[str] = []
    held: list[str] = []
    for is_code, line in _blocks(lines):
        if is_code and held:
            out.append(_outside_inline("\n".join(held), change))
            held = []
        (out if is_code else held).append(line)
    if held:
        out.append(_outside_inline("\n".join(held), change))
    return "\n".join(out)


def _blocks(lines: list[str]) -> Iterator[tuple[bool, str]]:
    """Each line with whether it belongs to a fenced (also unclosed) or indented block, fence lines included."""
    fence = ""
    for line in lines:
        found = FENCE.match(line)
        if fence:
            yield True, line
            if found and found[1][0] == fence[0] and len(found[1]) >= len(fence) and not line[found.end() :].strip():
                fence = ""
        elif found and not (found[1][0] == "`" and "`" in line[found.end() :]):
            fence = found[1]
            yield True, line
        else:
            yield line.startswith(("    ", "\t")) and bool(line.strip()), line


def _line(line: str, *, keep_inside: bool, line_break: bool) -> str:
    if not line.strip():
        return ""
    end = TRAILING.search(line)
    body = line[: end.start()] if end else line
    breaks = line_break and end is not None and end.group().rstrip("\r").endswith("  ")
    return (body if keep_inside else _outside_inline(body, lambda part: BLANKS.sub(" ", part))) + ("  " if breaks else "")


def _outside_inline(text: str, change: Callable[[str], str]) -> str:
    if "`" not in text:
        return change(text)
    out, end = [], 0
    for found in INLINE_CODE.finditer(text):
        out += [change(text[end : found.start()]), found.group()]
        end = found.end()
    return "".join([*out, change(text[end:])])


def _is_empty_prose(out: list[str], code: list[bool], before: int) -> bool:
    return not out[-1] and not code[before]


def _trimmed(text: str, code_first: bool, code_last: bool) -> str:
    text = text if code_first else text.lstrip("\n")
    return text if code_last else text.rstrip("\n")
