"""Tells prose from code in a text: what is fenced, indented, in backticks, in a diff or in columns is left byte for byte."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

FENCE = re.compile(r"[ \t>]*(`{3,}|~{3,})")
INLINE_CODE = re.compile(r"(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
DIFF = re.compile(r"^(?:diff --git |@@ -\d|--- \S.*\n\+\+\+ )", re.MULTILINE)
COLUMNS = re.compile(r"\S {3,}\S")

BLANK = " \u00a0\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
BLANKS = re.compile(rf"[{BLANK}]{{2,}}")


def squeeze(text: str) -> str:
    """Prose with single blanks inside lines, no blanks at line ends, at most one empty line in a row, none at the ends.

    Kept: code of every kind, diffs, columns set with tabs or blanks, indentation, Markdown's line break of two blanks.
    """
    if ("@@ -" in text or "diff --git " in text or "+++ " in text) and DIFF.search(text):
        return text
    lines = list(_blocks(text.split("\n")))
    if len(lines) == 1 and not lines[0][0]:
        lines = [(False, text.lstrip(" "))]
    columns = [not code and _may_be_columns(line) for code, line in lines]
    out: list[str] = []
    for number, (code, line) in enumerate(lines):
        if not code:
            beside = columns[number - 1 : number] + columns[number + 1 : number + 2]
            in_columns = columns[number] and (any(beside) or "\t" in line or line.lstrip().startswith("|"))
            followed = number + 1 < len(lines) and bool(lines[number + 1][1].strip())
            line = _line(line, keep_inside=in_columns, line_break=followed)
            if not line and (not out or (not out[-1] and not lines[number - 1][0])):
                continue
        out.append(line)
    text = "\n".join(out)
    return text if lines[-1][0] else text.rstrip("\n")


def _may_be_columns(line: str) -> bool:
    return "\t" in line or line.lstrip().startswith("|") or ("   " in line and bool(COLUMNS.search(line)))


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
    body = line.rstrip(BLANK + "\t\r")
    if not body:
        return ""
    breaks = line_break and line.rstrip("\r").endswith("  ")
    indent = body[: len(body) - len(body.lstrip(BLANK))]
    inside = body[len(indent) :]
    return indent + (inside if keep_inside else _outside_inline(inside, lambda part: BLANKS.sub(" ", part))) + ("  " if breaks else "")


def _outside_inline(text: str, change: Callable[[str], str]) -> str:
    if "`" not in text:
        return change(text)
    out, end = [], 0
    for found in INLINE_CODE.finditer(text):
        out += [change(text[end : found.start()]), found.group()]
        end = found.end()
    return "".join([*out, change(text[end:])])
