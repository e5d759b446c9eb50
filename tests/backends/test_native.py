"""Native kernels give the numbers of the plain graph and of PyTorch, and nothing breaks where there are none."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

import onward
from backends.kernels import run_kernels
from e2e.test_runners import HEADERS, headers
from onward.backends import open_session
from onward.backends.onnxruntime.native import library
from onward.backends.onnxruntime.session import _rewritten
from whole import WHOLE, sample

pytestmark = pytest.mark.skipif(library.compiler() is None, reason="no C compiler: native kernels are not tested")


def operators(program: onward.Program) -> list[str]:
    """Return the native operators of a step, in order."""
    model = _rewritten(program.entries["train"].step, 2, native=True)
    return [n.op_type for n in model.graph if n.domain == library.DOMAIN]


def program_of(module: torch.nn.Module, shape: tuple[int, ...], outputs: int = 3) -> onward.Program:
    torch.manual_seed(0)
    for p in module.parameters():
        torch.nn.init.normal_(p, std=0.2)
    model = onward.from_torch(
        module, loss=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.SGD(module.parameters(), 0.05),
        example_inputs=(torch.randn(shape),), example_targets=torch.zeros(shape[0], dtype=torch.int64),
    )  # fmt: skip
    return onward.compile(model)


def losses(program: onward.Program, shape: tuple[int, ...], *, native: bool, threads: int = 2) -> list[np.ndarray]:
    """Return the losses of four steps, and the state behind them."""
    session = open_session(program, "onnxruntime", native=native, threads=threads, fused=False)
    random = np.random.default_rng(1)
    found = []
    for _ in range(4):
        x, t = random.standard_normal(shape, dtype=np.float32), random.integers(0, 3, shape[0])
        found.append(session.step(dict(zip(program.input_names, (x, t), strict=True)))["loss"])
    return [*found, *session.get_state().values()]


def assert_close(ours: list[np.ndarray], theirs: list[np.ndarray]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


def net(*layers: torch.nn.Module, last: int) -> torch.nn.Module:
    pool = torch.nn.AdaptiveAvgPool2d(1)
    return torch.nn.Sequential(*layers, pool, torch.nn.Flatten(), torch.nn.Linear(last, 3))


CONVOLUTIONS = {
    "3 x 3": ({"kernel_size": 3, "padding": 1}, (16, 24), (5, 16, 9, 9)),
    "strides": ({"kernel_size": 3, "padding": 1, "stride": 2}, (16, 24), (3, 16, 8, 10)),
    "longer strides": ({"kernel_size": 2, "stride": 3}, (8, 8), (2, 8, 11, 12)),
    "1 x 1 with strides": ({"kernel_size": 1, "stride": 2}, (16, 16), (3, 16, 8, 8)),
    "dilations": ({"kernel_size": 3, "dilation": 2, "padding": 2}, (8, 40), (2, 8, 10, 7)),
    "flat kernel": ({"kernel_size": (1, 5), "padding": (0, 2)}, (12, 9), (2, 12, 6, 17)),
    "groups": ({"kernel_size": 3, "padding": 1, "groups": 2}, (32, 16), (2, 32, 6, 6)),
    "depthwise": ({"kernel_size": 3, "padding": 1, "groups": 16}, (16, 16), (4, 16, 9, 5)),
    "depthwise, strides": ({"kernel_size": 5, "padding": 2, "stride": 2, "groups": 8}, (8, 8), (3, 8, 13, 12)),
    "large image": ({"kernel_size": 3, "padding": 1}, (8, 8), (2, 8, 130, 40)),
}


@pytest.mark.parametrize("name", sample(CONVOLUTIONS, ["strides", "groups", "depthwise"]))
def test_convolutions_train_as_the_plain_graph_does(name: str) -> None:
    options, (inner, outer), shape = CONVOLUTIONS[name]
    first = torch.nn.Conv2d(inner, inner, 1)  # so that the input of the second one needs a gradient
    program = program_of(net(first, torch.nn.Conv2d(inner, outer, **options), last=outer), shape)

    found = set(operators(program))

    assert {"KernelGradient"} < found  # and a convolution, or the gradient of its input
    assert_close(losses(program, shape, native=True), losses(program, shape, native=False))


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_kernels_agree_with_pytorch(name: str) -> None:
    options, (inner, outer), shape = CONVOLUTIONS[name]
    assert_agree(torch.nn.Conv2d(inner, outer, bias=False, **options), shape)


def test_kernels_agree_with_pytorch_for_every_number_of_channels_of_a_strip() -> None:
    """Each number of rows of a tile is code of its own: 1 to 13, and two strips, of which the last has an empty row."""
    for channels in range(1, 28):
        assert_agree(
            torch.nn.Conv2d(channels, 28 - channels, 3, padding=1, stride=1 + channels % 2, bias=False),
            (2, channels, 6, 7),
        )


def assert_agree(conv: torch.nn.Conv2d, shape: tuple[int, ...]) -> None:
    """Compare the three kernels of a convolution with PyTorch."""
    x = torch.randn(shape, requires_grad=True)
    y = conv(x)
    dy = torch.randn(y.shape)
    y.backward(dy)
    pads = [*conv.padding, *conv.padding]
    sizes = [*shape[2:], *conv.kernel_size, *conv.stride, *conv.dilation, *pads, conv.groups, 0]
    given = {"X": x.detach(), "K": conv.weight.detach(), "dY": dy}
    for op, names, theirs in (
        ("Convolve", "X K", y),
        ("ConvolveBack", "dY K", x.grad),
        ("KernelGradient", "X dY", conv.weight.grad),
    ):
        mine, right = run(op, [given[n] for n in names.split()], sizes), theirs.detach().numpy()
        assert mine.shape == right.shape
        assert np.abs(mine - right).max() / np.abs(right).max() < 1e-5, (op, conv)


def run(op: str, tensors: list[torch.Tensor], sizes: list[int], *, threads: int = 2) -> np.ndarray:
    """Return the output of one native operator."""
    names = [f"input_{i}" for i in range(len(tensors))]
    node = helper.make_node(op, names, ["y"], domain=library.DOMAIN, sizes=sizes)
    kind = onnx.TensorProto.FLOAT
    inputs = [helper.make_tensor_value_info(n, kind, t.shape) for n, t in zip(names, tensors, strict=True)]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", kind, None)])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(library.DOMAIN, 1)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return run_kernels(proto, {n: t.numpy() for n, t in zip(names, tensors, strict=True)}, threads)[0]


def test_the_number_of_threads_does_not_change_a_bit() -> None:
    x, k, dy = torch.randn(9, 16, 12, 12), torch.randn(40, 16, 3, 3), torch.randn(9, 40, 12, 12)
    sizes = [12, 12, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0]

    for op, tensors in (("Convolve", [x, k]), ("ConvolveBack", [dy, k]), ("KernelGradient", [x, dy])):
        assert run(op, tensors, sizes, threads=1).tobytes() == run(op, tensors, sizes, threads=2).tobytes()


POOLS = {
    "tiles": ({"kernel_size": 2}, (3, 4, 8, 6)),
    "rest": ({"kernel_size": 2}, (3, 4, 9, 7)),
    "overlap": ({"kernel_size": 3, "stride": 2, "padding": 1}, (2, 4, 9, 10)),
    "dilations": ({"kernel_size": 3, "stride": 1, "dilation": 2}, (2, 3, 9, 8)),
    "rounded up": ({"kernel_size": 3, "stride": 2, "ceil_mode": True}, (2, 3, 10, 8)),
    "flat": ({"kernel_size": (1, 4), "stride": (1, 2), "padding": (0, 2)}, (2, 3, 5, 11)),
}


@pytest.mark.parametrize("name", sample(POOLS, ["overlap", "rounded up"]))
def test_max_pools_train_as_the_plain_graph_does(name: str) -> None:
    options, shape = POOLS[name]
    first = torch.nn.Conv2d(shape[1], 5, 1)
    program = program_of(net(first, torch.nn.MaxPool2d(**options), last=5), shape)

    found = operators(program)
    step = _rewritten(program.entries["train"].step, 2, native=True)

    assert "PoolBack" in found
    assert [len(n.outputs) for n in step.graph if n.op_type == "MaxPool"] == [1]
    assert_close(losses(program, shape, native=True), losses(program, shape, native=False))


@pytest.mark.parametrize("whole", [True, False], ids=["ties", "no ties"])
@pytest.mark.parametrize("name", POOLS)
def test_the_gradient_of_a_pool_is_that_of_pytorch(name: str, whole: bool) -> None:
    options, shape = POOLS[name]
    pool = torch.nn.MaxPool2d(**options)
    x = (torch.randint(0, 3, shape).float() if whole else torch.randn(shape)).requires_grad_()
    y = pool(x)
    dy = torch.randn(y.shape)
    y.backward(dy)
    kernel, stride, pad, far = (
        [v, v] if isinstance(v, int) else [*v] for v in (pool.kernel_size, pool.stride, pool.padding, pool.dilation)
    )

    dx = run("PoolBack", [x.detach(), y.detach(), dy], [*shape[2:], *kernel, *stride, *far, *pad, *pad, 1])

    np.testing.assert_allclose(dx, x.grad.numpy(), rtol=1e-6, atol=1e-6)


NORMALISED = [(6, 16, 5, 7), (3, 16, 1, 1), (40, 16, 16, 16)]


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("shape", sample(NORMALISED, NORMALISED[:1]))
def test_batch_normalisation_trains_as_the_plain_graph_does(shape: tuple[int, ...], relu: bool) -> None:
    act = torch.nn.ReLU() if relu else torch.nn.Tanh()
    program = program_of(net(torch.nn.Conv2d(16, 16, 1), torch.nn.BatchNorm2d(16), act, last=16), shape)

    found = [name for name in operators(program) if name.startswith("Normalize")]

    assert found == ["Normalize", "NormalizeReluBack" if relu else "NormalizeBack"]
    assert_close(losses(program, shape, native=True), losses(program, shape, native=False))


def test_a_relu_that_others_read_keeps_its_gradient() -> None:
    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.BatchNorm2d(8)
            self.last = torch.nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.norm(self.conv(x))
            z = torch.relu(y)
            return self.last((z + self.conv(z) + torch.sigmoid(y)).mean((2, 3)))

    program = program_of(Twice(), (4, 8, 6, 6))

    assert "NormalizeBack" in operators(program)  # y has a second reader
    assert_close(losses(program, (4, 8, 6, 6), native=True), losses(program, (4, 8, 6, 6), native=False))


def test_convolutions_of_one_axis_stay_plain() -> None:
    module = torch.nn.Sequential(torch.nn.Conv1d(8, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8 * 8, 3))

    found = operators(program_of(module, (2, 8, 10)))

    assert not [name for name in found if name.startswith(("Convolve", "KernelGradient"))]


def test_nan_stays_nan() -> None:
    x = torch.full((2, 8, 6, 6), float("nan"))
    sizes = [6, 6, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]

    assert np.isnan(run("Convolve", [x, torch.randn(8, 8, 3, 3)], sizes)).all()


def test_tensors_that_do_not_fit_are_refused() -> None:
    sizes = [6, 6, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0]

    with pytest.raises(Exception, match="tensors that do not fit together"):
        run("KernelGradient", [torch.randn(2, 8, 6, 6), torch.randn(2, 8, 5, 5)], sizes)


def small_program() -> onward.Program:
    weight = numpy_helper.from_array(np.random.default_rng(0).standard_normal((8, 8, 3, 3)).astype("f"), "W")
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "W"], ["y"])], "g",
        [value("x", onnx.TensorProto.FLOAT, ["N", 8, 6, 6])], [value("y", onnx.TensorProto.FLOAT, ["N", 8, 4, 4])],
        [weight],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return onward.compile(onward.make_trainable(proto, loss="mse", optimizer=onward.SGD(0.1)))


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let the library be looked for again, with an empty cache."""
    monkeypatch.setenv("ONWARD_CACHE", str(tmp_path / "cache"))
    library.load.cache_clear()
    yield
    library.load.cache_clear()


