"""`to_torch`: a module that does what PyTorch's own modules do."""

from __future__ import annotations

import copy
import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import onward
from models import batch, perceptron
from onward.backends.torch.optimizers import GraphOptimizer
from onward.errors import ArgumentError
from whole import WHOLE

pytestmark = pytest.mark.usefixtures("one_thread")


def make(**options: Any) -> onward.TrainingModel:
    settings: dict[str, Any] = {"loss": "cross_entropy", "optimizer": onward.optimizers.TorchAdam(1e-2), **options}
    return onward.make_trainable(perceptron(), **settings)


def convolutional() -> onward.TrainingModel:
    """A small network with batch normalisation and dropout, written by hand as ONNX."""
    import onnx

    rng = np.random.default_rng(0)
    weights = {
        "conv.weight": rng.normal(0, 0.3, (4, 1, 3, 3)),
        "bn.weight": np.ones(4), "bn.bias": np.zeros(4), "bn.running_mean": np.zeros(4), "bn.running_var": np.ones(4),
        "fc.weight": rng.normal(0, 0.3, (3, 4)), "fc.bias": np.zeros(3),
    }  # fmt: skip
    text = """
    <ir_version: 9, opset_import: ["" : 18]>
    net (float[N,1,6,6] x) => (float[N,3] logits) {
        c = Conv <pads = [1,1,1,1]> (x, conv.weight)
        b = BatchNormalization (c, bn.weight, bn.bias, bn.running_mean, bn.running_var)
        r = Relu (b)
        g = GlobalAveragePool (r)
        f = Flatten (g)
        d = Dropout (f)
        logits = Gemm <transB = 1> (d, fc.weight, fc.bias)
    }
    """
    text = text.replace(".", "_DOT_")  # the text form has no dots in names
    model = onnx.parser.parse_model(text)
    for node in model.graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = name.replace("_DOT_", ".")
    for name, array in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    return onward.make_trainable(model, loss="cross_entropy", optimizer=onward.optimizers.TorchAdam(1e-2))


def pair(seed: int = 0) -> tuple[Tensor, Tensor]:
    drawn = batch(seed=seed)
    return torch.from_numpy(drawn["x"]), torch.from_numpy(drawn["labels"])


