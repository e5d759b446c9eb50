"""The page that draws a model: complete without a browser, and drawn in a real one."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import time

import numpy as np
import onnx
import pytest
from onnx import helper

from hostile.files import known_gap, rich_model, small_model, value
from onward.model import serde
from onward.show.layout import lay_out
from onward.show.page import draw, render_page

CHROMIUM = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)


def data_of(page: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S).group(1))


def long_model(count: int = 2000) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Relu" if i % 3 else "Neg", [f"v{i}"], [f"v{i + 1}"], f"/block{i // 10}/n{i}")
        for i in range(count)
    ]
    graph = helper.make_graph(nodes, "long", [value("v0", [4])], [value(f"v{count}", [4])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def test_the_page_loads_nothing_from_anywhere():
    page = render_page(serde.from_proto(rich_model()))

    assert "default-src 'none'" in page
    outside = re.findall(r"""(?:src|href|action)\s*=\s*["'][^"']*|@import|url\((?!#)[^)]*|https?://[^\s"'<]+""", page)
    assert outside == ["http://www.w3.org/2000/svg"]


def test_every_mark_of_the_template_is_filled():
    page = render_page(serde.from_proto(small_model()))

    assert not re.search(r"/\*(STYLE|SCRIPT|DATA)\*/", page)


def test_names_cannot_break_out_of_the_page():
    proto = small_model()
    proto.graph.name = "</script><script>alert(1)</script>"
    proto.graph.node[0].name = "<img src=x onerror=alert(1)>"

    page = render_page(serde.from_proto(proto))

    assert "alert(1)</script>" not in page
    assert "<img" not in page
    assert data_of(page)["facts"]["name"] == proto.graph.name


def test_the_forward_training_and_reset_graphs_and_functions_are_drawn():
    drawings = draw(serde.from_proto(rich_model()))

    assert [(d["title"], d["kind"]) for d in drawings if d["kind"] != "subgraph"] == [
        ("Forward", "forward"),
        ("Training (train)", "training"),
        ("Reset (train)", "reset"),
        ("Training (second/train)", "training"),
        ("Reset (second/train)", "reset"),
        ("my.functions.Scale:a", "function"),
        ("my.functions.Scale:b", "function"),
    ]


def box(drawing: dict, title: str) -> dict:
    return next(b for b in drawing["boxes"] if b["t"] == title)


def test_a_node_shows_its_weights_shapes_and_attributes():
    drawing = data_of(render_page(serde.from_proto(rich_model())))["drawings"][0]

    matmul = box(drawing, "MatMul")

    assert matmul["r"][0] == ["W", "⟨3×2⟩", "parameter"]
    assert matmul["d"]["outputs"] == [["xW", "float[batch, 2]", ""]]
    assert ["documented", "3"] in matmul["d"]["attributes"]


def test_inner_graphs_and_functions_can_be_opened_from_their_node():
    drawings = data_of(render_page(serde.from_proto(rich_model())))["drawings"]

    inner = [drawings[i]["title"] for i in box(drawings[0], "If")["d"]["inner"]]
    function = [drawings[i]["title"] for i in box(drawings[0], "Scale")["d"]["inner"]]

    assert inner == ["choose / else", "choose / then"]
    assert function == ["my.functions.Scale:a"]


def test_the_gradient_is_joined_to_what_it_differentiates():
    drawing = data_of(render_page(serde.from_proto(small_model())))["drawings"][1]
    titles = [b["t"] for b in drawing["boxes"]]

    dashed = [(titles[e["s"]], titles[e["t"]], e["l"]) for e in drawing["edges"] if e.get("dash")]

    assert dashed == [("ReduceMean", "Gradient", "∂ loss")]


def test_shapes_are_inferred_for_the_edges():
    drawing = data_of(render_page(serde.from_proto(small_model())))["drawings"][0]

    assert [e["l"] for e in drawing["edges"] if e["n"] == ["xW"]] == ["batch×2"]


def long_sizes() -> onnx.ModelProto:
    """Narrow boxes, and edges whose sizes have long names."""
    nodes = [helper.make_node(op, [a], [b]) for op, a, b in (("Abs", "x", "a"), ("Neg", "a", "b"), ("Exp", "b", "y"))]
    sizes = ["batch_size", 288, "floor_of_samples", "ceiling_of_samples", "half_of_samples"]
    return helper.make_model(helper.make_graph(nodes, "long", [value("x", sizes)], [value("y", sizes)]))


def test_the_drawing_is_as_wide_as_the_labels_of_its_edges():
    drawing = data_of(render_page(serde.from_proto(long_sizes())))["drawings"][0]

    right = max(b["x"] + b["w"] / 2 for b in drawing["boxes"])
    assert any(len(e["l"]) > 25 for e in drawing["edges"])
    assert drawing["width"] > right + 20


def test_boxes_of_one_layer_do_not_overlap():
    sizes = [(100.0, 30.0)] * 8
    edges = [(0, i) for i in range(1, 7)] + [(i, 7) for i in range(1, 7)]

    layout = lay_out(sizes, edges)

    middle = sorted(layout.places[i] for i in range(1, 7))
    assert len({y for _, y in middle}) == 1
    assert all(b[0] - a[0] >= 100 for a, b in itertools.pairwise(middle))
    assert layout.places[0][1] < middle[0][1] < layout.places[7][1]


def test_every_edge_goes_down_from_its_source_to_its_target():
    sizes = [(50.0, 20.0)] * 5
    edges = [(0, 1), (1, 2), (0, 3), (3, 4), (2, 4), (0, 4)]

    layout = lay_out(sizes, edges)

    for (source, target), route in zip(edges, layout.routes, strict=True):
        assert route[0] == (layout.places[source][0], layout.places[source][1] + 10)
        assert route[-1] == (layout.places[target][0], layout.places[target][1] - 10)
        assert [y for _, y in route] == sorted(y for _, y in route)


def test_a_cycle_is_drawn_too():
    assert len(lay_out([(10.0, 10.0)] * 3, [(0, 1), (1, 2), (2, 0)]).places) == 3
    assert lay_out([], []).width == 0


def test_many_separate_parts_fill_rows_instead_of_one_line():
    assert lay_out([(100.0, 30.0)] * 200, []).width < 1200


def test_two_thousand_nodes_are_laid_out_in_seconds():
    start = time.process_time()

    drawings = data_of(render_page(serde.from_proto(long_model())))["drawings"]

    assert len(drawings[drawings[0]["flat"]]["boxes"]) == 2002
    assert time.process_time() - start < 20


def dump_dom(page: str, tmp_path, fragment: str = "", width: int = 1400) -> str:
    """Return the document as Chromium has it after the page's script ran."""
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
        f"--window-size={width},900", "--virtual-time-budget=4000", "--dump-dom", f"file://{tmp_path}/page.html{fragment}",
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


