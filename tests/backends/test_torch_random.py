"""Random operators of an inference graph on the torch backend: distributions, types and seeds."""

from __future__ import annotations

import onnx
import pytest
import torch

import onward
from onward.backends.torch.module import OnnxModule
from onward.errors import BackendError


def module(body: str) -> OnnxModule:
    """Return the module of a graph over `x`."""
    text = f'<ir_version: 10, opset_import: ["" : 20]> net (float[N, M] x) => (y) {{ {body} }}'
    made, _ = onward.to_torch(onnx.parser.parse_model(text), mode="inference")
    return made


DRAWS = {
    "y = RandomNormalLike<mean=3.0, scale=0.5>(x)": (3.0, 0.5),
    "y = RandomNormal<mean=3.0, scale=0.5, shape=[200, 500]>()": (3.0, 0.5),
    "y = RandomUniformLike<low=2.0, high=4.0>(x)": (3.0, 2 / 12**0.5),
    "y = RandomUniform<low=2.0, high=4.0, shape=[200, 500]>()": (3.0, 2 / 12**0.5),
    "y = Bernoulli(x)": (0.25, (0.25 * 0.75) ** 0.5),
}


@pytest.mark.parametrize("body", DRAWS, ids=lambda body: body.split("(")[0])
def test_draws_have_the_mean_and_deviation_that_the_node_states(body: str) -> None:
    torch.manual_seed(0)
    mean, deviation = DRAWS[body]

    y = module(body)(torch.full((200, 500), 0.25))

    assert y.shape == (200, 500)
    assert y.dtype == torch.float32
    assert float(y.mean()) == pytest.approx(mean, abs=0.01)
    assert float(y.std()) == pytest.approx(deviation, rel=0.02)


def test_multinomial_draws_each_class_as_often_as_its_logit_says() -> None:
    torch.manual_seed(0)
    shares = torch.tensor([[0.1, 0.2, 0.7], [0.5, 0.5, 0.0]])

    y = module("y = Multinomial<sample_size=20000, dtype=7>(x)")(shares.log())

    assert y.dtype == torch.int64
    found = torch.stack([torch.bincount(row, minlength=3) / 20000 for row in y])
    torch.testing.assert_close(found, shares, rtol=0, atol=0.02)


def test_a_type_is_stated_by_the_node() -> None:
    x = torch.full((2, 3), 0.5)

    assert module("y = RandomNormalLike<dtype=11>(x)")(x).dtype == torch.float64
    assert module("y = Bernoulli<dtype=9>(x)")(x).dtype == torch.bool
    assert module("y = Multinomial(x)")(x).dtype == torch.int32


def test_a_seed_repeats_the_numbers_and_no_seed_does_not() -> None:
    x = torch.zeros(3, 4)
    seeded, free = module("y = RandomNormalLike<seed=7.0>(x)"), module("y = RandomNormalLike(x)")

    assert torch.equal(seeded(x), seeded(x))
    assert not torch.equal(free(x), free(x))


def test_inputs_that_do_not_fit_name_the_node() -> None:
    product = module('two = Constant<value_floats=[1.0, 2.0]>() ["/head/product"] y = MatMul(x, two)')

    with pytest.raises(BackendError, match="B301") as caught:
        product(torch.zeros(2, 3))

    assert "node `/head/product` (MatMul)" in str(caught.value)
    assert "PyTorch failed in the model: RuntimeError" in str(caught.value)
