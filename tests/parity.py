"""Decoder and engine beside transformers: logits in float32 and greedy tokens, family by family; and a real GGUF file with its tokenizer.

By hand: PYTHONPATH=. python tests/parity.py
         PYTHONPATH=. python tests/parity.py --gguf model.gguf --texts a.txt b.jsonl ...     (needs accelerate)
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
import transformers
from hf_models import CONFIGS, reference_model, save
from tokenizers import Tokenizer, pre_tokenizers

from pipeline.core.params import ModelParams
from pipeline.engine.engine import Engine, EngineSettings
from pipeline.engine.request import Request, Sampling
from pipeline.model.attention import FullAttention
from pipeline.model.config import ModelConfig
from pipeline.model.decoder import Decoder
from pipeline.model.gguf_weights import GgufFile
from pipeline.model.importers import import_gguf
from pipeline.model.weights import load_decoder

TOKENS = 100  # past the windows (16 and 20) and the original lengths (32) of the tiny checkpoints
NEW_TOKENS = 64


def logit_difference(reference, decoder: Decoder, ids: torch.Tensor) -> float:
    """Largest absolute difference of the logits at all positions."""
    positions = torch.arange(len(ids))
    with torch.no_grad():
        expected = reference(ids[None]).logits[0]
    assert expected.std() > 0.1, "flat logits would prove nothing"
    return float((decoder(ids, positions, FullAttention(), positions) - expected).abs().max())


def equal_tokens(reference, decoder: Decoder, prompt: torch.Tensor) -> int:
    """Greedy tokens of the engine that are equal, of NEW_TOKENS. The decoder is packed for the engine from then on."""
    expected = reference.generate(prompt[None], max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=[], pad_token_id=0)[0]
    request = Request(0, tuple(prompt.tolist()), Sampling(max_new_tokens=NEW_TOKENS, ignore_eos=True))
    (done,) = Engine(decoder, EngineSettings(page_size=16), ()).generate([request])
    return sum(ours == theirs for ours, theirs in zip(done.token_ids, expected[len(prompt) :].tolist(), strict=True))


def compare(name: str, folder: Path) -> tuple[float, int, ModelConfig]:
    """One of CONFIGS: logits at TOKENS positions; greedy tokens after 40, so that longrope is past the original length from the first."""
    reference = reference_model(name)
    decoder = load_decoder(save(reference, folder))
    ids = torch.randint(3, 97, (TOKENS,), generator=torch.Generator().manual_seed(1))
    return logit_difference(reference, decoder, ids), equal_tokens(reference, decoder, ids[:40]), decoder.config


def print_families() -> None:
    print("| case | model_type | rotary | windows | largest difference | greedy tokens equal |\n|---|---|---|---|---|---|")
    for name in CONFIGS:
        with tempfile.TemporaryDirectory() as folder:
            difference, equal, config = compare(name, Path(folder))
        kinds = list(dict.fromkeys("none" if kind.rotary is None else config.rotaries[kind.rotary].kind for kind in config.layer_kinds))
        windows = sorted({kind.window for kind in config.layer_kinds if kind.window})
        rotary, window = ", ".join(kinds), ", ".join(map(str, windows)) or "-"
        print(f"| {name} | {config.family} | {rotary} | {window} | {difference:.1e} | {equal} of {NEW_TOKENS} |")


def print_gguf(file: Path, texts: list[str]) -> None:
    """Tensors before any cast, logits and greedy tokens in float32, token ids."""
    load = {"gguf_file": file.name, "dtype": torch.float32, "attn_implementation": "eager"}
    reference = transformers.AutoModelForCausalLM.from_pretrained(file.parent, **load).eval()
    state, tensors = reference.state_dict(), dict(GgufFile(file).tensors())
    different = [name for name in tensors if not torch.equal(tensors[name], state[name])]
    print(f"tensors: {len(tensors)}, not bit-equal: {different or 'none'}")
    with tempfile.TemporaryDirectory() as folder:
        import_gguf(file, Path(folder), "float32")
        decoder = load_decoder(Path(folder), ModelParams(dtype="float32"))
        ours = Tokenizer.from_file(f"{folder}/tokenizer.json")
    prompts = []
    for text in ("The capital of France is", "def quicksort(items):\n    ", "请用一句话介绍北京。", " ".join(texts)[:4000]):
        ids = torch.tensor(ours.encode(text, add_special_tokens=False).ids)
        print(f"{len(ids)} tokens: largest difference of logits {logit_difference(reference, decoder, ids):.1e}")
        prompts.append(ids)
    for ids in prompts:
        print(f"{len(ids)} tokens: greedy {equal_tokens(reference, decoder, ids)} of {NEW_TOKENS} equal")
    theirs = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).backend_tokenizer
    print(f"texts: {len(texts)}, ids differ in {differing(ours, theirs, texts)}")
    theirs.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), theirs.pre_tokenizer])
    print(f"with numerals split one by one in the reference too, as SmolLM's own tokenizer.json says: {differing(ours, theirs, texts)}")


def differing(ours: Tokenizer, theirs: Tokenizer, texts: list[str]) -> int:
    a, b = ([encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)] for tokenizer in (ours, theirs))
    return sum(x != y for x, y in zip(a, b, strict=True))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--texts", type=Path, nargs="*", default=[])
    arguments = parser.parse_args()
    if arguments.gguf is None:
        print_families()
    else:
        found = [line for file in arguments.texts for line in file.read_text("utf-8-sig").splitlines() if line.strip()]
        print_gguf(arguments.gguf, list(dict.fromkeys(found)) or ["The quick brown fox jumps over the lazy dog."])