def test_without_a_compiler_the_plain_graph_trains(forgotten: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")

    assert open_session(small_program(), "onnxruntime").describe()["kernels"] == "plain"
    with pytest.raises(onward.OnwardError, match=r"(?s)B202.*a C compiler.*hint: install one"):
        open_session(small_program(), "onnxruntime", native=True)


def test_a_compiler_that_fails_is_said_once(forgotten: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "false")

    with pytest.warns(
        RuntimeWarning, match="native kernels do not work here, so the plain graph runs: .*could not comp"
    ):
        session = open_session(small_program(), "onnxruntime")

    assert session.describe()["kernels"] == "plain"


def test_that_kernels_do_not_work_is_found_out_once_a_day(forgotten: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "false")
    compiled, now = [], time.time()
    compile_ = library._compile
    monkeypatch.setattr(library, "_compile", lambda *given: compiled.append(given) or compile_(*given))

    texts = {0: "could not compile them: $", 3600: "could not.*an earlier start found this", 90_000: "them: $"}
    for later, text in texts.items():
        library.load.cache_clear()
        monkeypatch.setattr(time, "time", lambda now=now + later: now)
        with pytest.warns(RuntimeWarning, match=text):
            assert library.load() is None

    assert len(compiled) == 2


def test_who_asks_for_kernels_does_not_wait_a_day_for_a_mended_compiler(
    forgotten: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cc, headers = tmp_path / "cc", tmp_path / "headers"
    cc.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] || [ -e {headers} ] || {{ echo no stdio.h >&2; exit 1; }}\nexec cc "$@"\n'
    )
    cc.chmod(0o755)
    monkeypatch.setenv("CC", str(cc))
    with pytest.warns(RuntimeWarning, match=r"no stdio\.h"):
        open_session(small_program(), "onnxruntime")
    library.load.cache_clear()
    with (
        pytest.warns(RuntimeWarning, match=r"no stdio\.h"),
        pytest.raises(onward.OnwardError, match=r"(?s)B202.*found: .*no stdio\.h.*hint: mend that"),
    ):
        open_session(small_program(), "onnxruntime", native=True)

    headers.touch()

    library.load.cache_clear()
    with pytest.warns(RuntimeWarning, match="an earlier start found this"):
        session = open_session(small_program(), "onnxruntime", native=True)
    assert session.native


