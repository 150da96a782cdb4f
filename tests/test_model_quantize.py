"""int8 and int4: what rounding costs, that offline and on-load give the same bits, that a row never sees its company."""

import json
import shutil

import pytest
import torch
from checkpoints import write_tiny_llama
from safetensors.torch import load_file

from pipeline.core.errors import ModelError
from pipeline.core.params import ModelParams
from pipeline.engine.engine import Engine, EngineSettings
from pipeline.engine.request import Request, Sampling
from pipeline.model.attention import FullAttention
from pipeline.model.importers import quantize_folder
from pipeline.model.int8_product import Int8Product, int8_is_fast, quantize_rows
from pipeline.model.quantize import QuantizedLinear, dequantize, quantize
from pipeline.model.stored_form import stored_form
from pipeline.model.weights import load_decoder, round_into

KINDS = {8: "int8", 4: "int4"}


def matrix(rows, columns, seed=0):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("bits", "columns"), [(8, 40), (4, 40), (4, 64), (4, 7)])
def test_a_rounded_weight_is_within_half_a_step(bits, columns):
    weight = matrix(24, columns)
    parts = quantize(weight, bits)
    assert {suffix: tuple(part.shape) for suffix, part in parts.items()} == {
        suffix: shape for suffix, (shape, _) in stored_form(24, columns, bits).items()
    }
    back = dequantize(parts, columns, torch.float32)
    step = parts["_scale"].float().max()
    assert back.shape == weight.shape
    assert (back - weight).abs().max() <= step * (0.5 if bits == 8 else 0.6)  # int4 keeps scale and minimum in half precision


@pytest.mark.parametrize("columns", [7, 40, 96])
def test_int4_is_unpacked_to_the_nearest_bfloat16(columns):
    weight = matrix(33, columns) * 10.0 ** torch.arange(-16, 17)[:, None].clamp(-3, 3)
    parts = quantize(weight, 4)
    assert torch.equal(dequantize(parts, columns, torch.bfloat16), dequantize(parts, columns, torch.float32).bfloat16())


@pytest.mark.parametrize("bits", [8, 4])
def test_rows_of_zeros_and_constant_rows_survive(bits):
    weight = torch.stack((torch.zeros(64), torch.full((64,), -3.0), torch.linspace(-1, 1, 64)))
    back = dequantize(quantize(weight, bits), 64, torch.float32)
    assert torch.equal(back[0], weight[0])
    assert torch.allclose(back[1], weight[1], rtol=1e-3)


@pytest.mark.parametrize("bits", [8, 4])
def test_rows_may_be_stacked_before_or_after_rounding(bits):
    weight = matrix(30, 48)
    apart = [quantize(part, bits) for part in (weight[:13], weight[13:])]
    whole = quantize(weight, bits)
    assert all(torch.equal(torch.cat([parts[suffix] for parts in apart]), whole[suffix]) for suffix in whole)
    places = {suffix: torch.empty_like(part) for suffix, part in whole.items()}
    round_into(places, iter([(0, weight[:7]), (7, weight[7:])]), bits)
    assert all(torch.equal(places[suffix], whole[suffix]) for suffix in whole)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("columns", [40, 64])
def test_a_quantised_layer_equals_a_layer_of_the_dequantised_weights(bits, columns):
    weight, bias, x = matrix(24, columns), matrix(1, 24)[0], matrix(5, columns, seed=1)
    parts = quantize(weight, bits)
    layer = QuantizedLinear(parts, columns, bias)
    assert torch.equal(layer(x), torch.nn.functional.linear(x, dequantize(parts, columns, torch.float32), bias))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bits", [8, 4])
def test_a_packed_row_never_sees_its_company(bits, dtype):
    weight, x = matrix(96, 80), matrix(130, 80, seed=1).to(dtype)
    layer = QuantizedLinear(quantize(weight, bits), 80, None)
    loose = layer(x).float()
    layer.pack()
    layer.drop_weight()
    whole = layer(x)
    for rows in (1, 2, 3, 7, 64, 65, 129):
        assert torch.equal(layer(x[:rows]), whole[:rows])
        assert torch.equal(layer(x[-rows:]), whole[-rows:])
    assert (whole.float() - loose).abs().max() < 0.02 * loose.abs().max()


@pytest.mark.skipif(not int8_is_fast(), reason="this processor has no integer dot product")
def test_the_integer_product_is_exact_at_the_extremes():
    """127 x 127 over all inputs: an instruction that saturates would show."""
    weight = torch.full((32, 512), 127, dtype=torch.int8)
    weight[1::2] = -127
    x = torch.ones(3, 512)
    x[1, ::2] = -1
    product = Int8Product(weight, torch.ones(32))
    expected = (x.double() * 127) @ weight.double().T / 127
    assert torch.allclose(product(x, None).double(), expected, rtol=1e-6)


