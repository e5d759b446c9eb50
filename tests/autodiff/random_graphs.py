"""Random graphs to differentiate: mixed operators, shared values, subgraphs in subgraphs, functions, Gradient nodes.

PYTHONPATH=tests:src python -m autodiff.random_graphs 0 500    # the numbers of the graphs to look at
"""

from __future__ import annotations

import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onward.backends.reference import Evaluator
from onward.compiler.derivatives import gradient
from onward.errors import NotDifferentiable

Shape = tuple[int, ...]

INPUTS: tuple[tuple[str, Shape], ...] = (("a", (2, 3)), ("b", (3,)), ("c", (2, 1)), ("d", ()), ("e", (3, 2)))
UNARY = ("Tanh", "Sigmoid", "Softplus", "Sin", "Cos", "Erf", "Neg", "Identity", "Softsign", "Elu", "Gelu")
GRADIENT_DOMAIN = "ai.onnx.preview.training"
OPSET = 20
HALF = """<opset_import: ["" : 20], domain: "own"> Half (A, B) => (C, D)
    { t = Tanh (A) C = Mul (t, B) u = Sigmoid (C) D = Sub (u, A) }"""
WHOLE = """<opset_import: ["" : 20, "own" : 1], domain: "own"> Whole (A, B) => (C)
    { p, q = own.Half (A, B) r, s = own.Half (q, p) C = Add (r, s) }"""


