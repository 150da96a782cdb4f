"""Answers held to a grammar: whatever a model would say, what comes out fits the schema or the expression."""

import json
import random
import re

import jsonschema
import pytest
from test_text_tokenizer import byte_fallback, byte_level

from pipeline.core.errors import ParamsError
from pipeline.text.constraint import make_constraint

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["river", "桥"]},
        "stones": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
        "wet": {"type": "boolean"},
    },
    "required": ["name", "kind", "stones"],
    "additionalProperties": False,
}


def walk(tokenizer, grammar, seed, stop, limit=400):
    """Take random allowed tokens until the stop token is drawn; return the text."""
    rng = random.Random(seed)
    constraint = make_constraint(tokenizer, grammar, [stop])()
    ids = []
    while len(ids) < limit:
        allowed = constraint.allowed()
        assert allowed.shape == (tokenizer.size,)
        choices = allowed.nonzero()[0].tolist()
        assert choices, f"nothing may follow {tokenizer.decode(ids)!r}"
        token = stop if stop in choices else rng.choice(choices)
        if token == stop:
            return tokenizer.decode(ids)
        constraint.accept(token)
        ids.append(token)
    raise AssertionError(f"no end after {limit} tokens: {tokenizer.decode(ids)!r}")


@pytest.fixture(params=[byte_level, byte_fallback])
def tokenizer(request):
    return request.param()


@pytest.mark.parametrize("seed", range(8))
def test_random_choices_still_fit_the_schema(tokenizer, seed):
    text = walk(tokenizer, SCHEMA, seed, tokenizer.control_tokens.get("<|im_end|>", 2))
    jsonschema.validate(json.loads(text), SCHEMA)
    assert not re.search(r"[\s]{2,}", text)


@pytest.mark.parametrize("seed", range(8))
def test_random_choices_still_match_the_expression(tokenizer, seed):
    text = walk(tokenizer, {"regex": "(yes|no): [0-9]{1,3} 块"}, seed, tokenizer.control_tokens.get("<|im_end|>", 2))
    assert re.fullmatch("(yes|no): [0-9]{1,3} 块", text)


def test_answers_do_not_share_their_place_in_the_grammar():
    tokenizer = byte_level()
    make = make_constraint(tokenizer, {"regex": "ab"}, [0])
    a, b = (tokenizer.encode_batch([letter])[0][0] for letter in "ab")
    one, other = make(), make()
    one.accept(a)
    assert one.allowed()[b] and not one.allowed()[a]
    assert other.allowed()[a] and not other.allowed()[b]


@pytest.mark.parametrize("grammar", [{"type": "nonsense"}, {"regex": "(unclosed"}, {"$ref": "#/nowhere"}])
def test_a_grammar_that_cannot_be_followed_is_refused_before_the_night(grammar):
    with pytest.raises(ParamsError, match=r"generate\.json_schema"):
        make_constraint(byte_level(), grammar, [0])
