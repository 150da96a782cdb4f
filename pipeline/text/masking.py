"""Numbers and personal data replaced by a word for their kind. Off by default; the words hold nothing that is masked again."""

from __future__ import annotations

import re
from collections.abc import Iterable

NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
ID_WEIGHTS = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)  # GB 11643-1999

# Order matters: keys and ids before phones, which are the loosest.
PATTERNS: dict[str, re.Pattern[str]] = {
    "key": re.compile(
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
        r"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bgh[pousr]_[A-Za-z0-9]{36,}\b|\bgithub_pat_\w{22,}\b|\bsk-[A-Za-z0-9_-]{20,}"
        r"|\bxox[abpr]-[A-Za-z0-9-]{10,}|\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]+|\bAIza[\w-]{35}",
        re.DOTALL,
    ),
    "email": re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})*\.[A-Za-z]{2,24}(?![A-Za-z0-9])"),
    "id": re.compile(r"(?<![0-9A-Za-z])(?:[1-9]\d{16}[\dXx]|\d{3}-\d{2}-\d{4})(?![0-9A-Za-z])"),
    "card": re.compile(r"(?<![0-9A-Za-z])\d(?:[ -]?\d){12,18}(?![0-9A-Za-z])"),
    "phone": re.compile(
        r"(?<![\w.+-])(?:\+\d{1,3}[ -]?(?:\(\d{1,4}\)[ -]?)?\d{2,4}(?:[ -]?\d{2,4}){1,4}"
        r"|(?:0086[ -]?)?1[3-9]\d[ -]?\d{4}[ -]?\d{4}|0\d{2,3}-\d{7,8}|\(\d{3}\) ?\d{3}-\d{4}|\d{3}-\d{3}-\d{4})(?![\w-])"
    ),
}


def mask_numbers(text: str, word: str = "[NUMBER]") -> str:
    """Every number (with its decimal and thousands marks) becomes `word`."""
    return NUMBER.sub(lambda _: word, text)


def mask_pii(text: str, kinds: Iterable[str] = tuple(PATTERNS)) -> str:
    """Keys, e-mail addresses, identity numbers, payment cards and telephone numbers become [KIND].

    Chinese identity numbers and card numbers must pass their check digit, so that other long numbers stay.
    """
    wanted = set(kinds)
    for kind, pattern in PATTERNS.items():
        if kind in wanted:
            text = pattern.sub(lambda found, kind=kind: f"[{kind.upper()}]" if _is_real(kind, found.group()) else found.group(), text)  # type: ignore[misc]
    return text


def _is_real(kind: str, text: str) -> bool:
    if kind == "card":
        digits = [int(c) for c in text if c.isdecimal()]
        doubled = [d if i % 2 == 0 else d * 2 - 9 * (d > 4) for i, d in enumerate(reversed(digits))]
        return sum(doubled) % 10 == 0 and len(set(digits)) > 1  # Luhn, ISO/IEC 7812-1
    if kind == "id" and "-" not in text:
        return "10X98765432"[sum(int(c) * w for c, w in zip(text, ID_WEIGHTS)) % 11] == text[-1].upper()
    return True