class Maker:
    """Adds random nodes to one graph; `pool` holds the values that may be read, with their shapes."""

    def __init__(self, rng: np.random.Generator, pool: dict[str, Shape], counter: list[int], depth: int = 0) -> None:
        self.rng, self.pool, self.counter, self.depth = rng, pool, counter, depth
        self.nodes: list[onnx.NodeProto] = []
        self.behind: dict[str, set[str]] = {}  # for each value of this graph, what it is computed from

    def name(self, stem: str) -> str:
        self.counter[0] += 1
        return f"{stem}{self.counter[0]}"

    def node(self, op: str, inputs: list[str], shape: Shape, *, domain: str = "", **attributes: object) -> str:
        return self.nodes_of(op, inputs, [shape], domain=domain, **attributes)[0]

    def nodes_of(
        self, op: str, inputs: list[str], shapes: list[Shape], *, domain: str = "", **attributes: object
    ) -> list[str]:
        outputs = [self.name(op.lower()[:4]) for _ in shapes]
        name = self.name(op) if self.rng.random() < 0.7 else ""
        self.nodes.append(helper.make_node(op, inputs, outputs, name=name, domain=domain, **attributes))
        behind = set(inputs).union(*(self.behind.get(i, set()) for i in inputs))
        for output, shape in zip(outputs, shapes, strict=True):
            self.pool[output], self.behind[output] = shape, behind
        return outputs

    def constant(self, value: object) -> str:
        output = self.name("const")
        self.nodes.append(helper.make_node("Constant", [], [output], value=numpy_helper.from_array(np.asarray(value))))
        return output

    def pick(self, least_rank: int = 0) -> str:
        fitting = [n for n, s in self.pool.items() if len(s) >= least_rank]
        late = fitting[-6:]
        return str(self.rng.choice(late if self.rng.random() < 0.6 else fitting))

    def step(self) -> None:
        """Add one random operator."""
        simple = [
            self.unary, self.binary, self.binary, self.matmul, self.transpose, self.reshape, self.slice, self.concat,
            self.reduce, self.softmax, self.where, self.gather, self.split, self.pad, self.expand, self.norm, self.call,
        ]  # fmt: skip
        nested = [self.if_, self.loop, self.scan]
        choices = simple + (nested if self.depth < 2 else [])
        choices[int(self.rng.integers(len(choices)))]()

    def tame(self, value: str) -> str:
        return self.node("Tanh", [value], self.pool[value])

    def unary(self) -> None:
        value = self.pick()
        self.node(str(self.rng.choice(UNARY)), [value], self.pool[value])

    def binary(self) -> None:
        left, right = self.pick(), self.pick()
        try:
            shape = np.broadcast_shapes(self.pool[left], self.pool[right])
        except ValueError:
            right = self.node("ReduceSum", [right], (), keepdims=0)
            shape = self.pool[left]
        op = str(self.rng.choice(["Add", "Sub", "Mul", "Div", "Mean"]))
        if op == "Div":
            away = self.node("Softplus", [right], self.pool[right])
            right = self.node("Add", [away, self.constant(0.5)], self.pool[right])
        self.node(op, [left, right], shape)

    def matmul(self) -> None:
        left = self.pick(1)
        size = self.pool[left][-1]
        fitting = [n for n, s in self.pool.items() if len(s) == 2 and s[0] == size]
        if len(self.pool[left]) <= 2 and fitting:
            right = str(self.rng.choice(fitting))
            self.tame(self.node("MatMul", [left, right], (*self.pool[left][:-1], self.pool[right][1])))

    def transpose(self) -> None:
        value = self.pick(2)
        perm = self.rng.permutation(len(self.pool[value])).tolist()
        self.node("Transpose", [value], tuple(self.pool[value][p] for p in perm), perm=perm)

    def reshape(self) -> None:
        value = self.pick(1)
        shape = self.pool[value]
        new = (int(np.prod(shape)),) if self.rng.random() < 0.5 else (*shape[::-1],)
        self.node("Reshape", [value, self.constant(np.array(new, np.int64))], new)

    def slice(self) -> None:
        value = self.pick(1)
        axis = int(self.rng.integers(len(self.pool[value])))
        size = self.pool[value][axis]
        if size < 2:
            return
        step = int(self.rng.choice([1, -1, 2]))
        start, end = (0, size - 1) if step > 0 else (size - 1, 0)
        new = list(self.pool[value])
        new[axis] = len(range(start, end, step))
        limits = [self.constant(np.array([v], np.int64)) for v in (start, end, axis, step)]
        self.node("Slice", [value, *limits], tuple(new))

    def concat(self) -> None:
        value = self.pick(1)
        axis = int(self.rng.integers(-len(self.pool[value]), len(self.pool[value])))
        same = [n for n, s in self.pool.items() if s == self.pool[value]]
        other = str(self.rng.choice(same))
        shape = list(self.pool[value])
        if shape[axis] > 4:
            return
        shape[axis] *= 2
        self.node("Concat", [value, other], tuple(shape), axis=axis)

    def reduce(self) -> None:
        value = self.pick(1)
        shape = list(self.pool[value])
        axis, keep = int(self.rng.integers(len(shape))), int(self.rng.random() < 0.5)
        op = str(self.rng.choice(["ReduceSum", "ReduceMean", "ReduceLogSumExp", "ReduceSumSquare"]))
        new = [*shape[:axis], *([1] if keep else []), *shape[axis + 1 :]]
        result = self.node(op, [value, self.constant(np.array([axis], np.int64))], tuple(new), keepdims=keep)
        self.tame(result)

    def softmax(self) -> None:
        value = self.pick(1)
        axis = int(self.rng.integers(-len(self.pool[value]), len(self.pool[value])))
        self.node(str(self.rng.choice(["Softmax", "LogSoftmax"])), [value], self.pool[value], axis=axis)

    def norm(self) -> None:
        value = self.pick(1)
        scale = self.constant(self.rng.uniform(0.5, 1.5, self.pool[value][-1:]))
        self.node("LayerNormalization", [value, scale], self.pool[value], axis=-1, epsilon=0.1, stash_type=11)

    def where(self) -> None:
        value = self.pick()
        mask = self.constant(self.rng.random(self.pool[value]) < 0.5)
        self.node("Where", [mask, value, self.constant(0.3)], self.pool[value])

    def gather(self) -> None:
        value = self.pick(1)
        shape = list(self.pool[value])
        axis = int(self.rng.integers(len(shape)))
        rows = self.rng.integers(-shape[axis], shape[axis], 2)
        shape[axis] = 2
        self.node("Gather", [value, self.constant(rows)], tuple(shape), axis=axis)

    def split(self) -> None:
        value = self.pick(1)
        shape = list(self.pool[value])
        if shape[-1] < 2:
            return
        parts = [(*shape[:-1], 1), (*shape[:-1], shape[-1] - 1)]
        sizes = self.constant(np.array([1, shape[-1] - 1], np.int64))
        self.nodes_of("Split", [value, sizes], parts, axis=-1)

    def pad(self) -> None:
        value = self.pick(1)
        shape = list(self.pool[value])
        if shape[-1] > 3:
            return
        pads = np.zeros(2 * len(shape), np.int64)
        pads[-1] = 1
        shape[-1] += 1
        mode = str(self.rng.choice(["constant", "edge"]))
        self.node("Pad", [value, self.constant(pads)], tuple(shape), mode=mode)

    def expand(self) -> None:
        value = self.pick()
        shape = self.pool[value]
        if len(shape) < 3:
            self.node("Expand", [value, self.constant(np.array((2, *shape), np.int64))], (2, *shape))

    def call(self) -> None:
        left = self.pick()
        same = [n for n, s in self.pool.items() if s == self.pool[left]]
        inputs = [left, str(self.rng.choice(same))]
        if self.rng.random() < 0.5:
            self.nodes_of("Half", inputs, [self.pool[left]] * 2, domain="own")
        else:
            self.node("Whole", inputs, self.pool[left], domain="own")

    # -- subgraphs -------------------------------------------------------------------------------------------

    def inside(self, extra: dict[str, Shape]) -> Maker:
        maker = Maker(self.rng, {**self.pool, **extra}, self.counter, self.depth + 1)
        for _ in range(int(self.rng.integers(1, 4))):
            maker.step()
        return maker

    def mixed(self, maker: Maker, like: str) -> str:
        """Return a value of the subgraph with the shape of `like`, made of it and something else."""
        other = maker.node("ReduceMean", [maker.pick()], (), keepdims=0)
        return maker.tame(maker.node("Add", [like, other], self.pool.get(like, maker.pool[like])))

    def captured(self, makers: list[Maker]) -> list[str]:
        return [
            i for m in makers for n in m.nodes for i in [*n.input, *m.behind.get(n.output[0], set())] if i in self.pool
        ]

    def if_(self) -> None:
        like = self.pick()
        total = self.node("ReduceSum", [self.pick()], (), keepdims=0)
        condition = self.name("cond")
        self.nodes.append(helper.make_node("Greater", [total, self.constant(0.123)], [condition]))
        makers = [self.inside({}) for _ in range(2)]
        branches = []
        for maker in makers:
            output = self.mixed(maker, like)
            branches.append(helper.make_graph(maker.nodes, self.name("branch"), [], [info(output, self.pool[like])]))
        made = self.node("If", [condition], self.pool[like], then_branch=branches[0], else_branch=branches[1])
        self.behind[made] |= self.all_behind(self.captured(makers))

    def all_behind(self, names: list[str]) -> set[str]:
        return set(names).union(*(self.behind.get(n, set()) for n in names))

    def loop(self) -> None:
        start = self.pick()
        shape = self.pool[start]
        count, keep, state, step = (self.name(s) for s in ("i", "keep", "v", "on"))
        maker = self.inside({state: shape})
        output = self.mixed(maker, state)
        if self.rng.random() < 0.4:  # stops early, depending on the data
            total = maker.node("ReduceSum", [output], (), keepdims=0)
            maker.nodes.append(helper.make_node("Less", [total, maker.constant(float(self.rng.normal()))], [step]))
        else:
            maker.nodes.append(helper.make_node("Identity", [keep], [step]))
        scanned = maker.pick()
        copy = maker.node("Identity", [scanned], maker.pool[scanned])
        body = helper.make_graph(
            maker.nodes,
            self.name("body"),
            [info(count, (), TensorProto.INT64), info(keep, (), TensorProto.BOOL), info(state, shape)],
            [info(step, (), TensorProto.BOOL), info(output, shape), info(copy, maker.pool[copy])],
        )
        limit = "trips" if self.rng.random() < 0.3 else self.constant(np.array(self.rng.integers(0, 4)))
        before = set(self.pool)
        final, stacked = self.nodes_of("Loop", [limit, "", start], [shape, ()], body=body)
        del self.pool[stacked]  # as many as there were iterations: read only as a sum
        total = self.node("ReduceSum", [stacked], (), keepdims=0)
        captured = self.captured([maker])
        for value in (final, stacked, total, self.tame(total)):
            self.behind[value] = self.behind.get(value, set()) | self.all_behind([*captured, start]) & (
                before | {start}
            )

    def scan(self) -> None:
        start, sequence = self.pick(), self.pick(1)
        shape, element = self.pool[start], self.pool[sequence][1:]
        state, item = self.name("s"), self.name("x")
        maker = self.inside({state: shape, item: element})
        output = self.mixed(maker, state)
        scanned = self.mixed(maker, item)
        body = helper.make_graph(
            maker.nodes, self.name("body"), [info(state, shape), info(item, element)],
            [info(output, shape), info(scanned, element)],
        )  # fmt: skip
        made = self.nodes_of(
            "Scan", [start, sequence], [shape, self.pool[sequence]], body=body, num_scan_inputs=1,
            scan_input_directions=[int(self.rng.integers(2))],
        )  # fmt: skip
        for value in made:
            self.behind[value] |= self.all_behind(self.captured([maker]))

    # -- Gradient nodes --------------------------------------------------------------------------------------

    def gradient(self) -> None:
        """Add a Gradient node: by one or two inputs or by something computed, with or without zs, maybe moved."""
        y = self.pick()
        sources = sorted(n for n in self.behind.get(y, set()) if n in self.pool)
        if not sources:
            return
        first = str(self.rng.choice(sources))
        cut = [first]
        for name, _ in INPUTS:
            related = name in self.behind.get(first, set()) or name == first
            if not related and self.rng.random() < 0.4:
                cut.append(name)
        split = int(self.rng.integers(1, len(cut) + 1))
        points = [self.moved(n) for n in cut]
        self.nodes_of(
            "Gradient", points, [self.pool[n] for n in cut[:split]], domain=GRADIENT_DOMAIN,
            xs=cut[:split], y=y, **({"zs": cut[split:]} if cut[split:] else {}),
        )  # fmt: skip
        for output in self.nodes[-1].output:
            self.behind[output] |= self.behind.get(y, set()) | {y}

    def moved(self, name: str) -> str:
        same = [n for n, s in self.pool.items() if s == self.pool[name]]
        return str(self.rng.choice(same)) if self.rng.random() < 0.2 else name


