"""From rows to ranked cases: rules, causes, people's labels, what changed since the accepted run, clusters, patterns.

One pass over the night; a case keeps numbers and a short gist for clustering, no more, so memory follows the number of bad
rows. Texts of the few cases that are shown are read again later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.core import schemas
from pipeline.core.params import ReportParams
from pipeline.core.paths import Paths
from pipeline.report import rows as night_rows
from pipeline.report.causes import Cause, InputNorms, cause_of, norms
from pipeline.report.clusters import Cluster, cluster
from pipeline.report.conditions import Conditions
from pipeline.report.labels import Label, labels_file, read_labels
from pipeline.report.measures import Measures
from pipeline.report.page import say
from pipeline.report.patterns import Condition, Mined, mine
from pipeline.report.rows import Row
from pipeline.report.rules import FAIL_AT, Finding, resolve
from pipeline.report.since_accepted import since_accepted

GIST_CHARS = 300
FADE = 0.9  # each further case of one group counts so much less: ten causes are more telling than ten twins


@dataclass(frozen=True)
class Case:
    """One bad answer or rejected row. findings: worst first."""

    ordinal: int
    sample: int
    id: str
    control: bool
    findings: tuple[Finding, ...]
    cause: Cause
    gist: str
    state: str | None = None  # new, still: against the accepted run; None when that says nothing of the row
    cluster: int | None = None
    rank: int = 0

    @property
    def severity(self) -> float:
        return self.findings[0].severity

    @property
    def fails(self) -> bool:
        return self.severity >= FAIL_AT


@dataclass
class Night:
    """All that the page tells. Counts leave the control rows out; `control_*` are theirs."""

    cases: list[Case] = field(default_factory=list)
    clusters: list[Cluster] = field(default_factory=list)
    mined: Mined = field(default_factory=lambda: Mined((), 0, 0, 0, "few_rows"))
    answers: int = 0
    rows: int = 0
    rejected: int = 0
    rejects: Counter[tuple[str, str]] = field(default_factory=Counter)  # (stage, reason) of rejected rows
    failed_rows: int = 0
    bad: int = 0
    warned: int = 0
    control_answers: int = 0
    control_bad: int = 0
    judged_good: int = 0
    fixed: list[str] = field(default_factory=list)  # ids of control rows that failed in the accepted run
    states: Counter[str] = field(default_factory=Counter)  # new, still, fixed, fine: control answers against the accepted run
    by_condition: list[tuple[Condition, int, int]] = field(default_factory=list)  # rows and failing rows of each condition
    by_rule: Counter[str] = field(default_factory=Counter)
    by_cause: Counter[str] = field(default_factory=Counter)


def find(paths: Paths, params: ReportParams) -> Night:
    """Judge every row of the night."""
    rules, labels = resolve(params.rules), read_labels(labels_file(paths))
    usual = norms(night_rows.inputs(paths))
    accepted, measures = since_accepted(paths, rules), Measures(paths)
    night, conditions, failed = Night(), Conditions(), []
    last = -1
    for row in night_rows.answered(paths):
        measures.complete(row)
        case, good = judge(row, rules, labels, usual)
        _count(night, row, case, good, accepted.state(row))
        if not row.control:
            if row.ordinal != last:
                conditions.add(row)
                failed.append(False)
            failed[-1] |= bool(case and case.fails)
            last = row.ordinal
    for row in night_rows.rejected(paths):
        case, _ = judge(row, rules, labels, usual)
        if not row.control:
            night.rejected += 1
            night.rejects[row.stage or "", row.rejected or ""] += 1
        if case:
            night.cases.append(case)
    night.rows = len(failed)
    flags, index = np.array(failed, bool), conditions.index()
    night.mined = mine(flags, index)
    night.by_condition = [(c, len(members), int(flags[members].sum())) for c, members in index.items() if c.kind != "term"]
    _rank(night)
    own = [case for case in night.cases if not case.control]
    night.by_rule = Counter(finding.rule for case in own for finding in case.findings)
    night.by_cause = Counter(case.cause.kind for case in own if case.fails)
    return night


def judge(
    row: Row, rules: dict[str, Callable[[Row], Finding | None]], labels: dict[tuple[str, int], Label], usual: InputNorms
) -> tuple[Case | None, bool]:  # fmt: skip
    """The case of a row, None where nothing is bad; and whether a person's label said it is good."""
    findings = [found for rule in rules.values() if (found := rule(row)) is not None]
    label = labels.get((row.id, row.sample))
    if label is not None and label.applies(row.answer):
        if label.verdict == "good":
            return None, True
        findings.append(Finding("labelled_bad", 1.0))
    else:
        label = None
    if not findings:
        return None, False
    findings.sort(key=lambda finding: -finding.severity)
    cause = cause_of(row, findings, usual)
    if label is not None and label.cause:
        cause = Cause(label.cause, "labelled", {})
    gist = f"{row.text[:GIST_CHARS]}\n{(row.answer or '')[:GIST_CHARS]}"
    return Case(row.ordinal, row.sample, row.id, row.control, tuple(findings), cause, gist), False


def _count(night: Night, row: Row, case: Case | None, good: bool, state: str | None) -> None:
    fails = bool(case and case.fails)
    if state is not None:
        night.states[state] += 1
    if case is not None:
        night.cases.append(replace(case, state=state if state in ("new", "still") else None))
    if state == "fixed":
        night.fixed.append(row.id)
    night.judged_good += good
    if row.control:
        night.control_answers += 1
        night.control_bad += fails
        return
    night.answers += 1
    night.failed_rows += row.finish_reason == "error"
    night.bad += fails
    night.warned += case is not None and not fails


def _rank(night: Night) -> None:
    """Clusters first, then ranks: own rows before control rows, worst first, each further case of a rule and of a cluster fading."""
    ordered = sorted(night.cases, key=lambda case: (case.control, -case.severity, -len(case.findings), case.ordinal, case.sample))
    failing = [case for case in ordered if case.fails and not case.control]
    night.clusters = cluster([case.gist for case in failing], [(case.cause.kind, case.findings[0].rule) for case in failing])
    number = {place: group.number for group in night.clusters for place in group.members}
    of_case = {(case.ordinal, case.sample): number.get(place) for place, case in enumerate(failing)}
    seen: Counter[Any] = Counter()
    weighed = []
    for place, case in enumerate(ordered):
        group = of_case.get((case.ordinal, case.sample))
        kind = (case.cause.kind, case.findings[0].rule)
        weight = case.severity * FADE ** (seen[kind] + seen[group])
        weighed.append((case.control, -weight, place, replace(case, cluster=group)))
        seen[kind] += 1
        seen[group] += group is not None
    weighed.sort(key=lambda item: item[:3])
    night.cases = [replace(case, rank=rank) for rank, (_, _, _, case) in enumerate(weighed, 1)]


def to_table(cases: Iterable[Case]) -> pa.Table:
    """BAD_CASES rows: one per case and rule, in order of rank, then severity."""
    rows = [
        {
            "ordinal": case.ordinal, "sample": case.sample, "rule": finding.rule, "cause": case.cause.kind,
            "severity": finding.severity, "evidence": evidence(finding, "en"), "reason": reason(case.cause, "en"),
            "state": case.state, "cluster": case.cluster, "rank": case.rank,
        }
        for case in cases for finding in case.findings
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=schemas.BAD_CASES)


def evidence(finding: Finding, language: str) -> str:
    return say(f"evidence.{finding.rule}", language, **finding.values)


def reason(cause: Cause, language: str) -> str:
    return say(f"reason.{cause.reason}", language, **cause.values)
