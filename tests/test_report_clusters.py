"""Groups of similar failures: planted topics come back as groups of one topic each, in both languages, with a telling label."""

import random

from pipeline.report.clusters import cluster, joined

PLANTED = {
    "invoice total": "What is the invoice total after tax for order",
    "bus timetable": "When does the next bus leave by the timetable at stop",
    "退货": "这件商品退货需要几天，单号",
    "密码": "我忘记登录密码怎么办，账号",
}
FILLER = [
    "river",
    "stone",
    "lamp",
    "paper",
    "cloud",
    "window",
    "garden",
    "letter",
    "engine",
    "market",
    "bridge",
    "winter",
    "coffee",
    "train",
]


def texts(per_topic: int, noise: int, seed: int = 0) -> tuple[list[str], list[str]]:
    chance = random.Random(seed)
    made = [
        (name, f"{start} {chance.randrange(1000)} {' '.join(chance.sample(FILLER, 3))}")
        for name, start in PLANTED.items()
        for _ in range(per_topic)
    ]
    made += [("noise", " ".join(chance.sample(FILLER, 8)) + f" {n}") for n in range(noise)]
    chance.shuffle(made)
    return [text for _, text in made], [name for name, _ in made]


def test_planted_topics_come_back_pure_and_labelled():
    for seed in range(5):
        written, truth = texts(12, 20, seed)
        groups = cluster(written, [("model", "low_score")] * len(written))
        found = {}
        for group in groups:
            topics = {truth[member] for member in group.members}
            if topics != {"noise"}:
                assert len(topics) == 1, (seed, topics, group.label)
                found.setdefault(topics.pop(), []).append(group)
        for name in PLANTED:
            assert sum(len(group.members) for group in found[name]) >= 11
            assert any(word in " ".join(found[name][0].label) for word in name.split()), (name, found[name][0].label)


def test_groups_stay_within_a_cause_and_a_rule():
    written, _ = texts(10, 0)
    kinds = [(("model", "data")[n % 2], ("empty", "looping")[n % 3 == 0]) for n in range(len(written))]
    for group in cluster(written, kinds):
        assert {kinds[member] for member in group.members} == {(group.cause, group.rule)}


def test_few_blank_and_many_texts(monkeypatch):
    assert cluster([], []) == [] and cluster(["a"] * 2, [("model", "empty")] * 2) == []
    assert cluster(["", " ", "!"], [("model", "empty")] * 3) == []
    monkeypatch.setattr("pipeline.report.clusters.MAX_CLUSTERED", 20)
    written, truth = texts(15, 0)
    groups = cluster(written, [("model", "empty")] * 60)
    assert sum(len(group.members) for group in groups) > 50
    assert all(len({truth[member] for member in group.members}) == 1 for group in groups)


def test_the_same_cases_give_the_same_groups():
    written, _ = texts(9, 30)
    kinds = [("model", "empty")] * len(written)
    assert cluster(written, kinds) == cluster(written, kinds)


def test_overlapping_pairs_of_characters_are_one_term_again():
    assert joined(["一句", "句话", "bridge"], ["请用一句话描写"] * 3) == ["一句话", "bridge"]
    assert joined(["一句", "句话"], ["一句", "句话", "一句"]) == ["一句", "句话"]
