"""The cleaning steps by name. A step is a pure function of one text; its version grows whenever its results change.

To add one: a function, a line in STEPS, a test.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError

from pipeline.core.errors import ParamsError
from pipeline.core.params import Section
from pipeline.core.telemetry import Meter
from pipeline.text import characters, markup, masking, prose


class NoOptions(Section):
    """A step without options."""


class NormalizeOptions(Section):
    """normalize_unicode."""

    form: Literal["NFC", "NFD", "NFKC", "NFKD"] = "NFC"
    fold_width: bool = True  # letters and digits only


class HtmlOptions(Section):
    """html_to_text."""

    declared: bool = False  # True: every row with a known tag is HTML


class NumberOptions(Section):
    """mask_numbers."""

    word: str = "[NUMBER]"


class PiiOptions(Section):
    """mask_pii."""

    kinds: tuple[Literal["key", "email", "id", "card", "phone"], ...] = ("key", "email", "id", "card", "phone")


@dataclass(frozen=True)
class Step:
    """apply: the function, called with the text and the options.

    gate: an RE2 pattern that every text which the step can change matches (or one made from the options), so that Arrow can
    pass over all others; a test holds both against each other.
    """

    version: int
    apply: Callable[..., str]
    gate: str | Callable[..., str]
    options: type[Section] = NoOptions


MAX_ROUNDS = 6
NON_ASCII = r"[^\x00-\x7f]"
# What ftfy's badness pattern needs: two neighbours that Western, Cyrillic or Greek encodings make out of UTF-8, or a tell-tale letter.
BEYOND_ASCII = (
    r"\x{a1}-\x{ac}\x{ae}-\x{b3}\x{b5}\x{b6}\x{b8}-\x{2012}\x{2016}-\x{2018}\x{201a}-\x{2025}\x{2027}-\x{2fff}"
    r"\x{f8ff}\x{fb01}\x{fb02}\x{fffd}"
)
MOJIBAKE = rf"[\x80-\x9fÂÃÎÐØÙŒœ√≈]|[{BEYOND_ASCII}]{{2}}"
# Marks, and blocks with characters that NFC takes apart or replaces.
NOT_NFC = (
    r"[\pM\x{340}-\x{387}\x{958}-\x{9df}\x{a33}-\x{b5d}\x{f43}-\x{fb9}\x{1100}-\x{11ff}\x{1b00}-\x{1b4b}\x{1f00}-\x{2001}\x{2126}-\x{212b}"
    r"\x{2329}\x{232a}\x{2adc}\x{f900}-\x{fb4e}\x{11000}-\x{16fff}\x{1d15e}-\x{1d1c0}\x{2f800}-\x{2fa1d}]"
)
WIDE = r"[\x{ff10}-\x{ff19}\x{ff21}-\x{ff3a}\x{ff41}-\x{ff5a}\x{ff66}-\x{ff9f}]"
BLANK = r"\x{00a0}\x{2000}-\x{200a}\x{202f}\x{205f}\x{3000}"


def _normalize_gate(form: str, fold_width: bool) -> str:
    return NON_ASCII if form != "NFC" else f"{NOT_NFC}|{WIDE}" if fold_width else NOT_NFC


STEPS: dict[str, Step] = {
    "fix_mojibake": Step(1, characters.fix_mojibake, MOJIBAKE),
    "normalize_unicode": Step(1, characters.normalize_unicode, _normalize_gate, NormalizeOptions),
    "drop_control_characters": Step(
        1, characters.drop_control_characters, r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x{9f}\x{fdd0}-\x{fdef}\x{fffe}\x{ffff}]"
    ),
    "drop_invisible_characters": Step(
        1, characters.drop_invisible_characters,
        r"[\x{ad}\x{34f}\x{61c}\x{180e}\x{200b}-\x{200f}\x{202a}-\x{202e}\x{2060}-\x{206f}\x{feff}\x{fff9}-\x{fffb}"
        r"\x{1d173}-\x{1d17a}\x{e0000}-\x{e007f}]",
    ),
    "html_to_text": Step(1, markup.html_to_text, r"<[A-Za-z!?/]", HtmlOptions),
    "squeeze_whitespace": Step(1, prose.squeeze, rf"[ {BLANK}]{{2}}|[ \t\r{BLANK}]\n|\n\s*\n\s*\n|^[\n ]|[\s{BLANK}]$"),
    "unify_quotes": Step(1, partial(prose.in_prose, change=characters.unify_quotes), r"[\x{2018}-\x{201f}\x{2032}\x{2033}]"),
    "mask_numbers": Step(1, masking.mask_numbers, r"\pN", NumberOptions),
    "mask_pii": Step(1, masking.mask_pii, r"[@_\d-]|sk-|eyJ", PiiOptions),
}  # fmt: skip


@dataclass(frozen=True)
class ChosenStep:
    """A step with its options filled in."""

    name: str
    version: int
    options: Mapping[str, Any]
    apply: Callable[[str], str]
    gate: str

    def describe(self) -> dict[str, Any]:
        """What the fingerprint counts."""
        return {"name": self.name, "version": self.version, "options": dict(self.options)}

    def run(self, texts: pa.Array) -> tuple[pa.Array, list[int]]:
        """The cleaned texts and the places of those that changed. Only texts that pass the gate reach Python."""
        places = pc.indices_nonzero(pc.match_substring_regex(texts, self.gate))
        old: list[str] = texts.take(places).to_pylist()
        new = [self.apply(text) for text in old]
        changed = [i for i, (a, b) in enumerate(zip(old, new)) if a != b]
        if not changed:
            return texts, []
        where = np.zeros(len(texts), bool)
        where[places.to_numpy()[changed]] = True
        replaced = pc.replace_with_mask(texts, pa.array(where), pa.array([new[i] for i in changed], texts.type))
        return replaced, np.flatnonzero(where).tolist()


def clean_texts(steps: Sequence[ChosenStep], texts: pa.Array, meter: Meter | None = None) -> tuple[pa.Array, list[list[str]]]:
    """Run all steps, again for texts that changed until nothing changes, so that cleaning twice equals cleaning once.

    Returns the texts (null for one that never settles) and, for each, the steps that changed it, in order.
    """
    meter = meter or Meter()
    fired: list[dict[str, None]] = [{} for _ in range(len(texts))]
    active = np.arange(len(texts))
    for _ in range(MAX_ROUNDS):
        part = texts.take(pa.array(active)) if len(active) < len(texts) else texts
        changed: set[int] = set()
        for step in steps:
            with meter.phase(f"step {step.name}"):
                part, places = step.run(part)
            changed.update(places)
            for place in places:
                fired[active[place]][step.name] = None
        if not changed:
            break
        where = np.zeros(len(texts), bool)
        where[active] = True
        texts = pc.replace_with_mask(texts, pa.array(where), part)
        active = active[sorted(changed)]
    else:
        where = np.zeros(len(texts), bool)
        where[active] = True
        texts = pc.if_else(pa.array(where), pa.scalar(None, texts.type), texts)
    order = [step.name for step in steps]
    return texts, [sorted(names, key=order.index) if len(names) > 1 else list(names) for names in fired]


def choose_steps(wanted: Sequence[str | Mapping[str, Mapping[str, Any]]]) -> list[ChosenStep]:
    """Steps of params in order. Raises ParamsError naming an unknown step or option."""
    return [_choose(item, number) for number, item in enumerate(wanted)]


def _choose(item: str | Mapping[str, Mapping[str, Any]], number: int) -> ChosenStep:
    where = f"preprocess.steps[{number}]"
    if isinstance(item, str):
        item = {item: {}}
    if len(item) != 1:
        raise ParamsError(f"{where}: one step a line, a name or one name with its options; got {sorted(item)}")
    ((name, given),) = item.items()
    step = STEPS.get(name)
    if step is None:
        raise ParamsError(f"{where}: {name!r} is no step; known: {', '.join(STEPS)}")
    try:
        options = step.options.model_validate_json(json.dumps(given or {})).model_dump()
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        known = ", ".join(step.options.model_fields) or "none"
        raise ParamsError(f"{where}.{name}: {'.'.join(map(str, problem['loc']))}: {problem['msg']}; options: {known}") from None
    return ChosenStep(
        name, step.version, options, partial(step.apply, **options), step.gate(**options) if callable(step.gate) else step.gate
    )
