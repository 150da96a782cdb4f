"""The page of bad cases: what a reader with five minutes needs, in the order they need it. Prepares data; templates lay it out."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from pipeline.core.params import ReportParams
from pipeline.evaluation.metrics import METRICS
from pipeline.report import headline
from pipeline.report.bad_cases import Case, Night
from pipeline.report.causes import CAUSES
from pipeline.report.marks import Segment, closest, differences, shaded
from pipeline.report.page import render, visible
from pipeline.report.patterns import Condition, intervals
from pipeline.report.rows import Row
from pipeline.report.tokens import TokenTexts

FIRST_CASES = 10
CONTROL_SHARE = 5  # one place in so many is kept for control rows
MAX_TEXT_CHARS = 6000
MAX_ADVICE = 5
MAX_CLUSTERS = 12
OUT_OF_100 = ("bleu", "chrf")
OPEN_SCALES = ("length_ratio", "logprob_mean", "logprob_min", "perplexity")


@dataclass(frozen=True)
class Shown:
    """One case as the page shows it; text fields are None where report.show_text is false."""

    case: Case
    row: Row
    prompt: str | None = None
    answer: list[Segment] | None = None
    reference: list[Segment] | None = None
    extracted: str | None = None
    is_shaded: bool = False
    scores: dict[str, float] = field(default_factory=dict)


def show(case: Case, row: Row, tokens: TokenTexts | None, show_text: bool) -> Shown:
    """Gather what the page says of one case."""
    if not show_text:
        return Shown(case, row, scores=row.scores)
    answer, is_shaded = None, False
    if row.answer is not None:
        answer = [Segment(visible(row.answer, MAX_TEXT_CHARS))]
        if tokens is not None and row.token_ids is not None and row.token_logprobs is not None and len(row.answer) <= MAX_TEXT_CHARS:
            answer = shaded(row.answer, tokens.pieces(row.token_ids.tolist()), row.token_logprobs)
            is_shaded = any(segment.kind for segment in answer)
    scored = row.answer if row.extracted is None else row.extracted
    reference = None
    if row.references:
        reference = differences(closest(row.references, scored or ""), scored or "")
    extracted = None if scored == row.answer else scored
    return Shown(case, row, row.prompt, answer, reference, extracted, is_shaded, row.scores)


def write(
    night: Night, rows: dict[tuple[int, int], Row], params: ReportParams, metrics: dict[str, Any], gate: dict[str, Any] | None,
    tokens: TokenTexts | None,
) -> bytes:  # fmt: skip
    """The page's bytes. rows: those of the cases that are shown, by (ordinal, sample)."""
    shown = [show(case, rows[case.ordinal, case.sample], tokens, params.show_text) for case in chosen(night, params)]
    return render(
        "bad_cases.html", params.language, shown=shown, first=FIRST_CASES, max_text=MAX_TEXT_CHARS, **summary(night, params, metrics, gate)
    )