def images(seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(8, 1, 6, 6, generator=g), torch.randint(0, 3, (8,), generator=g)


def test_parameters_have_the_names_of_the_file_and_buffers_too() -> None:
    module, _ = onward.to_torch(convolutional())

    assert [n for n, _ in module.named_parameters()] == ["conv.weight", "bn.weight", "bn.bias", "fc.weight", "fc.bias"]
    assert {"bn.running_mean", "bn.running_var"} <= {n for n, _ in module.named_buffers()}


def test_a_state_dict_goes_round() -> None:
    module, optimizer = onward.to_torch(convolutional())
    x, t = images()
    F.cross_entropy(module(x), t).backward()
    optimizer.step()
    other, _ = onward.to_torch(convolutional())

    other.load_state_dict(module.state_dict(), strict=True)

    torch.testing.assert_close(other.eval()(x), module.eval()(x), rtol=0, atol=0)


def test_a_state_dict_with_other_names_is_refused_by_torch_itself() -> None:
    module, _ = onward.to_torch(make())
    state = module.state_dict()
    state["more"] = torch.zeros(1)

    with pytest.raises(RuntimeError, match="Unexpected key"):
        module.load_state_dict(state, strict=True)


def test_train_and_eval_choose_the_forward() -> None:
    module, _ = onward.to_torch(convolutional())
    x, _ = images()

    module.train()
    before = module.tensor("bn.running_mean").clone()
    training = module(x)
    after = module.tensor("bn.running_mean").clone()
    module.eval()
    evaluation = module(x)

    assert not torch.allclose(training, evaluation)
    assert not torch.equal(before, after)
    assert torch.equal(module.tensor("bn.running_mean"), after)


def test_modes() -> None:
    only, nothing = onward.to_torch(make(), mode="inference")
    training, optimizer = onward.to_torch(make(), mode="training")
    x, _ = pair()

    assert nothing is None
    assert optimizer is not None
    assert not only.training
    with pytest.raises(ArgumentError, match="is for training only"):
        training.eval()(x)
    with pytest.raises(ArgumentError, match="mode"):
        onward.to_torch(make(), mode="sideways")


def test_the_models_own_loss_is_that_of_the_trainer() -> None:
    model = make()
    module, optimizer = onward.to_torch(model)
    trainer = onward.Trainer(model)
    ours, theirs = [], []

    for i in range(10):
        x, t = pair(i)
        optimizer.zero_grad()
        loss = module.loss(x, t)
        loss.backward()
        optimizer.step()
        ours.append(loss.item())
        theirs.append(float(trainer.step(batch(seed=i))["loss"]))

    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    assert type(optimizer) is torch.optim.Adam


@pytest.mark.parametrize(
    "optimizer",
    [
        onward.SGD(0.1, clip_global_norm=0.1),
        onward.SGD(0.1, clip_value=0.01, momentum=0.9),
        onward.Adam(0.01, accumulate=3),
        onward.Adam(0.01, ema=0.9),
        onward.optimizers.Lion(0.01),
        onward.SGD(onward.schedules.Cosine(0.1, steps=8)),
    ],
    ids=["global norm", "value", "accumulation", "average", "lion", "schedule"],
)
def test_what_is_between_gradient_and_update_is_honoured(optimizer: onward.optimizers.Optimizer) -> None:
    model = make(optimizer=optimizer)
    module, its_optimizer = onward.to_torch(model)
    trainer = onward.Trainer(model)
    ours, theirs = [], []

    for i in range(10):
        x, t = pair(i)
        its_optimizer.zero_grad()
        loss = F.cross_entropy(module(x), t)
        loss.backward()
        its_optimizer.step()
        ours.append(loss.item())
        theirs.append(float(trainer.step(batch(seed=i))["loss"]))

    assert isinstance(its_optimizer, GraphOptimizer)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_a_graph_optimizer_saves_and_loads_its_state() -> None:
    model = make(optimizer=onward.optimizers.Lion(0.01))

    def run(module: Any, optimizer: Any, first: int, last: int) -> list[float]:
        losses = []
        for i in range(first, last):
            x, t = pair(i)
            optimizer.zero_grad()
            loss = F.cross_entropy(module(x), t)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    module, optimizer = onward.to_torch(model)
    run(module, optimizer, 0, 4)
    saved = copy.deepcopy((module.state_dict(), optimizer.state_dict()))
    expected = run(module, optimizer, 4, 8)
    other, its_optimizer = onward.to_torch(model)
    other.load_state_dict(saved[0])
    its_optimizer.load_state_dict(saved[1])

    assert run(other, its_optimizer, 4, 8) == expected


def test_it_can_be_part_of_a_larger_module() -> None:
    inner, _ = onward.to_torch(make())
    whole = torch.nn.Sequential(torch.nn.Linear(4, 4), inner)
    x, t = pair()

    F.cross_entropy(whole(x), t).backward()

    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in whole.parameters())


@pytest.mark.parametrize("make_model", [make, convolutional], ids=["perceptron", "convolutions"])
def test_torch_compile_takes_it_as_one_graph(make_model: Any) -> None:
    module, _ = onward.to_torch(make_model())
    x, t = pair() if make_model is make else images()
    module.eval()
    expected = module(x)
    F.cross_entropy(expected, t).backward()
    gradients = {n: p.grad.clone() for n, p in module.named_parameters()}
    module.zero_grad()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")

    actual = compiled(x)
    F.cross_entropy(actual, t).backward()

    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("make_model", [make, convolutional], ids=["perceptron", "convolutions"])
def test_torch_export_takes_it(make_model: Any) -> None:
    module, _ = onward.to_torch(make_model(), mode="inference")
    x, _ = pair() if make_model is make else images()

    free = {"inputs": ({0: torch.export.Dim("n", min=2)},)}
    exported = torch.export.export(module, (x,), dynamic_shapes=free)

    torch.testing.assert_close(exported.module()(x[:5]), module(x[:5]), rtol=1e-5, atol=1e-6)


