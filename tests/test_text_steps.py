"""Cleaning steps: what each one changes, what it must leave alone, and that cleaning twice equals cleaning once."""

import random
import unicodedata

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from ftfy.badness import MOJIBAKE_CATEGORIES, is_bad
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.core.errors import ParamsError
from pipeline.core.params import PreprocessParams
from pipeline.text import steps as steps_module
from pipeline.text.characters import normal_form
from pipeline.text.steps import STEPS, choose_steps, clean_texts

DEFAULT = PreprocessParams().steps
MARKS = "e\u0301\u0323\u0344\u0f71\u0f73\u0f75\u0f81\u3099\uff9e\uff9f\uff76\u1e00\ud55c\u11a7\U0001d165\u0345"
ALL = (*DEFAULT, "unify_quotes", "mask_pii", "mask_numbers")


def clean(text: str, *names) -> str:
    return clean_texts(choose_steps(names or DEFAULT), pa.array([text], pa.large_string()))[0][0].as_py()


def applied(text: str, *names) -> list[str]:
    return clean_texts(choose_steps(names or DEFAULT), pa.array([text], pa.large_string()))[1][0]


@pytest.mark.parametrize(
    ("broken", "right"),
    [
        ("schÃ¶n", "schön"), ("l’Ã©tÃ©", "l’été"), ("ç›®å½•", "目录"), ("âœ” No problems", "✔ No problems"),
        ("Ã la carte, s'il vous plaît", "à la carte, s'il vous plaît"),
        ("schön “quoted” — naïve café", "schön “quoted” — naïve café"),
        ("目录……“好”——对", "目录……“好”——对"), ("Ünïcödé ¿qué? £5", "Ünïcödé ¿qué? £5"),
    ],
)  # fmt: skip
def test_mojibake_is_repaired_and_good_text_left(broken, right):
    assert clean(broken, "fix_mojibake") == right


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("他说：“你好，世界（真的）！”", "他说：“你好，世界（真的）！”"),
        ("电话１３８００１３８０００", "电话13800138000"),
        ("ＡＢＣａｂｃ", "ABCabc"),
        ("x² + 10² = ①", "x² + 10² = ①"),
        ("5㎏ ℃ ½ ︰ ﹕", "5㎏ ℃ ½ ︰ ﹕"),
        ("ｶﾞｷﾞﾊﾟ･ﾃｽﾄｰ", "ガギパ･テストー"),
        ("e\u0301", "é"),
        ("\u212b", "Å"),
        ("한글", "한글"),
    ],
)
def test_only_letters_and_digits_lose_their_width(text, wanted):
    assert clean(text, "normalize_unicode") == wanted


def test_normal_form_and_width_are_options():
    assert clean("１x²", {"normalize_unicode": {"fold_width": False}}) == "１x²"
    assert clean("x²é", {"normalize_unicode": {"form": "NFKC"}}) == "x2é"
    assert clean("é", {"normalize_unicode": {"form": "NFD"}}) == "e\u0301"


def test_control_characters_go_and_line_ends_stay():
    assert clean("a\x00b\x1b[31mred\x1b[0m\tc\r\nd\x85e\x0bf\x7f\ufffe", "drop_control_characters") == "abred\tc\r\nd\ne\nf"
    assert clean("real \ufffd mark", "drop_control_characters") == "real \ufffd mark"


@pytest.mark.parametrize(
    "kept",
    [
        "👨‍👩‍👧 👍🏽 ❤️‍🔥 🏳️‍🌈", "می‌خواهم", "क्‍ष क्‌ष", "ශ්‍රී", "שלום\u200f!", "葛\U000e0100", "1️⃣",
        "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    ],
)  # fmt: skip
def test_joiners_and_selectors_that_mean_something_stay(kept):
    assert clean(kept, "drop_invisible_characters") == kept


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a\u200bb\ufeffc\u2060d\u00ade", "abcde"), ("pass\u200dword", "password"), ("a\u200cb", "ab"), ("a\u202egnp.exe", "agnp.exe"),
        ("hi\U000e0041\U000e0042", "hi"), ("\u200e(a)\u200f", "(a)"), ("👍\u200d ok", "👍 ok"),
    ],
)  # fmt: skip
def test_characters_that_nobody_sees_go(text, wanted):
    assert clean(text, "drop_invisible_characters") == wanted


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<p>Hi <b>there</b> &amp; you</p>", "Hi there & you"),
        ("<html><head><title>T</title><style>p{}</style></head><body>x<script>alert(1)</script></body></html>", "T\n\nx"),
        ("<!DOCTYPE html><body>a<br>b</body>", "a\nb"),
        ("<ul><li>one</li><li>two</li></ul>", "- one\n- two"),
        ("<p>1 &lt; 2 and a < b and List<int> x</p>", "1 < 2 and a < b and List<int> x"),
        ("<p>see</p><pre>if x:\n    y  =  1</pre>", "see\n\n```\nif x:\n    y  =  1\n```"),
        ("<p>run <code>a  b</code> now</p>", "run `a  b` now"),
        ("<table><tr><td>a</td><td>b</td></tr><tr><td>c</td><td>d</td></tr></table>", "a\tb\nc\td"),
        ("<p>&amp;lt;</p>", "&lt;"),
        ("<p>Use &lt;p&gt;x&lt;/p&gt;</p>", "Use <p>x</p>"),
        ("<div>你好<span>世界</span></div>", "你好世界"),
    ],
)
def test_what_is_clearly_html_becomes_text(html, text):
    assert clean(html, "html_to_text") == text