def info(name: str, shape: Shape, dtype: int = TensorProto.DOUBLE) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, list(shape))


def random_model(seed: int, *, steps: int = 8) -> onnx.ModelProto:
    """Return a model in double precision with the inputs INPUTS and `trips`, and one scalar output `loss`."""
    rng = np.random.default_rng(seed)
    maker = Maker(rng, dict(INPUTS), [0])
    for _ in range(int(rng.integers(3, steps + 1))):
        maker.step()
        if rng.random() < 0.15:
            maker.gradient()
            maker.tame(maker.pick())
    late = list(maker.pool)[-4:]
    sums = [maker.node("ReduceSum", [maker.tame(v)], (), keepdims=0) for v in late]
    maker.nodes.append(
        helper.make_node("Sum", [*sums, maker.node("ReduceMean", [maker.pick()], (), keepdims=0)], ["loss"])
    )
    inputs = [info(n, s) for n, s in INPUTS] + [info("trips", (), TensorProto.INT64)]
    graph = helper.make_graph(maker.nodes, f"random_{seed}", inputs, [info("loss", ())])
    imports = [helper.make_opsetid(d, v) for d, v in (("", OPSET), (GRADIENT_DOMAIN, 1), ("own", 1))]
    functions = [onnx.parser.parse_function(t) for t in (HALF, WHOLE)]
    return helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=10)


