"""Turns a template and data into one offline HTML file: everything escaped, both languages inside, no byte from outside.

Row text is hostile: Jinja escapes it, invisible and direction-changing characters are made visible, and the page's own
policy (CSP) lets only the script run whose hash is named. Knows no tables; the same data gives the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
import unicodedata
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import ChainableUndefined, FileSystemLoader, StrictUndefined
from jinja2.sandbox import SandboxedEnvironment
from markupsafe import Markup, escape

HERE = Path(__file__).parent
# Marks that change the reading direction or hide text; they are shown by name instead of obeyed.
HIDDEN = re.compile("[\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]")
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def render(template: str, language: str, *, lenient: bool = False, **context: Any) -> bytes:
    """The page as UTF-8 bytes. language: the one shown first, `en` or `zh`. lenient: facts that are not there are left out."""
    style = (HERE / "page.css").read_text(encoding="utf-8")
    script = (HERE / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    html = _environment(lenient).get_template(template).render(
        language=language, style=Markup(style), script=Markup(script), script_hash=digest, **context
    )  # fmt: skip
    return html.encode("utf-8", "replace")


@cache
def words() -> dict[str, dict[str, str]]:
    """Every sentence of the pages by key, in English and Chinese."""
    data: dict[str, dict[str, str]] = json.loads((HERE / "words.json").read_text(encoding="utf-8"))
    return data


def say(key: str, language: str, **values: Any) -> str:
    """One sentence in one language as plain text; an unknown key stands for itself."""
    text = words().get(key, {}).get(language)
    return key if text is None else text.format(**{name: _value(value, language) for name, value in values.items()})


def _value(value: Any, language: str) -> str:
    """A value inside a sentence; `@key` is itself a sentence in the same language."""
    return say(value[1:], language) if isinstance(value, str) and value.startswith("@") and value[1:] in words() else number(value)


def both(key: str, **values: Any) -> Markup:
    """One sentence in both languages; the page shows the one that is switched on."""
    return in_both({code: say(key, code, **values) for code in _LANG})


def in_both(texts: Mapping[str, str]) -> Markup:
    """A text that is there in both languages, escaped."""
    return Markup("").join(Markup('<span class="{0}" lang="{1}">{2}</span>').format(code, _LANG[code], texts[code]) for code in _LANG)


_LANG = {"en": "en", "zh": "zh-Hans"}


def number(value: Any) -> str:
    """Numbers for people: thousands apart, three figures that count, a dash for none."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or (abs(value) >= 1000 and value == int(value)):
        return f"{int(value):,}"
    if value == 0 or 0.001 <= abs(value) < 1000:
        digits = 1 if abs(value) >= 100 else 2 if abs(value) >= 10 else 3
        return f"{value:,.{digits}f}".rstrip("0").rstrip(".") if digits else f"{value:,.0f}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1e}"


def percent(share: float | None) -> str:
    """A share as per cent; a dash for none."""
    if share is None:
        return "–"
    value = 100 * share
    if 0 < value < 0.05:
        return "< 0.1 %"
    return f"{value:.0f} %" if value in (0, 100) or 10 <= value <= 99.5 else f"{value:.1f} %"


def signed(value: float) -> str:
    """A difference with its sign; a true minus, so that columns read well."""
    return f"+{number(value)}" if value > 0 else f"−{number(-value)}" if value < 0 else "0"


def duration(seconds: float | None) -> str:
    """A stretch of time for people: 0.4 s, 66.8 s, 9 min 8 s, 2 h 5 min."""
    if seconds is None or seconds < 100:
        return f"{number(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def pvalue(p: float) -> str:
    """A probability as people write it: two figures, tiny ones as a bound."""
    return "< 0.0001" if p < 0.0001 else f"{p:.2g}"


def visible(text: str | None, limit: int | None = None) -> str:
    """Row text fit to be looked at: hidden and direction marks become their names, long text is cut (it says where)."""
    text = text or ""
    cut = len(text) - limit if limit is not None and len(text) > limit else 0
    text = text[:limit] if cut else text
    text = HIDDEN.sub(lambda match: f"[{_name(match[0])}]", text)
    text = CONTROL.sub(lambda match: f"[U+{ord(match[0]):04X}]", text.replace("\r\n", "\n"))
    return text + (f" … [+{cut:,}]" if cut else "")


def _name(mark: str) -> str:
    return f"U+{ord(mark):04X} {unicodedata.name(mark, '').title()}".strip()


@cache
def _environment(lenient: bool) -> SandboxedEnvironment:
    environment = SandboxedEnvironment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=ChainableUndefined if lenient else StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters.update(
        number=number, percent=percent, visible=visible, pvalue=pvalue, signed=signed, duration=duration, shell=shlex.quote
    )
    environment.globals.update(both=both, in_both=in_both, say=say, escape=escape)
    return environment
