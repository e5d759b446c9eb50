"""What the examples of the documentation take for granted: models and data, by the name that a page gives.

A page says `<!-- prelude: net -->` before the examples that need it: the function of that name here runs in the folder
of the page, may write files, and returns the names that the examples use.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

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


def readme() -> Names:
    """What `net` makes, for two classes; photos/ and new/, folders of images."""
    from PIL import Image

    names = net()
    for folder, kinds in {"photos": ("cat", "dog"), "new": ("",)}.items():
        for kind in kinds:
            Path(folder, kind).mkdir(parents=True, exist_ok=True)
            for i in range(10):
                Image.fromarray(RNG.integers(0, 256, (8, 8), dtype=np.uint8)).save(Path(folder, kind, f"{i}.png"))
    return {**names, "labels": names["labels"] % 2}


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


def native() -> Names:
    """Return a batch for the sample `linear`, where IREE is installed."""
    pytest.importorskip("iree.compiler")
    return {"onward": onward, "x": floats(4, 1)}


def jax_functions() -> Names:
    """Return a loss function, a prediction, parameters, an optimizer with its state, and a batch, in JAX."""
    pytest.importorskip("jax")
    optax = pytest.importorskip("optax")
    import jax.numpy as jnp

    def predict(params: dict, batch: dict) -> object:
        return batch["x"] @ params["w"]

    def loss(params: dict, batch: dict) -> object:
        return jnp.mean((predict(params, batch) - batch["y"]) ** 2)

    params, optimizer = {"w": jnp.ones((3, 1))}, optax.adam(1e-3)
    batch = {"x": np.ones((4, 3), np.float32), "y": np.zeros((4, 1), np.float32)}
    return {
        "params": params, "loss": loss, "predict": predict, "optimizer": optimizer, "batch": batch,
        "optimizer_state": optimizer.init(params),
    }  # fmt: skip


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


def heads() -> Names:
    """photos.onnx, an image classifier that ends in Softmax; tagger.onnx; embedding.onnx; cats.txt; photos.npz."""
    texts = {
        "photos": """photos (float[N, 3, 8, 8] images) => (float[N, 10] probabilities) {
            a = Conv <pads = [1, 1, 1, 1]> (images, c1__weight, c1__bias)
            b = Relu(a)
            c = Conv <pads = [1, 1, 1, 1]> (b, c2__weight, c2__bias)
            d = Relu(c)
            pooled = GlobalAveragePool(d)
            features = Flatten(pooled)
            scores = Gemm <transB = 1> (features, fc__weight, fc__bias)
            probabilities = Softmax(scores)
        }""",
        "tagger": """tagger (int64[N, T] words) => (float[N, T, 5] tags) {
            vectors = Gather(embedding__weight, words)
            tags = MatMul(vectors, out__weight)
        }""",
        "embedding": """faces (float[N, 12] face) => (float[N, 8] vector) {
            h = MatMul(face, fc__weight)
            vector = LpNormalization(h)
        }""",
    }
    shapes = {
        "photos": {"c1.weight": (6, 3, 3, 3), "c1.bias": (6,), "c2.weight": (8, 6, 3, 3), "c2.bias": (8,),
                   "fc.weight": (10, 8), "fc.bias": (10,)},
        "tagger": {"embedding.weight": (30, 6), "out.weight": (6, 5)},
        "embedding": {"fc.weight": (12, 8)},
    }  # fmt: skip
    for file, text in texts.items():
        proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {text}')
        for node in proto.graph.node:
            node.input[:] = [name.replace("__", ".") for name in node.input]
        for name, shape in shapes[file].items():
            proto.graph.initializer.append(onnx.numpy_helper.from_array(0.3 * floats(*shape), name))
        onnx.save(proto, f"{file}.onnx")
    with open("cats.txt", "w", encoding="utf-8") as names:
        names.write("lion\ntiger\nlynx\n")
    images, labels = floats(60, 3, 8, 8), np.arange(60) % 3
    np.savez("photos.npz", images=images, labels=labels)
    return {"images": images, "labels": labels}


def photographs() -> Names:
    """A folder `photos` with 3 classes of small images; net.onnx, and net.train.onnx with cross-entropy."""
    from PIL import Image

    for kind in ("cat", "dog", "owl"):
        Path("photos", kind).mkdir(parents=True)
        for i in range(4):
            Image.fromarray(RNG.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(f"photos/{kind}/{i}.jpg")
    proto = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["": 18]>
    net (float[N, 3, 16, 16] images) => (float[N, 3] logits) { flat = Flatten(images) logits = MatMul(flat, W) }""")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(0.01 * floats(768, 3), "W"))
    onnx.save(proto, "net.onnx")
    onward.save(onward.make_trainable(proto, loss="cross_entropy"), "net.train.onnx")
    return {}