def symbolic(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with every dimension of its inputs unknown."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for value in copy.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            dim.dim_param = f"{value.name}_{axis}"
    return copy


def random_feeds(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([seed, 1])
    feeds = {n: rng.uniform(-1.5, 1.5, s) for n, s in INPUTS}
    return {**feeds, "trips": np.array(rng.integers(0, 4))}


# -- what must hold ------------------------------------------------------------------------------------------

NAMES = [n for n, _ in INPUTS]


def slopes_agree(lowered: onnx.ModelProto, of: str, grads: list[str], feeds: dict[str, np.ndarray], seed: int) -> str:
    """Return "" if the gradients are the slope of `of` along a random direction, else both numbers."""
    evaluator = Evaluator(lowered)
    rng = np.random.default_rng([seed, 2])
    direction = {n: rng.normal(size=np.shape(feeds[n])) for n in NAMES}
    results = evaluator.run(feeds)
    slope = sum(float((results[g] * direction[n]).sum()) for n, g in zip(NAMES, grads, strict=True))

    def value(step: float) -> float:
        return float(evaluator.run({**feeds, **{n: feeds[n] + step * direction[n] for n in NAMES}})[of])

    step = 1e-4
    expected = (8 * (value(step) - value(-step)) - (value(2 * step) - value(-2 * step))) / (12 * step)
    return "" if np.isclose(slope, expected, rtol=1e-5, atol=1e-7) else f"{of}: {slope} is not the slope {expected}"


def find_problem(seed: int, *, twice: bool = False) -> str:
    """Return what is wrong with the gradient of one random graph, "" if nothing."""
    try:
        return _find_problem(seed, twice)
    except NotDifferentiable as refusal:
        # The second derivative of a Loop inside a Scan may need a sequence of every step.
        if "a Scan outputs only tensors" in str(refusal):
            return ""
        raise


def _find_problem(seed: int, twice: bool) -> str:
    """Return what is wrong with the gradient of one random graph.

    It is valid ONNX, the slope of the loss, and the same with unknown dimensions and as functions. With `twice`, the
    gradient of a combination of the gradients is its slope too.
    """
    model, feeds = random_model(seed), random_feeds(seed)
    lowered = gradient(model, of="loss", wrt=NAMES)
    onnx.checker.check_model(lowered, full_check=True)
    wrong = slopes_agree(lowered, "loss", [f"grad/{n}" for n in NAMES], feeds, seed)
    if wrong:
        return wrong
    outlined = gradient(model, of="loss", wrt=NAMES, functions=True)
    onnx.checker.check_model(outlined, full_check=True)
    expected = Evaluator(lowered).run(feeds)
    for kind, other in (
        ("unknown dimensions", gradient(symbolic(model), of="loss", wrt=NAMES)),
        ("functions", outlined),
    ):
        actual = Evaluator(other).run(feeds)
        for name in NAMES:
            if not np.allclose(actual[f"grad/{name}"], expected[f"grad/{name}"], rtol=1e-9, atol=1e-11):
                return f"{kind}: another gradient by {name}"
    if not twice:
        return ""
    squares = [helper.make_node("ReduceSumSquare", [f"grad/{n}"], [f"square/{n}"], keepdims=0) for n in NAMES]
    lowered.graph.node.extend([*squares, helper.make_node("Sum", [f"square/{n}" for n in NAMES], ["size"])])
    lowered.graph.output.append(info("size", ()))
    again = gradient(lowered, of="size", wrt=NAMES)
    onnx.checker.check_model(again, full_check=True)
    return slopes_agree(again, "size", [o.name for o in again.graph.output[-len(NAMES) :]], feeds, seed)


if __name__ == "__main__":
    for number in range(int(sys.argv[1]), int(sys.argv[2])):
        try:
            found = find_problem(number, twice=True)
        except Exception as error:  # noqa: BLE001  a report of each, not the end of the run
            found = f"{type(error).__name__}: {str(error)[:500]}"
        if found:
            print(number, found, flush=True)