def test_autocast_computes_in_bfloat16_and_trains() -> None:
    module, optimizer = onward.to_torch(make())
    losses = []

    for _ in range(20):
        x, t = pair(0)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            logits = module(x)
        loss = F.cross_entropy(logits.float(), t)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    assert logits.dtype == torch.bfloat16
    assert losses[-1] < losses[0]


def test_a_deep_copy_is_independent() -> None:
    module, _ = onward.to_torch(make())
    x, _ = pair()
    twin = copy.deepcopy(module)
    expected = module(x)

    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()

    assert torch.equal(module(x), expected)
    assert not torch.equal(twin(x), expected)


def test_wrong_inputs_are_named() -> None:
    module, _ = onward.to_torch(make())

    with pytest.raises(ArgumentError, match="the inputs do not fit the model"):
        module()


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_the_trainer_runs_on_torch_with_the_losses_of_onnxruntime(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiled:
        torch._dynamo.reset()
        if not WHOLE:  # all of it but the C++ compiler, which takes over a minute
            monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    model = make()
    there = onward.Trainer(model, backend="torch", compile=compiled)
    here = onward.Trainer(model)

    losses = [[float(t.step(batch(seed=i))["loss"]) for i in range(10)] for t in (there, here)]

    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


def distributed_run(directory: str) -> None:
    """Train a module in DistributedDataParallel beside the same module alone, in a process that has nothing else.

    The process ends without destructors: PyTorch's joins the threads of a group while it holds Python's lock, for which
    one of them may wait.
    """
    module, optimizer = onward.to_torch(make())
    expected, its_optimizer = onward.to_torch(make())
    store = torch.distributed.FileStore(f"{directory}/store", 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    wrapped = torch.nn.parallel.DistributedDataParallel(module)
    for i in range(3):
        x, t = pair(i)
        for net, opt in ((wrapped, optimizer), (expected, its_optimizer)):
            opt.zero_grad()
            F.cross_entropy(net(x), t).backward()
            opt.step()
    for name, parameter in expected.named_parameters():
        torch.testing.assert_close(module.tensor(name), parameter, rtol=1e-6, atol=1e-7)
    print("the same", flush=True)
    os._exit(0)


def test_distributed_data_parallel_takes_it(tmp_path: Path) -> None:
    tests = Path(__file__).parent.parent
    code = f"from backends.test_torch_module import distributed_run; distributed_run({str(tmp_path)!r})"
    paths = os.pathsep.join([str(tests), *sys.path])

    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
        timeout=300,
    )

    assert result.stdout.endswith("the same\n"), result.stderr


def test_names_that_a_module_cannot_have_are_kept_under_others() -> None:
    import onnx

    text = """
    <ir_version: 9, opset_import: ["" : 18]>
    net (float[N,2] x) => (float[N,2] y) { p = MatMul (x, forward) q = MatMul (p, a) y = MatMul (q, a_DOT_b) }
    """
    model = onnx.parser.parse_model(text)
    model.graph.node[2].input[1] = "a.b"
    for number, name in enumerate(("forward", "a", "a.b")):
        array = np.full((2, 2), 1.0 + number, np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))

    module, _ = onward.to_torch(model, mode="inference")

    assert sorted(module.state_dict()) == ["a", "onnx_a_b", "onnx_forward"]
    assert float(module.tensor("a.b").detach()[0, 0]) == 3.0
    torch.testing.assert_close(module(torch.ones(1, 2)), torch.full((1, 2), 2.0 * 4.0 * 6.0))


@pytest.mark.parametrize("make_model", [make, convolutional], ids=["perceptron", "convolutions"])
def test_the_constants_of_the_graph_move_with_the_module(make_model: Any) -> None:
    """The meta device stands for any other: an operator that mixes devices fails there too."""
    module, _ = onward.to_torch(make_model())
    x, t = pair() if make_model is make else images()

    module.to("meta")

    assert module.eval()(x.to("meta")).device.type == "meta"
    assert module.train().loss(x.to("meta"), t.to("meta")).device.type == "meta"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=["double", "half", "bfloat16"])
