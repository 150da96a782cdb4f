"""Groups of similar failures within a cause and rule: TF-IDF over what was asked and answered, average linkage,
a label of telling terms.

Beyond MAX_CLUSTERED cases of one cause the worst are clustered and the others join the nearest group. Deterministic.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.cluster import AgglomerativeClustering
from sklearn.feature_extraction.text import TfidfVectorizer

from pipeline.report.terms import telling

MAX_CLUSTERED = 1500
MIN_SIZE = 3
MAX_DISTANCE = 0.82  # cosine distance at which average linkage stops joining
LABEL_TERMS = 4


@dataclass(frozen=True)
class Cluster:
    """number: from 0; members: places in the list given, worst first; label: its most telling terms."""

    number: int
    cause: str
    rule: str
    label: tuple[str, ...]
    members: tuple[int, ...]


def cluster(texts: list[str], kinds: list[tuple[str, str]]) -> list[Cluster]:
    """Groups of at least MIN_SIZE cases, largest first; texts and kinds (cause, strongest rule) are in rank order, worst first."""
    found: list[tuple[tuple[str, str], tuple[str, ...], tuple[int, ...]]] = []
    for kind in sorted(set(kinds)):
        places = [place for place, item in enumerate(kinds) if item == kind]
        if len(places) >= MIN_SIZE:
            for label, members in _groups([texts[place] for place in places]):
                found.append((kind, label, tuple(places[member] for member in members)))
    found.sort(key=lambda item: (-len(item[2]), item[2]))
    return [Cluster(number, *kind, label, members) for number, (kind, label, members) in enumerate(found)]


def _groups(texts: list[str]) -> list[tuple[tuple[str, ...], list[int]]]:
    vectorizer = TfidfVectorizer(analyzer=telling, sublinear_tf=True, min_df=2, max_df=0.7 if len(texts) > 8 else 1.0, max_features=20_000)
    try:
        matrix = vectorizer.fit_transform(texts).astype(np.float64)
    except ValueError:  # no term stands in two texts
        return []
    spoken = np.flatnonzero(np.diff(matrix.indptr))
    if len(spoken) < MIN_SIZE:
        return []
    core = spoken[:MAX_CLUSTERED]
    labels = AgglomerativeClustering(
        n_clusters=None, metric="precomputed", linkage="average", distance_threshold=MAX_DISTANCE
    ).fit_predict(np.clip(1 - (matrix[core] @ matrix[core].T).toarray(), 0, 2))  # fmt: skip
    groups = [core[labels == label].tolist() for label in range(labels.max() + 1)]
    groups = [group for group in groups if len(group) >= MIN_SIZE]
    if not groups:
        return []
    _join_rest(matrix, groups, spoken[MAX_CLUSTERED:])
    groups.sort(key=lambda group: (-len(group), group[0]))
    names = vectorizer.get_feature_names_out()
    return [(_label(matrix, texts, group, names), sorted(group)) for group in groups]


def _join_rest(matrix: csr_matrix, groups: list[list[int]], rest: np.ndarray) -> None:
    if not len(rest):
        return
    centres = np.stack([np.asarray(matrix[group].mean(axis=0)).ravel() for group in groups])
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    similarity = np.asarray(matrix[rest] @ centres.T)
    for place, row in zip(rest.tolist(), similarity):
        best = int(np.argmax(row))
        if 1 - row[best] <= MAX_DISTANCE:
            groups[best].append(place)


def _label(matrix: csr_matrix, texts: list[str], group: list[int], names: np.ndarray) -> tuple[str, ...]:
    """Terms whose mean weight in the group exceeds their mean weight elsewhere most; no word is said twice."""
    inside = np.asarray(matrix[group].mean(axis=0)).ravel()
    total = np.asarray(matrix.sum(axis=0)).ravel()
    outside = (total - inside * len(group)) / max(matrix.shape[0] - len(group), 1)
    order = np.argsort(-(inside - outside), kind="stable")[: 3 * LABEL_TERMS]
    chosen = joined([str(names[place]) for place in order if inside[place] > outside[place]], [texts[place] for place in group])
    kept: list[str] = []
    for term in chosen:
        if not any(set(term.split()) & set(other.split()) for other in kept):
            kept.append(term)
    return tuple(kept[:LABEL_TERMS])


def joined(terms: list[str], texts: list[str]) -> list[str]:
    """Pairs of characters that overlap become one term again where the texts hold it: 一句 and 句话 are 一句话."""
    terms = list(terms)
    for _ in range(len(terms)):
        for a, b in permutations(terms, 2):
            if not (a + b).isascii() and " " not in a + b and a[-1] == b[0]:
                whole = a + b[1:]
                if 2 * sum(whole in text for text in texts) >= sum(a in text for text in texts):
                    place = min(terms.index(a), terms.index(b))
                    terms = [term for term in terms if term not in (a, b)]
                    terms.insert(place, whole)
                    break
        else:
            break
    return terms