browser = pytest.mark.skipif(CHROMIUM is None, reason=known_gap("chromium"))


@browser
def test_chromium_draws_every_node_of_a_small_model(tmp_path):
    dom = dump_dom(render_page(serde.from_proto(small_model())), tmp_path)

    assert 'data-ready="1"' in dom
    assert re.search(r'data-visible="4" data-total="4"', dom)
    assert dom.count('class="edge') == 3
    assert re.search(r">batch×2</text>", dom)


@browser
def test_chromium_finds_a_node_and_shows_its_details(tmp_path):
    dom = dump_dom(render_page(serde.from_proto(rich_model())), tmp_path, "#find=choose")

    assert "1 of 1" in dom
    assert re.search(r"<h3>If</h3>", dom)
    assert "▸ choose / then" in dom


@browser
def test_chromium_draws_only_what_is_visible_of_two_thousand_nodes(tmp_path):
    page = render_page(serde.from_proto(long_model()))
    dom = dump_dom(page, tmp_path, f"#graph={data_of(page)['drawings'][0]['flat']}")

    visible, total = map(int, re.search(r'data-visible="(\d+)" data-total="(\d+)"', dom).groups())
    assert total == 2002
    assert 3 < visible < 60


@browser
def test_chromium_shows_the_weights_table_in_the_dark(tmp_path):
    dom = dump_dom(render_page(serde.from_proto(small_model())), tmp_path, "#sheet=weights&theme=dark")

    assert 'data-theme="dark"' in dom
    rows = re.search(r'<table id="weights">(.*?)</table>', dom, re.S).group(1).count("<tr>")
    assert rows == 1 + 5