@pytest.mark.parametrize("make_model", [make, convolutional], ids=["perceptron", "convolutions"])
def test_it_computes_in_the_type_it_is_moved_to(make_model: Any, dtype: torch.dtype) -> None:
    module, _ = onward.to_torch(make_model())
    x, t = pair() if make_model is make else images()
    expected = module.eval()(x)

    module.to(dtype)
    actual = module(x.to(dtype))
    loss = module.train().loss(x.to(dtype), t)
    loss.backward()

    assert actual.dtype == loss.dtype == dtype
    assert all(p.grad.dtype == dtype for p in module.parameters())
    tolerance = 1e-5 if dtype == torch.float64 else 5e-2
    torch.testing.assert_close(actual.float(), expected, rtol=tolerance, atol=tolerance)


def test_gradient_checkpointing_repeats_the_masks_and_counts_a_batch_once() -> None:
    from torch.utils.checkpoint import checkpoint

    plain, repeated = (onward.to_torch(convolutional())[0].train() for _ in range(2))
    batches = [images(0), images(1)]

    for x, t in batches:
        F.cross_entropy(plain(x), t).backward()
    outputs = [checkpoint(repeated, x, use_reentrant=False) for x, _ in batches]  # both, before any is repeated
    for y, (_, t) in zip(outputs, batches, strict=True):
        F.cross_entropy(y, t).backward()

    for name, tensor in plain.named_tensors().items():
        torch.testing.assert_close(repeated.tensor(name), tensor, msg=name)
    for ours, theirs in zip(repeated.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_functional_call_and_gradients_of_single_samples() -> None:
    module, _ = onward.to_torch(convolutional())
    module.eval()
    x, t = images()
    weights = {n: p.detach() for n, p in module.named_parameters()}

    def loss(p: dict[str, Tensor], x: Tensor, t: Tensor) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(module, p, (x.unsqueeze(0),)), t.unsqueeze(0))

    each = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(weights, x, t)

    F.cross_entropy(module(x), t).backward()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(each[name].mean(0), parameter.grad, rtol=1e-4, atol=1e-6)


def test_training_compiles_and_exports_as_one_graph() -> None:
    module, _ = onward.to_torch(convolutional())
    twin = copy.deepcopy(module)
    x, t = images()
    torch._dynamo.reset()

    compiled = torch.compile(module.loss, fullgraph=True, backend="aot_eager")(x, t)
    exported = torch.export.export(twin.train(), (x,))

    torch.testing.assert_close(compiled, copy.deepcopy(twin).loss(x, t))
    assert exported.module()(x).shape == (8, 3)


def test_a_graph_optimizer_is_copied_with_its_module() -> None:
    module, optimizer = onward.to_torch(make(optimizer=onward.optimizers.Lion(0.01)))
    before = copy.deepcopy(module.state_dict())

    twin, its_optimizer = copy.deepcopy((module, optimizer))
    x, t = pair()
    F.cross_entropy(twin(x), t).backward()
    its_optimizer.step()

    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())
    assert not torch.equal(twin.tensor("W0"), module.tensor("W0"))


def test_a_scheduler_of_torch_changes_the_rate_of_a_graph_optimizer() -> None:
    module, optimizer = onward.to_torch(make(optimizer=onward.SGD(0.1)), prefer_graph=True)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    moves = []

    for _ in range(2):
        before = module.tensor("b1").detach().clone()
        for parameter in module.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        scheduler.step()
        moves.append(float((before - module.tensor("b1").detach())[0]))

    np.testing.assert_allclose(moves, [0.1, 0.05], rtol=1e-5)


def test_inputs_that_are_no_tensors_are_named() -> None:
    module, _ = onward.to_torch(make())

    with pytest.raises(ArgumentError, match="`x`: ndarray"):
        module(pair()[0].numpy())


def test_an_unknown_option_is_an_error() -> None:
    with pytest.raises(ArgumentError, match="did you mean `gradients`"):
        onward.to_torch(make(), gradient="graph")