@pytest.mark.parametrize(
    "text",
    [
        "What does <b>bold</b> mean?", "a < b and c > d", "List<int> and Map<String, List<T>>", "<think>reason</think>", "Fix: <p>unclosed",
        "Explain this: <div><p>Hi</p></div>", "```html\n<p>x</p>\n```", "&lt;p&gt;", "<3 you", "<p>&lt;p&gt;x&lt;/p&gt;</p>",
        "<script>run(1)</script>", "<div><img src=x></div>",
    ],
)  # fmt: skip
def test_what_only_speaks_of_html_is_left(text):
    assert clean(text, "html_to_text") == text


def test_rows_declared_to_be_html_are_taken_at_their_word():
    assert clean("Line one<br>line <i>two</i>", {"html_to_text": {"declared": True}}) == "Line one\nline two"


CODE = [
    "```python\nfor i in x:\n    if i:\n        y  =  1   \n\n\n\nz\n```",
    "~~~\na   b\t\n```\nstill  inside\n~~~",
    "```\nunclosed   fence\n   x  ",
    "````\n```\ninner   fence\n```\nstill  inside\n````",
    "text:\n\n    indented  code\n        more   \n\ttab   indented",
    "all:\n\tgcc  -o x   y.c\n",
    "- item\n  ```sh\n  a   b\n  ```",
    "diff --git a/x b/x\n@@ -1,2 +1,2 @@\n context  \n-old  line  \n+new   line \n",
]


@pytest.mark.parametrize("code", CODE)
def test_code_is_byte_identical(code):
    got = clean(code, "squeeze_whitespace")
    assert got == (code.rstrip("\n") if code.startswith("all:") else code)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("two  blanks   and\u00a0 more ", "two blanks and more"),
        ("use `a  b` and  ``c ` d``  now", "use `a  b` and ``c ` d`` now"),
        ("a\n\n\n\nb", "a\n\nb"),
        ("\n\n a \n\n", "a"),
        ("line break  \nnext", "line break  \nnext"),
        ("trailing \t\nnext  ", "trailing\nnext"),
        ("\u3000\u3000段落  一。\n\u3000\u3000段落二。", "\u3000\u3000段落 一。\n\u3000\u3000段落二。"),
        ("name    age\nbob     12\nalice   30", "name    age\nbob     12\nalice   30"),
        ("a\tb\tc\n1\t2\t3", "a\tb\tc\n1\t2\t3"),
        ("| a   | b |\n|-----|---|\n| 1   | 2 |", "| a   | b |\n|-----|---|\n| 1   | 2 |"),
        ("one  sentence.  Two.\r\nthree", "one sentence. Two.\nthree"),
        ("   ", ""),
        ("  word", "word"),
    ],
)
def test_prose_is_squeezed_and_layout_kept(text, wanted):
    assert clean(text, "squeeze_whitespace") == wanted


def test_quotes_become_plain_but_not_in_chinese_or_code():
    assert clean("“It’s” ‘so’", "unify_quotes") == "\"It's\" 'so'"
    assert clean("他说“你好”。", "unify_quotes") == "他说“你好”。"
    assert clean("`“code”`", "unify_quotes") == "`“code”`"


def test_numbers_are_masked():
    assert clean("3.14 and 1,000 in ２０２６", "mask_numbers") == "[NUMBER] and [NUMBER] in [NUMBER]"
    assert clean("7", {"mask_numbers": {"word": "#"}}) == "#"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("mail ann.lee+x@mail.example.org now", "mail [EMAIL] now"),
        ("call 138 0013 8000 or +44 20 7946 0958", "call [PHONE] or [PHONE]"),
        ("(555) 010-9999, 555-010-9999", "[PHONE], [PHONE]"),
        ("身份证11010519491231002X，谢谢", "身份证[ID]，谢谢"),
        ("110105194912310021 is no id", "110105194912310021 is no id"),
        ("SSN 078-05-1120", "SSN [ID]"),
        ("card 4111 1111 1111 1111.", "card [CARD]."),
        ("order 4111 1111 1111 1112", "order 4111 1111 1111 1112"),
        ("key AKIAIOSFODNN7EXAMPLE end", "key [KEY] end"),
        ("sk-abcdefghijklmnopqrstuvwx", "[KEY]"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----", "[KEY]"),
        ("2026-11-30 and 3.14159 and 12345", "2026-11-30 and 3.14159 and 12345"),
    ],
)
def test_personal_data_is_masked_and_other_numbers_are_not(text, wanted):
    assert clean(text, "mask_pii") == wanted