def repeated_model(blocks: int = 12, named: bool = False) -> onnx.ModelProto:
    """A stem, equal residual blocks and a head; without names, or with the path of each block."""
    nodes, value_name = [helper.make_node("Abs", ["x"], ["b0"])], "b0"
    for block in range(blocks):
        name = f"/encoder/layer.{block}/" if named else ""
        for step, op in enumerate(("Relu", "Exp", "Tanh", "Neg", "Sigmoid")):
            made = f"b{block}s{step}"
            nodes.append(helper.make_node(op, [value_name], [made], name and f"{name}{op}"))
            value_name = made
        source = f"b{block}s0"
        nodes.append(helper.make_node("Add", [value_name, source], [f"out{block}"], name and f"{name}Add"))
        value_name = f"out{block}"
    nodes.append(helper.make_node("Softmax", [value_name], ["y"]))
    graph = helper.make_graph(nodes, "repeated", [value("x", [4])], [value("y", [4])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def parts(drawing: dict) -> list[str]:
    return [b["t"] for b in drawing["boxes"] if "g" in b]


def test_a_large_graph_opens_on_an_overview_of_repeated_blocks():
    drawings = data_of(render_page(serde.from_proto(repeated_model())))["drawings"]

    overview = drawings[0]
    assert parts(overview) == [f"Block {i} of 12" for i in range(1, 13)]
    assert [b["t"] for b in overview["boxes"]] == ["x", "Abs", *parts(overview), "Softmax", "y"]
    inside = drawings[box(overview, "Block 2 of 12")["g"]]
    assert [b["t"] for b in inside["boxes"] if b["k"] == "op"] == ["Relu", "Exp", "Tanh", "Neg", "Sigmoid", "Add"]
    assert [b["t"] for b in inside["boxes"] if b["k"] != "op"] == ["out0", "out1"]
    assert inside["parent"] == 0


def test_many_blocks_are_one_part_which_opens_on_the_blocks():
    drawings = data_of(render_page(serde.from_proto(repeated_model(30))))["drawings"]

    assert parts(drawings[0]) == ["30 × block"]
    assert len(parts(drawings[box(drawings[0], "30 × block")["g"]])) == 30


def test_names_with_a_path_give_the_parts():
    drawings = data_of(render_page(serde.from_proto(repeated_model(10, named=True))))["drawings"]

    assert parts(drawings[0]) == [f"layer.{i}" for i in range(10)]


def test_every_node_is_in_one_part_and_in_the_flat_drawing():
    for model in (repeated_model(40), repeated_model(9, named=True), long_model(500)):
        names = sorted(n.output[0] for n in model.graph.node)
        drawings = data_of(render_page(serde.from_proto(model)))["drawings"]

        def made(drawing: dict) -> list[str]:
            return [v[0] for b in drawing["boxes"] if b["k"] == "op" and "g" not in b for v in b["d"]["outputs"]]

        assert sorted(v for d in drawings if d["kind"] != "flat" for v in made(d)) == names
        assert sorted(made(drawings[drawings[0]["flat"]])) == names
        assert all(len(d["boxes"]) < 70 for d in drawings if d["kind"] != "flat")


def test_modules_that_read_each_other_in_turn_are_drawn():
    """a → b → a: as parts they form a cycle, which the nodes do not."""
    nodes = []
    for i in range(60):
        nodes.append(helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"], f"/{'ab'[i // 10 % 2]}/n{i}"))
    graph = helper.make_graph(nodes, "turns", [value("v0", [4])], [value("v60", [4])])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)

    drawing = data_of(render_page(serde.from_proto(proto)))["drawings"][0]

    assert parts(drawing) == ["a", "b"]
    places = {b["t"]: b["y"] for b in drawing["boxes"]}
    assert places["v0"] < places["a"] < places["b"]


def weighted_model(stages: int = 3, blocks: int = 6) -> onnx.ModelProto:
    """Nodes without names whose weights have the names of modules: `stage1.0.fc1.weight`."""
    nodes, weights, made = [], [], "x"
    for stage, block, layer in itertools.product(range(stages), range(blocks), (1, 2)):
        name = f"stage{stage}.{block}.fc{layer}.weight"
        weights.append(helper.make_tensor(name, onnx.TensorProto.FLOAT, [4, 4], [0.0] * 16))
        nodes += [helper.make_node("MatMul", [made, name], [f"{name}/m"])]
        nodes += [helper.make_node("Relu", [f"{name}/m"], [f"{name}/r"])]
        made = f"{name}/r"
    graph = helper.make_graph(nodes, "weighted", [value("x", [2, 4])], [value(made, [2, 4])], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def test_names_of_weights_give_the_parts_of_nodes_without_names():
    drawings = data_of(render_page(serde.from_proto(weighted_model())))["drawings"]

    assert parts(drawings[0]) == ["stage0", "stage1", "stage2"]
    stage = box(drawings[0], "stage1")
    assert [r[:2] for r in stage["r"]] == [["24 nodes", "192 weights"], ["6 × (2 MatMul, 2 Relu)", ""]]
    assert parts(drawings[stage["g"]]) == [f"stage1.{i}" for i in range(6)]


def test_the_modules_that_pytorch_notes_come_first():
    """PyTorch's exporter names nodes `node_linear_3`, and folding renames weights; the scopes stay."""
    nodes = []
    for i in range(60):
        nodes.append(helper.make_node("Add", [f"v{i}", f"c{i}"], [f"v{i + 1}"], f"node_add_{i}"))
        nodes[-1].metadata_props.add(key="pkg.torch.onnx.name_scopes", value=f"['', 'body.{i // 20}', 'add_{i}']")
        nodes.insert(-1, helper.make_node("Constant", [], [f"c{i}"], value_floats=[1.0]))
        nodes[-2].metadata_props.extend(nodes[-1].metadata_props)
    graph = helper.make_graph(nodes, "scopes", [value("v0", [1])], [value("v60", [1])])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)

    drawing = data_of(render_page(serde.from_proto(proto)))["drawings"][0]

    assert parts(drawing) == ["body.0", "body.1", "body.2"]
    assert [r[:2] for r in box(drawing, "body.1")["r"]] == [["40 nodes", ""], ["20 Add", ""]]


def test_constants_are_where_the_weights_of_their_readers_are():
    proto = weighted_model()
    for i, node in enumerate([n for n in proto.graph.node if n.op_type == "Relu"]):
        shift = [helper.make_node("Constant", [], [f"c{i}{k}"], value_floats=[1.0]) for k in "abcd"]
        summed = helper.make_node("Sum", [node.input[0], *(n.output[0] for n in shift)], [f"s{i}"])
        node.input[0] = f"s{i}"
        place = list(proto.graph.node).index(node)
        for offset, new in enumerate([*shift, summed]):
            proto.graph.node.insert(place + offset, new)

    drawing = data_of(render_page(serde.from_proto(proto)))["drawings"][0]

    assert parts(drawing) == ["stage0", "stage1", "stage2"]


def irregular_model(count: int = 120) -> onnx.ModelProto:
    """A chain without names and without repetition, whose weights are Constant nodes."""
    kinds = ("Relu", "Exp", "Tanh", "Neg", "Sigmoid", "Abs")
    nodes = [helper.make_node(kinds[i * i // 7 % 6], [f"v{i}"], [f"v{i + 1}"]) for i in range(count)]
    tensor = helper.make_tensor("t", onnx.TensorProto.FLOAT, [8], [1.0] * 8)
    nodes += [helper.make_node("Constant", [], ["/a/Constant_output_0"], value=tensor)]
    nodes += [helper.make_node("Mul", [f"v{count}", "/a/Constant_output_0"], ["y"])]
    graph = helper.make_graph(nodes, "irregular", [value("v0", [8])], [value("y", [8])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def test_weights_that_are_stored_as_integers_are_counted_beside_the_others():
    weight = onnx.numpy_helper.from_array(np.ones((8, 4), np.int8), "q")
    scale = onnx.numpy_helper.from_array(np.float32(0.1), "s")
    nodes = [helper.make_node("DequantizeLinear", ["q", "s"], ["w"]), helper.make_node("MatMul", ["x", "w"], ["y"])]
    graph = helper.make_graph(nodes, "quantised", [value("x", [2, 8])], [value("y", [2, 4])], [weight, scale])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)

    data = data_of(render_page(serde.from_proto(proto)))

    assert (data["integers"], data["weights"]) == (32, 33)


def test_a_part_without_a_name_says_what_is_in_it():
    overview = data_of(render_page(serde.from_proto(irregular_model())))["drawings"][0]

    titles = parts(overview)
    assert titles
    assert all(re.fullmatch(r"(\d+ [A-Z]\w+(, )?){1,3}|\d+ × block|Block \d+ of \d+", t) for t in titles), titles


def test_weights_in_constant_nodes_are_counted_and_named_by_the_standard():
    data = data_of(render_page(serde.from_proto(irregular_model())))
    every = data["drawings"][data["drawings"][0]["flat"]]

    assert data["weights"] == 8
    assert box(every, "Mul")["r"] == [["B", "⟨8⟩", "constant"]]


def test_a_value_that_many_nodes_read_is_one_line_with_branches():
    """0 → 1 → 2 → 3 → 4, and 0 is read by all."""
    edges = [(0, 1), (1, 2), (2, 3), (3, 4), (0, 2), (0, 3), (0, 4)]

    routes = lay_out([(80.0, 20.0)] * 5, edges).routes

    second, third = routes[5], routes[6]
    assert second[:-1] == third[: len(second) - 1]
    assert len(third) == 2 + 2 * 3


@browser
@pytest.mark.parametrize("width", [500, 1400])
def test_chromium_opens_a_part_and_says_where_it_is(tmp_path, width):
    page = render_page(serde.from_proto(repeated_model(30)))

    overview = dump_dom(page, tmp_path, width=width)
    inside = dump_dom(page, tmp_path, "#open=30 × block&open=Block 7 of 30", width=width)

    assert re.search(r'data-visible="5" data-total="5"', overview)  # it fits the screen
    assert "<b>Overview</b>" in overview
    assert re.search(r"Forward</button> › <button>30 × block</button> › <b>Block 7 of 30</b>", inside)
    assert 'data-total="8"' in inside


@browser
def test_chromium_finds_a_node_that_is_folded(tmp_path):
    dom = dump_dom(render_page(serde.from_proto(repeated_model(30))), tmp_path, "#find=b17s3")

    assert "1 of 2" in dom
    assert re.search(r"<h3>Neg</h3>", dom)