def test_a_compiler_that_was_killed_is_asked_again(forgotten: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_compile", lambda *given: (_ for _ in ()).throw(library._NotUsable("cc1: Killed")))

    with pytest.warns(RuntimeWarning, match="Killed"):
        assert library.load() is None

    assert not library.CACHE.folder.exists()


def test_a_library_has_the_parts_that_a_step_may_use() -> None:
    steps = [small_program().entries["train"].step.model.graph]
    perceptron = onward.compile(onward.make_trainable(onward.samples.perceptron(), loss="mse"))
    dense = [perceptron.entries["train"].step.model.graph]

    assert library.parts_for(steps) == {"images", "rows"}
    assert library.parts_for(dense) == {"rows"}
    whole, small = (Path(library.load(parts)).read_bytes() for parts in (library.WHOLE, frozenset({"rows"})))
    assert [b"ReluSumBack" in made for made in (whole, small)] == [True, True]
    assert [b"ConvolveBiased" in made for made in (whole, small)] == [True, False]


def test_a_damaged_cache_is_made_again(forgotten: None) -> None:
    assert library.load() is not None
    (kept,) = library.CACHE.folder.iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-9])
    library.load.cache_clear()

    assert library.load() is not None
    assert kept.read_bytes()[32:] != whole[32:-9]