def test_kinds_of_personal_data_can_be_chosen():
    assert clean("a@b.org 078-05-1120", {"mask_pii": {"kinds": ["email"]}}) == "[EMAIL] 078-05-1120"


def test_steps_that_fired_are_named_in_order():
    assert applied("<p>a\u200b  ｂ</p>") == ["normalize_unicode", "drop_invisible_characters", "html_to_text", "squeeze_whitespace"][:3]
    assert applied("plain") == []


def test_unknown_steps_and_options_are_named():
    with pytest.raises(ParamsError, match="known: fix_mojibake"):
        choose_steps(["fix"])
    with pytest.raises(ParamsError, match="one step"):
        choose_steps([{"mask_pii": {}, "mask_numbers": {}}])
    with pytest.raises(ParamsError, match=r"mask_pii.*kinds"):
        choose_steps([{"mask_pii": {"kinds": ["shoe"]}}])


PIECES = [
    "<p>", "</p>", "<b>", "<br>", "<pre>", "</pre>", "<code>", "</code>", "<li>",
    "&amp;", "&lt;", "&#8203;", "&nbsp;", "&#0;", "<int>", "<", ">",
    "```", "~~~", "`", "\n", "\n\n", "    ", "\t", "  ", "   ", "|", "@@ -1", "diff --git ", "\r\n", "\x00", "\x1b[0m", "\x85", "\ufdd0",
    "\u200b", "\u200d", "\u200c", "\ufeff", "\u202e", "👩", "🏽", "❤️", "🏴", "\U000e0067", "\U000e007f", "م", "א", "क", "्", "e\u0301",
    "Ã©", "â€™", "Â ", "ï¼", "中", "文", "，", "“", "”", "’", "ｶﾞ", "１", "Ａ", "²", "㎏", "\u3000", "\u00a0",
    "12", "3.5", "a@b.org", "138 0013 8000", "sk-", "-", "[NUMBER]", "word", " ", "a",
]  # fmt: skip
texts = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=4)), max_size=14).map("".join)


@given(st.lists(texts, min_size=1, max_size=8), st.booleans())
def test_cleaning_twice_equals_cleaning_once(rows, everything):
    steps = choose_steps(ALL if everything else DEFAULT)
    once, fired = clean_texts(steps, pa.array(rows, pa.large_string()))
    assert once.null_count == 0
    again, fired_again = clean_texts(steps, once)
    assert again.to_pylist() == once.to_pylist()
    assert fired_again == [[]] * len(rows)
    assert [bool(names) for names in fired] == [a != b for a, b in zip(rows, once.to_pylist())]


@given(texts, st.sampled_from(sorted(STEPS)))
def test_a_text_that_a_step_changes_passes_its_gate(text, name):
    (step,) = choose_steps([name])
    if step.apply(text) != text:
        assert pc.match_substring_regex(pa.array([text]), step.gate)[0].as_py()


def test_the_gate_of_normal_forms_misses_no_character():
    characters = [chr(c) for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
    sensitive = [c for c in characters if not unicodedata.is_normalized("NFC", c) or unicodedata.combining(c)]
    sensitive += sorted({form[1] for c in characters if len(form := unicodedata.normalize("NFD", c)) > 1})
    assert len(sensitive) > 2000
    assert pc.all(pc.match_substring_regex(pa.array(sensitive), steps_module.NOT_NFC)).as_py()


def test_the_gate_of_mojibake_misses_nothing_that_ftfy_finds_bad():
    rng = random.Random(0)
    suspects = "".join(MOJIBAKE_CATEGORIES.values()) + "ГўВЂВÃÂŒœ"
    made = ("".join(rng.choice(suspects if rng.random() < 0.7 else "ab .X好") for _ in range(rng.randint(1, 4))) for _ in range(60_000))
    bad = [text for text in made if is_bad(text)]
    assert len(bad) > 5000
    assert pc.all(pc.match_substring_regex(pa.array(bad), steps_module.MOJIBAKE)).as_py()


def test_a_page_nested_ten_thousand_deep_is_no_trouble():
    assert clean("<div>" * 10_000 + "deep" + "</div>" * 10_000, "html_to_text") == "deep"


@given(st.lists(st.sampled_from(MARKS), max_size=90))
@example(["e", *"\u0301\u0323\u0f73\uff9e\u0344" * 20])
def test_many_marks_are_normalised_as_few(marks):
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        for text in ("".join(marks), "".join(marks) * 3):
            assert normal_form(form, text) == unicodedata.normalize(form, text)


def test_a_row_of_a_million_marks_ends():
    text = "e" + "\u0301\u0323" * 500_000
    assert len(clean(text)) == 1_000_000
