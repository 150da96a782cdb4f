"""The engine on a CUDA device; skipped elsewhere. By hand: python -m pytest tests/gpu -m gpu"""

import pytest
import torch
from engine_requests import STOP_IDS, answers, make_engine, random_requests

from pipeline.core.params import ModelParams
from pipeline.engine import reference
from pipeline.model.weights import load_decoder

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.fixture(scope="module")
def decoder(tiny_checkpoint):
    return load_decoder(tiny_checkpoint, ModelParams(dtype="float32", device="cuda")).double()


@pytest.mark.parametrize("ways", [{"page_size": 4, "max_running_rows": 6, "max_step_tokens": 24}, {"page_size": 256}])
def test_tokens_on_the_card_are_those_of_the_oracle(decoder, ways):
    requests = random_requests(seed=0, count=12, vocab=decoder.usable_vocab, max_prompt_tokens=40)
    found = answers(make_engine(decoder, **ways), requests)
    for request in requests:
        assert found[request.id, 0].token_ids == reference.generate(decoder, request, STOP_IDS).token_ids


def test_tokens_on_the_card_are_those_on_the_processor(decoder, tiny_checkpoint):
    on_cpu = load_decoder(tiny_checkpoint, ModelParams(dtype="float32", device="cpu")).double()
    requests = random_requests(seed=1, count=12, vocab=decoder.usable_vocab)
    here, there = answers(make_engine(on_cpu), requests), answers(make_engine(decoder), requests)
    assert all(there[key].token_ids == answer.token_ids for key, answer in here.items())