def photos() -> Names:
    """net.onnx for ten classes; photos/ with a folder of images per class, new/ without; tables and arrays."""
    import os

    import pandas
    from PIL import Image

    net()
    for i in range(72):
        image = Image.fromarray((RNG.random((8, 8)) * 80 + 60 * (i % 3)).astype(np.uint8))
        folder = f"photos/{('cat', 'dog', 'cow')[i % 3]}"
        os.makedirs(folder, exist_ok=True)
        os.makedirs("new/deep", exist_ok=True)
        image.save(f"{folder}/{i}.png")
        image.save(f"new/{'deep/' * (i % 2)}{i}.png")
    rows = floats(60, 3)
    frame = pandas.DataFrame(rows, columns=["a", "b", "c"])
    frame.assign(species=[("setosa", "iris")[int(r[0] > 0)] for r in rows]).to_csv("measured.csv", index=False)
    np.savez("prices.npz", rooms=rows, price=rows.sum(axis=1, keepdims=True))
    onward.save(onward.to_inference(onward.samples.perceptron()), "table.onnx")
    proto = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["": 18]> line (float[N, 3] x) => (float[N, 1] price) { price = MatMul(x, W) }""")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(floats(3, 1), "W"))
    onnx.save(proto, "line.onnx")
    return {}


def cars() -> Names:
    """Write a network for a table of cars, and return the table: numbers, text, and empty cells."""
    from train.tables import cars as table
    from train.tables import network

    onnx.save(network(5), "cars.onnx")
    return {"cars": table()}


def cars_file() -> Names:
    """What `cars` makes, and the table as cars.csv and new.csv."""
    names = cars()
    names["cars"].drop(columns="Year").to_csv("cars.csv", index=False)
    names["cars"].drop(columns=["Year", "Miles_per_Gallon"])[:9].to_csv("new.csv", index=False)
    return names


def texts() -> Names:
    """reader.onnx, which names a text of 12 numbers; texts.npz and new.npz; tagger.onnx."""
    heads()
    proto = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["": 18]>
    reader (int64[N, 12] ids) => (float[N, 7] probabilities) {
        vectors = Gather(words, ids)
        pooled = ReduceMean <keepdims = 0> (vectors, one)
        scores = MatMul(pooled, out)
        probabilities = Softmax(scores)
    }""")
    for name, array in {"words": floats(30, 6), "out": floats(6, 7), "one": np.array([1])}.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(proto, "reader.onnx")
    ids = RNG.integers(0, 30, (60, 12))
    np.savez("texts.npz", ids=ids, labels=ids.sum(axis=1) % 3)
    np.savez("new.npz", ids=ids[:5])
    return {}


def lines() -> Names:
    """recogniser.onnx, which reads pictures (N, 1, 4, 20) in ten steps; pictures of one to three letters."""
    proto = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["": 18]>
    recogniser (float[N, 1, 4, 20] images) => (float[N, 10, 6] probabilities) {
        columns = Reshape(images, one_row)
        steps = Conv <strides = [2], kernel_shape = [2]> (columns, stem)
        active = Relu(steps)
        turned = Transpose <perm = [0, 2, 1]> (active)
        scores = MatMul(turned, out)
        shifted = Add(scores, bias)
        probabilities = Softmax(shifted)
    }""")
    stem = np.concatenate([np.eye(4, dtype=np.float32)] * 4)[..., None].repeat(2, axis=2)
    arrays = {"one_row": np.array([0, 4, 20]), "stem": stem, "out": 0.3 * floats(16, 6), "bias": floats(6)}
    for name, array in arrays.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(proto, "recogniser.onnx")
    shapes = 3 * np.eye(4, dtype=np.float32)[:3]  # a letter lights one row of its two columns
    numbers, lengths = np.zeros((64, 3), np.int64), RNG.integers(1, 4, 64)
    pictures = 0.05 * floats(64, 1, 4, 20)
    for i, length in enumerate(lengths):
        numbers[i, :length] = RNG.integers(1, 4, length)
        for k, letter in enumerate(numbers[i, :length]):
            pictures[i, 0, :, 6 * k : 6 * k + 2] += shapes[letter - 1][:, None]
    return {"pictures": pictures, "numbers": numbers, "steps": np.full(64, 10), "lengths": lengths}


def detector() -> Names:
    """detector.onnx, whose output (N, 4 + 2, 21) is decoded; pictures of 32 × 32 with one or two boxes each."""
    proto = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["": 18]>
    detector (float[N, 3, 32, 32] images) => (float[N, 6, 21] predictions) {
        pooled = AveragePool <kernel_shape = [4, 4], strides = [4, 4]> (images)
        flat = Flatten(pooled)
        raw = MatMul(flat, W)
        grid = Reshape(raw, sizes)
        places, kinds = Split <axis = 1> (grid, parts)
        near = Sigmoid(places)
        boxes = Mul(near, side)
        scores = Sigmoid(kinds)
        predictions = Concat <axis = 1> (boxes, scores)
    }""")
    arrays = {"W": 0.05 * floats(192, 126), "sizes": np.array([0, 6, 21]), "parts": np.array([4, 2])}
    for name, array in {**arrays, "side": np.float32([32.0])}.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(proto, "detector.onnx")
    corners = RNG.integers(0, 16, (32, 2, 2))
    boxes = [[[*map(int, c), *map(int, c + 12)] for c in two[: 1 + i % 2]] for i, two in enumerate(corners)]
    pictures = RNG.random((32, 3, 32, 32), dtype=np.float32)
    return {"pictures": pictures, "boxes": boxes, "kinds": [[i % 2] * len(b) for i, b in enumerate(boxes)]}


def keras_file() -> Names:
    """Write a compiled Keras model, model.keras, and an example for it; return the model. Its backend is JAX."""
    pytest.importorskip("jax")
    os.environ.setdefault("KERAS_BACKEND", "jax")
    keras = pytest.importorskip("keras")
    keras.config.set_floatx("float32")  # another test of the process may have changed it
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile(optimizer="adam", loss="mse")
    model.save("model.keras")
    x, y = np.ones((3, 4), np.float32), np.zeros((3, 2), np.float32)
    np.save("x.npy", x)
    np.save("y.npy", y)
    return {"keras_model": model, "x": x, "y": y}
