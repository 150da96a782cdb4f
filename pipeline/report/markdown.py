"""The report for mail and chat: the same facts as the page in a hundred lines of Markdown, row text kept inert and short."""

from __future__ import annotations

from typing import Any

from pipeline.core.params import ReportParams
from pipeline.report.bad_cases import Case, Night, evidence
from pipeline.report.html import chosen, summary
from pipeline.report.page import number, percent, pvalue, say, visible
from pipeline.report.patterns import Condition, Pattern
from pipeline.report.rows import Row

CASES = 10
SNIPPET_CHARS = 140


def write(
    night: Night, rows: dict[tuple[int, int], Row], params: ReportParams, metrics: dict[str, Any], gate: dict[str, Any] | None
) -> bytes:  # fmt: skip
    """Markdown as UTF-8, in report.language."""
    facts, language = summary(night, params, metrics, gate), params.language

    def t(key: str, **values: Any) -> str:
        return say(key, language, **values)

    lines = [f"# {t('verdict.' + facts['verdict'])}", "", _lead(night, facts, t), ""]
    lines += [f"- {inert(reason[language])}" for reason in facts["reasons"]] + [""] * bool(facts["reasons"])
    lines += [f"## {t('h.change')}", ""]
    lines += [
        f"{place}. **{t('cause.' + item['kind'])}**: {t('advice.' + item['reason'])} ({t('why.' + item['reason'])}: "
        f"{t('advice.count', count=item['cases'], total=item['total'], share=percent(item['share']))})"
        for place, item in enumerate(facts["advice"], 1)
    ] or [t("advice.nothing")]
    lines += ["", f"## {t('h.where')}", ""]
    mined = night.mined
    lines += [
        f"- {group(pattern, params.show_text, language)}: {percent(pattern.rate)} ({number(pattern.rows)}), "
        f"{t('col.rest')} {percent(pattern.rest_rate)}, p {pvalue(pattern.p)}"
        for pattern in mined.patterns
    ] or [t(f"silence.{mined.silence}", tried=mined.tried, rows=mined.rows, failures=mined.failures)]
    if facts["metrics"][0]:
        lines += [
            "",
            f"## {t('h.scores')}",
            "",
            f"| {t('col.metric')} | {t('col.mean')} | {t('col.interval')} | {t('col.valid')} |",
            "|---|---:|---:|---:|",
        ]
        lines += [_metric(item) for item in facts["metrics"][0]]
    lines += ["", f"## {t('h.cases')}", ""]
    for case in chosen(night, params)[:CASES]:
        lines += _case(case, rows[case.ordinal, case.sample], params.show_text, language)
    if not night.cases:
        lines.append(t("lead.nothing", answers=night.answers))
    return ("\n".join(lines).rstrip() + "\n").encode("utf-8", "replace")


def _lead(night: Night, facts: dict[str, Any], t: Any) -> str:
    parts = [t("lead.open")] * (facts["verdict"] == "open")
    parts += [
        t("lead.counts", bad=night.bad, answers=night.answers, share=percent(facts["share"]), warned=night.warned)
        if night.bad or night.warned
        else t("lead.nothing", answers=night.answers)
    ]  # fmt: skip
    if facts["compared"]:
        parts.append(t("lead.changes", new=facts["states"]["new"], still=facts["states"]["still"], fixed=len(night.fixed)))
    parts += [t("lead.rejected", count=night.rejected)] * bool(night.rejected)
    parts += [t("lead.failed", count=night.failed_rows)] * bool(night.failed_rows)
    return " ".join(parts)


def _metric(item: dict[str, Any]) -> str:
    interval = "–" if item.get("low") is None else f"{number(item['low'])} – {number(item['high'])}"
    return f"| {item['name']} | {number(item['mean'])} | {interval} | {number(item['n_valid'])} |"


def _case(case: Case, row: Row, show_text: bool, language: str) -> list[str]:
    found = "; ".join(f"{say('rule.' + finding.rule, language)}: {evidence(finding, language)}" for finding in case.findings)
    lines = [f"{case.rank}. `{code(case.id)}` **{say('cause.' + case.cause.kind, language)}** {inert(found, 400)}"]
    if show_text and not row.rejected:
        lines += [f"   - {inert(row.text)}", f"   - → {inert(row.answer or '')}"]
    return lines


def group(pattern: Pattern, show_text: bool, language: str) -> str:
    """A pattern's conditions in words."""
    return " & ".join(_condition(item, show_text, language) for item in pattern.conditions)


def _condition(item: Condition, show_text: bool, language: str) -> str:
    if item.kind == "field":
        return f"{inert(item.name)} = {inert(item.value)}"
    if item.kind == "term":
        return f"{say('kind.term', language)} “{inert(item.value)}”" if show_text else say("kind.hidden", language)
    return f"{say('kind.' + item.kind, language)} {inert(item.value)}"


def inert(text: str, limit: int = SNIPPET_CHARS) -> str:
    """One line of row text in which nothing is markup, a link, a mention or an image."""
    flat = visible(" ".join(text.split()), limit)
    return (
        "".join(f"\\{mark}" if mark in "\\`*_{}[]()<>#+-!|~&@" else mark for mark in flat)
        .replace("://", ":\u2060//")
        .replace("www.", "www\u2060.")
    )


def code(text: str) -> str:
    """Text that can stand between backticks."""
    return visible(text, 80).replace("`", "'").replace("\n", " ")
