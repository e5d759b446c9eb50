"""What the examples of the documentation take for granted: models and data, by the name that a page gives.

A page says `<!-- prelude: net -->` before the examples that need it: the function of that name here runs in the folder
of the page, may write files, and returns the names that the examples use.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

import onward

Names = dict[str, Any]
RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def net() -> Names:
    """net.onnx, a small image classifier with the layers `layer4` and `fc`; digits.npz; images and labels."""
    text = """
    <ir_version: 8, opset_import: ["": 18]>
    net (float[N, 1, 8, 8] images) => (float[N, 10] logits) {
        a = Conv <pads = [1, 1, 1, 1]> (images, stem.weight)
        b = Relu(a)
        c = Conv <pads = [1, 1, 1, 1]> (b, layer4.weight, layer4.bias)
        d = Relu(c)
        e = Flatten(d)
        logits = Gemm <transB = 1> (e, fc.weight, fc.bias)
    }"""
    for dotted in ("stem.weight", "layer4.weight", "layer4.bias", "fc.weight", "fc.bias"):
        text = text.replace(dotted, dotted.replace(".", "__"))
    proto = onnx.parser.parse_model(text)
    for node in proto.graph.node:
        node.input[:] = [name.replace("__", ".") for name in node.input]
    weights = {"stem.weight": (4, 1, 3, 3), "layer4.weight": (4, 4, 3, 3), "layer4.bias": (4,), "fc.weight": (10, 256),
               "fc.bias": (10,)}  # fmt: skip
    for name, shape in weights.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(0.1 * floats(*shape), name))
    onnx.save(proto, "net.onnx")
    images, labels = floats(192, 1, 8, 8), RNG.integers(0, 10, 192)
    np.savez("digits.npz", images=images, labels=labels)
    return {"images": images, "labels": labels}


def quantized() -> Names:
    """quantized.onnx, a layer whose weight ONNX Runtime's quantizer stored as integers."""
    from onnxruntime.quantization import quantize_dynamic

    proto = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["": 18]> net (float[N, 8] x) => (float[N, 3] y) { y = MatMul(x, W) }""")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(floats(8, 3), "W"))
    quantize_dynamic(proto, "quantized.onnx")
    return {}


def train_file() -> Names:
    """model.train.onnx, the digits sample; images and labels to train and to test with."""
    onward.save(onward.samples.build("digits"), "model.train.onnx")
    images, labels = floats(192, 1, 8, 8), RNG.integers(0, 10, 192)
    return {"images": images, "labels": labels, "test_images": images[:64], "test_labels": labels[:64]}


def second_entry() -> Names:
    """A trainer of two entries, `train` and `second`, with the targets `labels` and `goal`; data for both."""
    model = onward.make_trainable(onward.samples.perceptron(), loss="mse")
    model = onward.make_trainable(model, loss="l1", entry="second", label="goal", loss_name="second_loss")
    x, labels, goal = floats(64, 3), floats(64, 2), floats(64, 2)
    data = {"x": x, "labels": labels, "goal": goal}
    return {"trainer": onward.Trainer(model), "data": data, "x": x, "goal": goal, "vx": x, "vgoal": goal}


def gan() -> Names:
    """A trainer of the entries `discriminator` and `generator`; batches and noise."""
    proto = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["": 18]>
    gan (float[N, 3] z, float[N, 4] real) => (float[N, 1] score_fake, float[N, 1] score_real) {
        fake = MatMul(z, G)
        score_fake = MatMul(fake, D)
        score_real = MatMul(real, D)
    }""")
    for name, array in (("G", floats(3, 4)), ("D", floats(4, 1))):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))

    def discriminate(op: Any, scores: Any, labels: Any) -> Any:
        return op.ReduceMean(op.Softplus(op.Sub(*scores)), keepdims=0)

    def generate(op: Any, score: Any, labels: Any) -> Any:
        return op.ReduceMean(op.Softplus(op.Neg(score)), keepdims=0)

    model = onward.make_trainable(
        proto, loss=discriminate, output=["score_fake", "score_real"], label=None, train="D", entry="discriminator"
    )
    model = onward.make_trainable(
        model, loss=generate, output="score_fake", label=None, train="G", entry="generator", loss_name="loss_g"
    )
    return {"gan": onward.Trainer(model), "batches": [floats(8, 4) for _ in range(2)], "noise": lambda: floats(8, 3)}


def perceptron_run() -> Names:
    """A trainer of a small model, and its data."""
    model = onward.make_trainable(onward.samples.perceptron(), loss="mse")
    return {"onward": onward, "trainer": onward.Trainer(model), "x": floats(64, 3), "y": floats(64, 2)}


def checked_file() -> Names:
    """model.onnx, the linear sample."""
    onward.save(onward.samples.build("linear"), "model.onnx")
    return {}


def training_model() -> Names:
    """`model`, the linear sample."""
    return {"model": onward.samples.build("linear")}


def torch_module() -> Names:
    """A module, its optimizer, a batch; model.train.onnx."""
    import torch

    onward.save(onward.samples.build("linear"), "model.train.onnx")
    torch.manual_seed(0)
    module = torch.nn.Linear(4, 3)
    optimizer = torch.optim.Adam(module.parameters())
    return {"module": module, "optimizer": optimizer, "x": torch.randn(8, 4), "t": torch.randint(0, 3, (8,))}


def torch_gan() -> Names:
    """A module with both sides of a GAN, their losses and optimizers, and a batch."""
    import torch

    class Gan(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator, self.critic = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)

        def forward(self, noise: torch.Tensor, real: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.critic(self.generator(noise)), self.critic(real)

    module = Gan()
    return {
        "gan": module,
        "critic_loss": lambda outputs: (outputs[0] - outputs[1]).mean(),
        "generator_loss": lambda outputs: -outputs[0].mean(),
        "critic_optimizer": torch.optim.SGD(module.critic.parameters(), lr=0.1),
        "generator_optimizer": torch.optim.SGD(module.generator.parameters(), lr=0.1),
        "noise": torch.randn(8, 3),
        "real": torch.randn(8, 4),
        "z": floats(8, 3),
        "x": floats(8, 4),
    }