@pytest.mark.skipif(not int8_is_fast(), reason="this processor has no integer dot product")
@pytest.mark.parametrize(("terms", "limit"), [(1, 1.5), (2, 0.02)])
def test_a_second_term_keeps_the_small_values_beside_a_large_one(terms, limit):
    weight, x = matrix(48, 256), matrix(4, 256, seed=1)
    weight[:, 7] = 0  # only the small values count
    x[:, 7] = 500.0
    parts = quantize(weight, 8)
    given = x.clone()
    out = Int8Product(parts[""], parts["_scale"], terms)(x, None)
    assert torch.equal(x, given)
    expected = x @ dequantize(parts, 256, torch.float32).T
    assert (out - expected).norm() < limit * expected.norm()
    assert (out - expected).norm() > limit / 100 * expected.norm()


def test_activations_are_rounded_per_row_and_a_bad_row_stays_visible():
    x = torch.tensor([[0.0, 0.0, 0.0], [1.0, -2.0, 0.5], [float("nan"), 1.0, 2.0], [float("inf"), 1.0, 2.0]])
    levels, scales = quantize_rows(x)
    assert levels[0].tolist() == [128, 128, 128]
    assert levels[1].tolist() == [128 + 64, 1, 128 + 32]
    assert scales[1] == pytest.approx(2 / 127)
    assert not scales[2:].isfinite().any()


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("tied", [True, False])
def test_rounding_offline_and_while_loading_give_the_same_model(bits, tied, tmp_path):
    folder = write_tiny_llama(tmp_path / "float", tie_word_embeddings=tied, attention_bias=False)
    quantize_folder(folder, tmp_path / "small", bits)
    offline, loaded = load_decoder(tmp_path / "small"), load_decoder(folder, ModelParams(quantization=KINDS[bits]))
    one, other = offline.state_dict(), loaded.state_dict()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not any(tensor.is_floating_point() and tensor.ndim == 2 and tensor.shape[1] > 8 for tensor in one.values())
    stored = load_file(tmp_path / "small/model.safetensors")
    assert stored["model.embed_tokens.weight"].dtype == torch.int8
    assert ("lm_head.weight" in stored) is not tied


@pytest.mark.parametrize("bits", [8, 4])
def test_a_quantised_model_is_close_to_the_float_one(bits, tiny_checkpoint):
    whole, small = load_decoder(tiny_checkpoint), load_decoder(tiny_checkpoint, ModelParams(quantization=KINDS[bits]))
    ids, positions = torch.arange(3, 63), torch.arange(60)
    a, b = (model(ids, positions, FullAttention(), positions) for model in (whole, small))
    error = (a - b).norm() / a.norm()
    assert 0 < error < (0.06 if bits == 8 else 0.5)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_answers_of_a_quantised_model_never_depend_on_the_batch(kind, tiny_checkpoint):
    decoder = load_decoder(tiny_checkpoint, ModelParams(quantization=kind))
    requests = [Request(index, tuple(range(3 + index, 9 + 3 * index)), Sampling(max_new_tokens=12, ignore_eos=True)) for index in range(6)]
    engine = Engine(decoder, EngineSettings(max_running_rows=4, page_size=16), ())
    together = {done.id: done for done in engine.generate(requests)}
    for request in requests:
        (alone,) = engine.generate([request])
        assert (alone.token_ids, alone.token_logprobs) == (together[request.id].token_ids, together[request.id].token_logprobs)


def test_what_is_quantised_already_is_not_quantised_again(tiny_checkpoint, tmp_path):
    quantize_folder(tiny_checkpoint, tmp_path / "small", 8)
    with pytest.raises(ModelError, match=r"the weights are int8 already; set model\.quantization to none"):
        load_decoder(tmp_path / "small", ModelParams(quantization="int4"))
    with pytest.raises(ModelError, match="the weights are int8 already; quantise the float checkpoint"):
        quantize_folder(tmp_path / "small", tmp_path / "smaller", 4)
    load_decoder(tmp_path / "small", ModelParams(quantization="int8"))


def test_a_quantised_checkpoint_whose_bits_are_misstated_is_refused(tiny_checkpoint, tmp_path):
    quantize_folder(tiny_checkpoint, tmp_path / "small", 8)
    raw = json.loads((tmp_path / "small/config.json").read_text())
    (tmp_path / "small/config.json").write_text(json.dumps(raw | {"quantization_config": raw["quantization_config"] | {"bits": 4}}))
    with pytest.raises(ModelError, match="tensors are missing"):
        load_decoder(tmp_path / "small")
    shutil.copyfile(tiny_checkpoint / "config.json", tmp_path / "small/config.json")
    with pytest.raises(ModelError, match="tensors have no place"):
        load_decoder(tmp_path / "small")
