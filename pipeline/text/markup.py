"""HTML to text, only for rows that clearly are HTML: a question about `<b>`, `a < b` and `List<int>` are left alone."""

from __future__ import annotations

import re

from selectolax.lexbor import LexborHTMLParser, LexborNode

BLOCKS = frozenset(
    re.findall(
        r"\w+",
        "address article aside blockquote body dd details div dl dt fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 header "
        "hr html li main nav ol p section summary table tbody tfoot thead title tr ul",
    )
)
INLINE = frozenset(
    re.findall(
        r"\w+",
        "a abbr b bdi bdo big br button caption center cite code col colgroup data del dfn em font head i iframe img input ins kbd "
        "label link mark meta noscript option pre q s samp script select small span strike strong style sub sup svg td template "
        "textarea th time tt u var video wbr",
    )
)
ROW_LIKE = {"li": ("\n- ", ""), "tr": ("\n", ""), "dt": ("\n", ""), "dd": ("\n", "")}
DROPPED = "script, style, noscript, template, head > link, head > meta, svg, iframe"
_NAMES = "|".join(sorted(BLOCKS | INLINE, key=lambda name: (-len(name), name)))
KNOWN_TAG = re.compile(rf"</?(?:{_NAMES})(?:\s[^<>]*)?/?>", re.IGNORECASE)
DOCUMENT = re.compile(r"\s*(?:<\?xml[^<>]*>\s*)?(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html[\s>])", re.IGNORECASE | re.DOTALL)
WHOLE = re.compile(
    rf"\s*<(?:{_NAMES})(?:\s[^<>]*)?/?>.*(?:</(?:{_NAMES})\s*>|<(?:br|hr|img)(?:\s[^<>]*)?/?>)\s*", re.IGNORECASE | re.DOTALL
)
NO_TAG = re.compile(rf"<(?!/?(?:{_NAMES})(?:\s[^<>]*)?/?>|!--|!doctype|\?xml)", re.IGNORECASE)


def is_clearly_html(text: str) -> bool:
    """A document, or a fragment that begins and ends with HTML tags."""
    return bool(DOCUMENT.match(text) or (text.lstrip().startswith("<") and WHOLE.fullmatch(text)))


def html_to_text(text: str, declared: bool = False) -> str:
    """The readable text of an HTML row: entities decoded once, script and style bodies gone, code kept as Markdown code.

    Left as they are: a row whose text would itself look like HTML (a page that explains tags), so that cleaning twice
    equals cleaning once, and a row that is nothing but markup, which is code.
    """
    if not (declared and KNOWN_TAG.search(text)) and not is_clearly_html(text):
        return text
    parser = LexborHTMLParser(NO_TAG.sub("&lt;", text))
    for node in parser.css(DROPPED):
        node.decompose()
    parts: list[str] = []
    if parser.root is not None:
        _walk(parser.root, parts)
    plain = re.sub(r" *\n *", "\n", re.sub(r"\n{3,}", "\n\n", "".join(parts))).strip()
    plain = plain.replace(HARD_SPACE, " ").replace(HARD_BREAK, "\n")
    return text if not plain or is_clearly_html(plain) or (declared and KNOWN_TAG.search(plain)) else plain


HARD_SPACE, HARD_BREAK = "\ufdd0", "\ufdd1"  # blanks and line ends of preformatted text while the rest is folded


def _walk(root: LexborNode, parts: list[str]) -> None:
    """Depth first without recursion: a page may be nested ten thousand deep."""
    todo: list[LexborNode | str] = [root]
    while todo:
        node = todo.pop()
        if isinstance(node, str):
            _append(parts, node)
            continue
        tag = node.tag
        if tag == "-text":
            _append(parts, re.sub(r"[ \t\r\n\f]+", " ", node.text_content or ""))
        elif tag == "br":
            _append(parts, "\n")
        elif tag in ("pre", "textarea"):
            _append(parts, _fenced(node.text(deep=True)))
        elif tag in ("code", "kbd", "samp"):
            _append(parts, _inline(node.text(deep=True)))
        elif tag not in ("-comment", "!doctype", "-doctype"):
            before, after = ROW_LIKE.get(tag or "") or (("\n\n", "\n\n") if tag in BLOCKS else ("", ""))
            after = "\t" if tag in ("td", "th") and node.next is not None else after
            todo += [after, *reversed(list(node.iter(include_text=True))), before]


def _append(parts: list[str], text: str) -> None:
    if text == " " and (not parts or parts[-1].endswith((" ", "\n"))):
        return
    if text:
        parts.append(text)


def _fenced(code: str) -> str:
    mark = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", code)), default=0))
    return "\n\n" + _hard(f"{mark}\n{code.strip(chr(10))}\n{mark}") + "\n\n"


def _inline(code: str) -> str:
    mark = "`" * (1 + max((len(run) for run in re.findall(r"`+", code)), default=0))
    return _hard(f"{mark}{code}{mark}") if code.strip() else code


def _hard(text: str) -> str:
    return text.replace(" ", HARD_SPACE).replace("\n", HARD_BREAK)
