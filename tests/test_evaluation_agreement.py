"""Our numbers are the field's numbers: sacrebleu's command line, rouge-score and SQuAD's own script, to 1e-6."""

import json
import random
import subprocess
import sys

import pytest
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU, CHRF
from torchmetrics.functional.text import squad

from pipeline.evaluation import overlap, translation
from pipeline.evaluation.answer import Answer
from pipeline.evaluation.tokenisers import TOKENISERS

ENGLISH = [
    ("The cat sat on the mat.", ["The cat sat on the mat.", "A cat is sitting on a mat!"]),
    ("It's 5 o'clock, isn't it? (yes)", ["It is five o'clock."]),
    ("Naïve models — say, a unigram — don't work; “quoted” text does.", ["Naive models don't work, but quoted text does well."]),
    ("alpha_beta gamma-delta 3.14 e-mail &amp; more", ["alpha beta gamma delta 3,14 email & more"]),
    ("the the the the", ["the"]),
    ("", ["something was expected"]),
    ("one", ["one two three four five"]),
    (
        "The treaty was signed in 1848, ending the war.\nIt was signed in a small town.",
        ["In 1848 the treaty ended the war, signed in a town."],
    ),
]
CHINESE = [
    ("周末一起去爬山吧", ["周末一起去爬山吧"]),
    ("周末一起去爬山吗", ["周末一起去爬山吧", "周末去爬山好吗？"]),
    ("把GPU报告发给老王 2 份", ["请把 GPU 报告发给老王2份。"]),
    ("好", ["好"]),
    ("完全不同的句子", ["今天下雨了"]),
]  # fmt: skip


def answer(text, references):
    return Answer(text, text, references)


def noise(seed, count=40):
    generator = random.Random(seed)
    words = [f"w{generator.randint(0, 30)}" + generator.choice(["", ",", ".", "'s", "-x"]) for _ in range(400)]
    texts = [" ".join(generator.sample(words, generator.randint(1, 40))) for _ in range(2 * count)]
    return [(texts[2 * i], [texts[2 * i + 1], texts[2 * i - 1]]) for i in range(count)]


@pytest.mark.parametrize(("pairs", "tokeniser"), [(ENGLISH, "13a"), (CHINESE, "zh"), (noise(1), "13a")])
def test_bleu_and_chrf_equal_sacrebleu(pairs, tokeniser):
    reference_bleu, reference_chrf = BLEU(effective_order=True, tokenize=tokeniser), CHRF()
    for text, references in pairs:
        ours = answer(text, references)
        assert translation.tokeniser_name(ours) == tokeniser
        assert translation.bleu(ours) == pytest.approx(reference_bleu.sentence_score(text, references).score, abs=1e-6)
        assert translation.chrf(ours) == pytest.approx(reference_chrf.sentence_score(text, references).score, abs=1e-6)


@pytest.mark.parametrize(("pairs", "tokeniser"), [(ENGLISH, "13a"), (CHINESE, "zh")])
def test_per_row_and_corpus_scores_equal_the_sacrebleu_command(tmp_path, pairs, tokeniser):
    one_line = [(" ".join(text.split()), references[0]) for text, references in pairs]
    (tmp_path / "ref.txt").write_text("".join(f"{reference}\n" for _, reference in one_line), encoding="utf-8")
    (tmp_path / "hyp.txt").write_text("".join(f"{text}\n" for text, _ in one_line), encoding="utf-8")

    def command(*extra):
        arguments = [sys.executable, "-m", "sacrebleu", "ref.txt", "-i", "hyp.txt", "-tok", tokeniser, "-w", "8", "-b", *extra]
        done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.split()

    answers = [answer(text, [reference]) for text, reference in one_line]
    assert [translation.bleu(item) for item in answers] == pytest.approx([float(x) for x in command("-m", "bleu", "-sl")], abs=1e-6)
    sums = [sum(column) for column in zip(*(translation.bleu_statistics(item) for item in answers), strict=True)]
    assert translation.bleu_of(sums, effective_order=False) == pytest.approx(float(command("-m", "bleu")[0]), abs=1e-6)
    sums = [sum(column) for column in zip(*(translation.chrf_statistics(item) for item in answers), strict=True)]
    assert translation.chrf_of(sums) == pytest.approx(float(command("-m", "chrf")[0]), abs=1e-6)


@pytest.mark.parametrize("name", ["13a", "zh", "char"])
def test_tokenisers_are_sacrebleus_token_for_token(name):
    theirs = BLEU(tokenize=name).tokenizer
    generator = random.Random(7)
    alphabet = "ab1 2.,-:;!?()[]{}&<>\"'/\\\n\t_~`^|$%#@*+=中文，。！“”—…１ａ\u3000\u00a0éж한か&quot;<skipped>-\n"
    texts = ["".join(generator.choices(alphabet, k=generator.randint(0, 60))) for _ in range(400)]
    for text in [*texts, *(text for text, _ in ENGLISH + CHINESE), "1,000.5-6 a.b, ..,. -\n &amp;lt;"]:
        assert TOKENISERS[name](text) == theirs(text.rstrip()).split()


def test_chrf_falls_back_where_an_alphabet_is_too_large():
    text = "".join(chr(0x4E00 + i) for i in range(1200))
    ours = answer(text[:1100], [text])
    assert translation.chrf(ours) == pytest.approx(CHRF().sentence_score(text[:1100], [text]).score, abs=1e-6)


def test_rouge_equals_rouge_score_for_english():
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=False)
    for text, references in ENGLISH + noise(2):
        for reference in references:
            ours = answer(text, [reference])
            theirs = scorer.score(reference, text)
            assert overlap.rouge_n(ours, 1) == pytest.approx(theirs["rouge1"].fmeasure, abs=1e-6)
            assert overlap.rouge_l(ours) == pytest.approx(theirs["rougeL"].fmeasure, abs=1e-6)
            if len(ours.rouge_references[0]) > 1:  # shorter references: rouge-score gives 0 even to equal texts
                assert overlap.rouge_n(ours, 2) == pytest.approx(theirs["rouge2"].fmeasure, abs=1e-6)
        best = scorer.score_multi(references, text)
        assert overlap.rouge_l(answer(text, references)) == pytest.approx(best["rougeL"].fmeasure, abs=1e-6)


def test_exact_and_f1_equal_squad():
    for text, references in ENGLISH + noise(3) + [("The  Eiffel-Tower!", ["eiffel tower", "an eiffeltower"]), ("$1,000", ["1000"])]:
        if text == "the the the the":
            continue  # SQuAD calls two texts equal when nothing is left of either; we compare what was there
        prediction = {"prediction_text": text, "id": "1"}
        target = {"answers": {"answer_start": [0] * len(references), "text": references}, "id": "1"}
        theirs = squad(prediction, target)
        assert overlap.exact(answer(text, references)) == pytest.approx(float(theirs["exact_match"]) / 100, abs=1e-6)
        assert overlap.token_f1(answer(text, references)) == pytest.approx(float(theirs["f1"]) / 100, abs=1e-6)


def test_squad_examples_by_hand():
    assert overlap.token_f1(answer("the red cat", ["a red dog"])) == pytest.approx(0.5)
    assert json.dumps(overlap.exact(answer("An answer.", ["answer"]))) == "1.0"