MUTANTS = {
    "normalization.c": ("offset = (float)(s.first / count)", "offset = (float)(s.first / count * 1.001)"),
    "depthwise.c": ("sum += kernel[t] *", "sum += 1.001f * kernel[t] *"),
    "kernel_gradient.c": ("load(result + k * LANES) + sums[i][k]", "load(result + k * LANES) + 1.001f * sums[i][k]"),
    "convolution.c": ("s[i][0] += kernels[i] * a", "s[i][0] += 1.001f * kernels[i] * a"),
    "pooling.c": ("dX[at] += *dY", "dX[at] += 1.001f * *dY"),
    "product_operators.c": ("(m->bias ? m->bias[k] : 0)", "(m->bias ? 1.001f * m->bias[k] : 0)"),
    "turn.c": ("row, block[i])", "row, 1.001f * block[i])"),
    "rows.c": ("(load(dy + c) - rest)", "(load(dy + c) - 1.001f * rest)"),
    "recurrent.c": ("get(dh, n) + load(sums + i * WIDE + j)", "get(dh, n) + 1.001f * load(sums + i * WIDE + j)"),
}


@pytest.mark.parametrize("name", MUTANTS if WHOLE else ["recurrent.c"])
def test_the_trial_finds_an_error_of_a_thousandth(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "turn.c" and library.has_tiles(library.WHOLE):
        pytest.skip("no product needs it where there are tiles")
    for path in library._HERE.glob("*.[ch]"):
        shutil.copy(path, tmp_path)
    text = (tmp_path / name).read_text()
    assert text.count(MUTANTS[name][0]) == 1
    (tmp_path / name).write_text(text.replace(*MUTANTS[name]))
    monkeypatch.setattr(library, "_HERE", tmp_path)

    library._compile(tmp_path / "mutant.so")

    with library._trial() as trial, pytest.raises(library._NotUsable, match="differs by"):
        library._try_out(tmp_path / "mutant.so", trial)


def test_the_places_of_the_functions_are_those_of_the_header(tmp_path: Path) -> None:
    """runtime.h names places in ONNX Runtime's table of functions; the compiler checks them with its header."""
    include = headers(HEADERS, "package/prebuilt/include/onnxruntime/", tmp_path / "include")
    ours = {
        "CREATE_STATUS": "CreateStatus", "CREATE_DOMAIN": "CreateCustomOpDomain", "DOMAIN_ADD": "CustomOpDomain_Add",
        "ADD_DOMAIN": "AddCustomOpDomain", "TENSOR_DATA": "GetTensorMutableData",
        "DIMENSIONS_COUNT": "GetDimensionsCount", "DIMENSIONS": "GetDimensions",
        "TENSOR_SHAPE": "GetTensorTypeAndShape", "CONTEXT_INPUT": "KernelContext_GetInput",
        "CONTEXT_OUTPUT": "KernelContext_GetOutput", "RELEASE_STATUS": "ReleaseStatus",
        "RELEASE_SHAPE": "ReleaseTensorTypeAndShapeInfo", "INTS_OF_ATTRIBUTE": "KernelInfoGetAttributeArray_int64",
        "PARALLEL_FOR": "KernelContext_ParallelFor", "CREATE_ATTRIBUTE": "CreateOpAttr",
        "RELEASE_ATTRIBUTE": "ReleaseOpAttr", "CREATE_OPERATOR": "CreateOp", "INVOKE_OPERATOR": "InvokeOp",
        "RELEASE_OPERATOR": "ReleaseOp", "CREATE_TENSOR": "CreateTensorWithDataAsOrtValue",
        "CPU_MEMORY": "CreateCpuMemoryInfo", "RELEASE_MEMORY_INFO": "ReleaseMemoryInfo",
        "RELEASE_TENSOR": "ReleaseValue",
    }  # fmt: skip
    fields = {
        "create_v2": "CreateKernelV2", "compute_v2": "KernelComputeV2", "name": "GetName", "destroy": "KernelDestroy",
        "input_kind": "GetInputCharacteristic", "first_version": "GetStartVersion", "aliases": "GetAliasMap",
    }  # fmt: skip
    checks = [f"_Static_assert({a} * sizeof(void *) == offsetof(OrtApi, {b}), {b!r});" for a, b in ours.items()]
    checks += [
        f"_Static_assert(offsetof(operator, {a}) == offsetof(struct OrtCustomOp, {b}), {b!r});"
        for a, b in fields.items()
    ]
    source = '#include "runtime.h"\n#include "onnxruntime_c_api.h"\n' + "\n".join(checks).replace("'", '"') + "\n"
    (tmp_path / "check.c").write_text(source)
    command = [*library.compiler(), "-std=gnu11", "-fsyntax-only", f"-I{library._HERE}", *include]

    done = subprocess.run([*command, str(tmp_path / "check.c")], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert len(ours) == (library._HERE / "runtime.h").read_text().split("enum {")[2].split("}")[0].count(" = ")


def test_a_session_says_which_kernels_it_has() -> None:
    program = small_program()
    images = frozenset({"images", "rows"})
    assert open_session(program, "onnxruntime").describe()["kernels"] == library.version(images)
    assert open_session(program, "onnxruntime", native=False).describe()["kernels"] == "plain"


# -- graphs that look like others ------------------------------------------------------------------------------------


def parsed(text: str, **weights: tuple[int, ...]) -> onward.Program:
    """Return the program of a classifier as text, with random weights of these shapes."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> net {text}')
    rng = np.random.default_rng(0)
    for name, shape in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(rng.normal(0, 0.3, shape).astype(np.float32), name))
    return onward.compile(onward.make_trainable(model, loss="cross_entropy", optimizer=onward.SGD(0.5)))


def assert_trains_alike(program: onward.Program, shape: tuple[int, ...]) -> None:
    assert_close(losses(program, shape, native=True), losses(program, shape, native=False))


@pytest.mark.parametrize("batch", [16, 15])
def test_a_batch_as_large_as_the_channels_is_not_taken_for_them(batch: int) -> None:
    text = f"""(float[{batch},8,5,5] x) => (float[{batch},16] y)
        {{ c = Conv <kernel_shape = [3,3]> (x, w)  p = GlobalAveragePool (c)  y = Flatten (p) }}"""
    program = parsed(text, w=(16, 8, 3, 3))

    assert "KernelGradient" in operators(program)
    assert_trains_alike(program, (batch, 8, 5, 5))


def test_frames_that_the_model_folds_into_the_batch_are_images_of_one_channel() -> None:
    text = """(float[N,4,9,9] x) => (float[N,128] y) {
        s = Constant <value_ints = [-1,1,9,9]> ()  f = Reshape (x, s)
        c = Conv <kernel_shape = [3,3]> (f, w)  p = GlobalAveragePool (c)
        e = Constant <value_ints = [-1,128]> ()  y = Reshape (p, e) }"""

    assert_trains_alike(parsed(text, w=(32, 1, 3, 3)), (3, 4, 9, 9))


def test_other_nodes_may_read_the_gradient_of_a_layer_normalisation() -> None:
    text = """(float[N,4] x) => (float[N,8] y) {
        a = MatMul (x, v)  b = MatMul (x, w)  n = LayerNormalization (a, s, t)  y = Sub (n, b) }"""

    assert_trains_alike(parsed(text, v=(4, 8), w=(4, 8), s=(8,), t=(8,)), (5, 4))


@pytest.mark.parametrize(
    ("op", "shapes", "sizes", "result"),
    [
        ("Convolve", [(0, 8, 9, 9), (8, 8, 3, 3)], [9, 9, 3, 3, 1, 1, 1, 1, 0, 0, 0, 0, 1, 0], (0, 8, 7, 7)),
        ("ConvolveBack", [(0, 8, 7, 7), (8, 8, 3, 3)], [9, 9, 3, 3, 1, 1, 1, 1, 0, 0, 0, 0, 1], (0, 8, 9, 9)),
        ("KernelGradient", [(0, 8, 9, 9), (0, 8, 7, 7)], [9, 9, 3, 3, 1, 1, 1, 1, 0, 0, 0, 0, 1], (8, 8, 3, 3)),
        ("PoolBack", [(0, 8, 4, 4), (0, 8, 2, 2), (0, 8, 2, 2)], [4, 4, 2, 2, 2, 2, 1, 1, 0, 0, 0, 0, 1], (0, 8, 4, 4)),
        ("SoftmaxBack", [(0, 5), (0, 5)], [0], (0, 5)),
    ],
)
def test_a_kernel_takes_an_empty_batch(
    op: str, shapes: list[tuple[int, ...]], sizes: list[int], result: tuple[int, ...]
) -> None:
    found = run(op, [torch.zeros(shape) for shape in shapes], sizes)

    assert found.shape == result
    assert not found.any()


def test_a_compiler_may_have_options_and_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "env cc -m64")

    assert library.compiler() == [shutil.which("env"), "cc", "-m64"]
