"""A GGUF file's tokenizer as tokenizer.json: byte-level BPE with its pre-tokenizer rule, or SentencePiece BPE with byte fallback.

The rule has to be right to the letter: other splits give other ids, and the answers get silently worse.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from pipeline.core.errors import ModelError

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LETTERS = r"|[^\r\n\p{L}\p{N}]?\p{L}+|"
Rule = Callable[[], Any]


def _gpt2() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _digits_then_gpt2() -> Any:
    """Every numeral by itself first, Unicode ones (½, ²) too; then the GPT-2 rule."""
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _split(pattern: str) -> Rule:
    def rule() -> Any:
        split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    return rule


_QWEN2 = _split(CONTRACTIONS + LETTERS + r"\p{N}" + TAIL)
_LLAMA3 = _split(CONTRACTIONS + LETTERS + r"\p{N}{1,3}" + TAIL)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = _split(rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
                 r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")  # fmt: skip
PRE_TOKENIZERS: dict[str, Rule] = {
    "default": _gpt2, "gpt-2": _gpt2, "mpt": _gpt2, "olmo": _gpt2, "jais": _gpt2,
    "smollm": _digits_then_gpt2, "starcoder": _digits_then_gpt2, "refact": _digits_then_gpt2, "command-r": _digits_then_gpt2,
    "codeshell": _digits_then_gpt2, "exaone": _digits_then_gpt2,
    "qwen2": _QWEN2, "deepseek-r1-qwen": _QWEN2, "stablelm2": _QWEN2,
    "llama-bpe": _LLAMA3, "llama3": _LLAMA3, "llama-v3": _LLAMA3, "smaug-bpe": _LLAMA3,
    "tekken": _TEKKEN,
}  # fmt: skip
NFC = ("qwen2", "deepseek-r1-qwen")
WHOLE_WORDS = ("llama-bpe", "llama3", "llama-v3", "smaug-bpe", "tekken")  # a word that is a token needs no merges


def build_tokenizer(get: Callable[..., Any]) -> Tokenizer:
    """The tokenizer of a GGUF file's metadata; get(key, default) reads one value. Raises ModelError on an unknown kind."""
    kind = get("tokenizer.ggml.model")
    tokens = get("tokenizer.ggml.tokens")
    if kind not in ("gpt2", "llama") or not tokens:
        raise ModelError(f"GGUF tokenizer {kind!r} is not read; known: gpt2 (byte-level BPE), llama (SentencePiece BPE)")
    types = get("tokenizer.ggml.token_type") or [NORMAL] * len(tokens)
    try:
        tokenizer = _byte_level(get, tokens) if kind == "gpt2" else _sentencepiece(get, tokens, types)
    except ModelError:
        raise
    except Exception as error:  # the Rust library raises bare Exception
        raise ModelError(f"the tokenizer does not fit together: {error}") from None
    special = [AddedToken(token, special=True, normalized=False) for token, type_ in zip(tokens, types) if type_ in (CONTROL, UNKNOWN)]
    plain = [AddedToken(token, special=False, normalized=False) for token, type_ in zip(tokens, types) if type_ == USER]
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(plain)
    if tokenizer.get_vocab_size() != len(tokens):
        raise ModelError(f"tokenizer has {tokenizer.get_vocab_size()} ids for {len(tokens)} tokens of the file; some are repeated")
    if adds_bos(get):
        bos = tokens[get("tokenizer.ggml.bos_token_id")]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokenizer.token_to_id(bos))]
        )
    return tokenizer


def adds_bos(get: Callable[..., Any]) -> bool:
    """Whether plain text starts with the bos token; chat templates write it themselves."""
    default = get("tokenizer.ggml.model") == "llama"
    return bool(get("tokenizer.ggml.add_bos_token", default)) and get("tokenizer.ggml.bos_token_id") is not None


def _byte_level(get: Callable[..., Any], tokens: list[str]) -> Tokenizer:
    rule = get("tokenizer.ggml.pre", "default")
    if rule not in PRE_TOKENIZERS:
        raise ModelError(f"GGUF pre-tokenizer rule {rule!r} is not known; known: {', '.join(PRE_TOKENIZERS)}")
    merges = [tuple(merge.split(" ", 1)) for merge in get("tokenizer.ggml.merges")]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=rule in WHOLE_WORDS))
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[rule]()
    if rule in NFC:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(get: Callable[..., Any], tokens: list[str], types: list[int]) -> Tokenizer:
    """Merges are rebuilt from the scores: any two pieces whose join is a piece may merge, best score first."""
    scores = get("tokenizer.ggml.scores")
    vocab = {token: index for index, token in enumerate(tokens)}
    unknown = next((token for token, type_ in zip(tokens, types) if type_ == UNKNOWN), None)
    merges = score_merges(tokens, types, scores, vocab)
    model = models.BPE(vocab=vocab, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=BYTE in types)
    tokenizer = Tokenizer(model)
    prefix = bool(get("tokenizer.ggml.add_space_prefix", True))
    spaces = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefix else spaces
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return tokenizer


def score_merges(tokens: list[str], types: list[int], scores: list[float], vocab: dict[str, int]) -> list[tuple[str, str]]:
    """All (left, right) whose join is a normal piece, by falling score of the join; equal ones by the ids of the halves."""
    found = []
    for index, piece in enumerate(tokens):
        if types[index] != NORMAL:
            continue
        for cut in range(1, len(piece)):
            left, right = vocab.get(piece[:cut]), vocab.get(piece[cut:])
            if left is not None and right is not None:
                found.append((-scores[index], left, right))
    return [(tokens[left], tokens[right]) for _, left, right in sorted(found)]
