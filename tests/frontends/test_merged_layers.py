"""A fresh nn.TransformerEncoder, whose layers start equal, as PyTorch itself exports it: layers merged into one."""

from __future__ import annotations

import io
import warnings

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import onward
from onward.author import TiedWeightsWarning, make_trainable

X = torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(0))
T = torch.tensor([0, 1, 2, 0])


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.encoder(x).mean(1))


@pytest.fixture(scope="module")
def module() -> nn.Module:
    return Encoder().train()  # in evaluation mode PyTorch takes a kernel of its own, which is not an ONNX operator


@pytest.fixture(scope="module")
def exported(module: nn.Module) -> onnx.ModelProto:
    """The module by PyTorch's exporter as people call it."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(module, (X,), dynamo=True, verbose=False, input_names=["x"])
        assert program is not None
        program.save(file)
    return onnx.load_from_string(file.getvalue())


def test_the_exporter_still_merges_equal_layers(module: nn.Module, exported: onnx.ModelProto) -> None:
    """If this fails, PyTorch's exporter has changed, and the warning has lost its reason."""
    in_module = [n for n, p in module.named_parameters() if p.ndim == 2 and "linear1" in n]
    in_file = [i.name for i in exported.graph.initializer if list(i.dims) in ([16, 8], [8, 16])]

    assert len(in_module) == 2
    assert len(in_file) < 4  # linear1 and linear2 of two layers


def test_merged_layers_of_a_real_export_are_warned_about(exported: onnx.ModelProto) -> None:
    with pytest.warns(TiedWeightsWarning) as caught:
        make_trainable(exported, loss="cross_entropy", optimizer="sgd")

    text = str(caught[0].message)
    assert "warning[A117]" in text
    assert "encoder.layers.0" in text
    assert "encoder.layers.1" in text
    assert 'untie="*"' in text


def test_parted_layers_train_as_in_pytorch(module: nn.Module, exported: onnx.ModelProto) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", TiedWeightsWarning)
        model = make_trainable(exported, loss="cross_entropy", optimizer=onward.optimizers.SGD(0.1), untie="*")
    trainer = onward.Trainer(model, threads=1)

    actual = [float(trainer.step({"x": X.numpy(), "labels": T.numpy()})["loss"]) for _ in range(5)]

    # The exporter leaves out the biases of the attention's outputs, which are zero at the start: not in the file.
    kept = [p for n, p in module.named_parameters() if not n.endswith("out_proj.bias")]
    optimizer, expected = torch.optim.SGD(kept, lr=0.1), []
    for _ in range(5):
        optimizer.zero_grad()
        loss = F.cross_entropy(module(X), T)
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    np.testing.assert_allclose(actual, expected, rtol=1e-4)