def chosen(night: Night, params: ReportParams) -> list[Case]:
    """The cases of the page: the first own rows of the ranking, then control rows, which keep a fifth of the places."""
    own, control = ([case for case in night.cases if case.control == kept] for kept in (False, True))
    kept = min(len(control), max(params.max_cases - len(own), params.max_cases // CONTROL_SHARE))
    return own[: params.max_cases - kept] + control[:kept]


def summary(night: Night, params: ReportParams, metrics: dict[str, Any], gate: dict[str, Any] | None) -> dict[str, Any]:
    """What both the page and the mail say before the cases."""
    return {
        "night": night, "params": params, "show_text": params.show_text, "verdict": headline.verdict_of(gate),
        "reasons": headline.reasons(gate),
        "share": night.bad / night.answers if night.answers else None, "states": night.states,
        "compared": bool(night.states), "accepted": bool((gate or {}).get("baseline")),
        "metrics": metric_rows(metrics, gate), "causes": cause_rows(night),
        "rules": sorted(night.by_rule.items(), key=lambda item: (-item[1], item[0])), "advice": advice(night),
        "patterns": night.mined.patterns, "breakdowns": breakdowns(night), "clusters": night.clusters[:MAX_CLUSTERS],
        "examples": examples(night, params),
        "total": len(night.cases),
    }  # fmt: skip


def examples(night: Night, params: ReportParams, most: int = 3) -> dict[int, list[int]]:
    """Ranks of the first few shown cases of each group."""
    found: dict[int, list[int]] = defaultdict(list)
    for case in chosen(night, params):
        if case.cluster is not None and len(found[case.cluster]) < most:
            found[case.cluster].append(case.rank)
    return found


def metric_rows(metrics: dict[str, Any], gate: dict[str, Any] | None) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Metrics that some row has, those people look at first and the others: mean, interval, rows scored, the control set's mean.

    better: 1 for higher, -1 for lower, 0 for neither. best: the end of the scale where there is one. moved: the gate's check
    of the control set against the accepted run.
    """
    held, control = metrics.get("metrics") or {}, metrics.get("control") or {}
    moved = {check["metric"]: check for check in (gate or {}).get("checks", ()) if check["check"] == "drop" and "slice" not in check}

    def row(name: str) -> dict[str, Any]:
        best = 100.0 if name in OUT_OF_100 else None if name in OPEN_SCALES else 1.0
        better = METRICS[name].better if name in METRICS else 0
        return {"name": name, "best": best, "better": better, "control": (control.get(name) or {}).get("mean"), "moved": moved.get(name),
                **held[name]}  # fmt: skip

    valid = [name for name in held if held[name].get("n_valid") or (control.get(name) or {}).get("n_valid")]
    first, others = headline.split(valid)
    return [row(name) for name in first], [row(name) for name in others]


def cause_rows(night: Night) -> list[dict[str, Any]]:
    """Per cause: how many failing cases, and its reasons by number."""
    reasons: dict[str, Counter[str]] = defaultdict(Counter)
    for case in night.cases:
        if case.fails and not case.control:
            reasons[case.cause.kind][case.cause.reason] += 1
    total = sum(night.by_cause.values())
    return [
        {"kind": kind, "cases": night.by_cause[kind], "share": night.by_cause[kind] / total if total else 0.0,
         "reasons": sorted(reasons[kind].items(), key=lambda item: (-item[1], item[0]))}
        for kind in sorted(CAUSES, key=lambda kind: (-night.by_cause[kind], kind))
    ]  # fmt: skip


def advice(night: Night) -> list[dict[str, Any]]:
    """What to change, by how many failing cases it would touch."""
    counted = Counter((case.cause.kind, case.cause.reason) for case in night.cases if case.fails and not case.control)
    total = sum(counted.values())
    ordered = sorted(counted.items(), key=lambda item: (-item[1], item[0]))[:MAX_ADVICE]
    return [{"kind": kind, "reason": reason, "cases": count, "total": total, "share": count / total} for (kind, reason), count in ordered]


def breakdowns(night: Night, max_values: int = 12, max_fields: int = 4) -> list[dict[str, Any]]:
    """Failing share by the values of a few fields of few values: rows, failures, share, interval."""
    fields: dict[tuple[str, str], list[tuple[Condition, int, int]]] = defaultdict(list)
    for condition, rows, failures in night.by_condition:
        if condition.kind in ("field", "language", "bucket", "step"):
            fields[condition.kind, condition.name].append((condition, rows, failures))
    usable = [(key, values) for key, values in fields.items() if (2 <= len(values) <= max_values and key[0] != "step") or key[0] == "step"]
    usable.sort(key=lambda item: (("field", "language", "bucket", "step").index(item[0][0]), item[0][1]))
    found = []
    for (kind, name), values in usable[:max_fields]:
        values.sort(key=lambda item: (_bound(item[0]), -item[2] / item[1], item[0].value))
        bounds = intervals([item[2] for item in values], [item[1] for item in values])
        found.append({
            "kind": kind, "name": name,
            "values": [{"value": c.value, "rows": rows, "failures": failures, "share": failures / rows, "low": low, "high": high}
                       for (c, rows, failures), (low, high) in zip(values, bounds)],
        })  # fmt: skip
    return found


def _bound(condition: Condition) -> int:
    """Lengths stay in their order; all else is ordered by how much fails."""
    return int("".join(filter(str.isdigit, condition.value)) or 0) if condition.kind == "bucket" else 0
