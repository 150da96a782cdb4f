"""Numbers as people write them: commas, money, signs, percent, fractions, full-width digits, Chinese numerals."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from fractions import Fraction

import regex

_DIGITS = {c: i for i, c in enumerate("零一二三四五六七八九")} | {
    "〇": 0, "两": 2, "兩": 2, "壹": 1, "贰": 2, "叁": 3, "肆": 4, "伍": 5, "陆": 6, "柒": 7, "捌": 8, "玖": 9,
    "貳": 2, "參": 3, "陸": 6,
}  # fmt: skip
_SMALL = {"十": 10, "百": 100, "千": 1000, "拾": 10, "佰": 100, "仟": 1000}
_LARGE = {"万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8}
_HAN_DIGIT = "".join(_DIGITS)
_HAN_NUMBER = rf"[{_HAN_DIGIT}{''.join(_SMALL)}][{_HAN_DIGIT}{''.join(_SMALL)}{''.join(_LARGE)}]*(?:点[{_HAN_DIGIT}]+)?"
# A single numeral is a number only before a unit, a measure word or a break: 一起, 四川 and 三明治 are words.
_AFTER = (
    "个個只支枝件条條张張本台辆輛位名人次倍岁歲年月日号號天周周点點分秒时時小元块塊角毛美米公斤克千吨"
    "里升度页頁步朵颗顆棵头頭匹双雙种種层層间間袋箱瓶杯盒包组組排班"
)
_TOKEN = regex.compile(
    r"(?P<sign>(?<![\p{L}\p{N}])[-+]\s?(?=[\p{Sc}\d.])|负|負)?\s?(?:\p{Sc}\s?(?P<sign2>-(?=\d))?)?"
    r"(?:(?P<arabic>\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|\.\d+)"
    r"(?:/(?P<denominator>\d+)(?![\d/]))?\s?(?P<scale>[万萬亿億](?!分))?"
    rf"|(?P<percent_of>百分之)?(?P<han>{_HAN_NUMBER}))"
    r"\s?(?P<percent>[%‰])?"
)
_NOT_NUMBERS = regex.compile(r"千万别|千万不|千万要|万一|十分(?!之|钟)|百姓|统一|唯一|一一|第[一二三四五六七八九十]+")
_DATE_LIKE = regex.compile(r"\d+/\d+/\d+")
_MINUS = str.maketrans("−–﹣－", "----")


@dataclass(frozen=True)
class Number:
    """A number found in a text: exact value, and where it stands in the width-folded text."""

    value: Fraction
    start: int
    end: int
    text: str


def fold_numbers(text: str) -> str:
    """Full-width digits and signs as ASCII, all minus signs as a hyphen. Circled and superscript digits stay words."""
    text = text.translate(_MINUS)
    if text.isascii():
        return text
    return "".join(unicodedata.normalize("NFKC", c) if "！" <= c <= "～" or c in "￥￡￠　" else c for c in text)


def find_numbers(text: str) -> list[Number]:
    """Every number of a text, in order. Percent signs are units: 45 % is 45; ordinals (第三) are no numbers."""
    folded = fold_numbers(text)
    skip = [match.span() for match in (*_NOT_NUMBERS.finditer(folded), *_DATE_LIKE.finditer(folded))]
    found = []
    for match in _TOKEN.finditer(folded):
        if any(start <= match.start() < end for start, end in skip):
            continue
        value = _arabic(match) if match["arabic"] else _chinese(match, folded)
        if value is not None:
            if match["sign2"] or (match["sign"] and "+" not in match["sign"]):
                value = -value
            found.append(Number(value, match.start(), match.end(), match.group().strip()))
    return found


def last_number(text: str) -> Number | None:
    """The last number of a text, or None."""
    numbers = find_numbers(text)
    return numbers[-1] if numbers else None


def whole_number(text: str) -> Fraction | None:
    """The value of a text that is one number and nothing else but a currency sign, a unit of a few letters or a full stop."""
    if len(text) > 48:
        return None
    numbers = find_numbers(text)
    if len(numbers) != 1:
        return None
    folded = fold_numbers(text)
    rest = (folded[: numbers[0].start] + folded[numbers[0].end :]).strip(" \t\n.。")
    return numbers[0].value if regex.fullmatch(r"(?:\p{L}{1,3}|\p{Sc}|°\p{L}?)?", rest) else None


def plain(value: Fraction) -> str:
    """A number as text: no commas, no exponent; a decimal where it ends, else a fraction."""
    if value.denominator == 1:
        return str(value.numerator)
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    if rest != 1:
        return f"{value.numerator}/{value.denominator}"
    places = next(n for n in range(1, 400) if (value * 10**n).denominator == 1)
    digits = str(abs(value.numerator) * 10**places // value.denominator).rjust(places + 1, "0")
    return f"{'-' if value < 0 else ''}{digits[:-places]}.{digits[-places:]}"


def _arabic(match: regex.Match[str]) -> Fraction | None:
    mantissa, _, exponent = match["arabic"].replace(",", "").lower().partition("e")
    if len(mantissa) > 300 or (exponent and abs(int(exponent[:6])) > 300):
        return None
    value = Fraction(mantissa) * Fraction(10) ** int(exponent or 0)
    if match["denominator"]:
        if not int(match["denominator"][:300]):
            return None
        value /= int(match["denominator"][:300])
    if match["scale"]:
        value *= _LARGE[match["scale"]]
    return value


def _chinese(match: regex.Match[str], text: str) -> Fraction | None:
    numeral = match["han"]
    if len(numeral) == 1 and not match["percent_of"] and not match["sign"]:
        after = text[match.end() : match.end() + 1]
        if after and regex.match(r"\p{Han}", after) and after not in _AFTER:
            return None
    whole, _, decimals = numeral.partition("点")
    value = Fraction(_chinese_whole(whole))
    for place, digit in enumerate(decimals, 1):
        value += Fraction(_DIGITS[digit], 10**place)
    return value


def _chinese_whole(numeral: str) -> int:
    if all(c in _DIGITS for c in numeral):
        return int("".join(str(_DIGITS[c]) for c in numeral[:300]))
    total = section = digit = 0
    last_unit = 0
    for c in numeral:
        if c in _DIGITS:
            digit = _DIGITS[c]
            last_unit = 1 if c in "零〇" else last_unit
        elif c in _SMALL:
            section += (digit or 1) * _SMALL[c]
            digit, last_unit = 0, _SMALL[c]
        else:
            section += digit
            total = (total + section) * _LARGE[c] if _LARGE[c] > 10**4 else total + (section or 1) * _LARGE[c]
            section = digit = 0
            last_unit = _LARGE[c]
    if digit and last_unit > 10:  # 一百五 is 150, 两万三 is 23,000
        digit *= last_unit // 10
    return total + section + digit
