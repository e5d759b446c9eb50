"""The page that draws a model: complete without a browser, and drawn in a real one."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import time

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

    drawing = data_of(render_page(serde.from_proto(long_model())))["drawings"][0]

    assert len(drawing["boxes"]) == 2002
    assert time.process_time() - start < 20


def dump_dom(page: str, tmp_path, fragment: str = "") -> str:
    """Return the document as Chromium has it after the page's script ran."""
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
        "--window-size=1400,900", "--virtual-time-budget=4000", "--dump-dom", f"file://{tmp_path}/page.html{fragment}",
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
    dom = dump_dom(render_page(serde.from_proto(long_model())), tmp_path)

    visible, total = map(int, re.search(r'data-visible="(\d+)" data-total="(\d+)"', dom).groups())
    assert total == 2002
    assert 3 < visible < 60


@browser
def test_chromium_shows_the_weights_table_in_the_dark(tmp_path):
    dom = dump_dom(render_page(serde.from_proto(small_model())), tmp_path, "#sheet=weights&theme=dark")

    assert 'data-theme="dark"' in dom
    rows = re.search(r'<table id="weights">(.*?)</table>', dom, re.S).group(1).count("<tr>")
    assert rows == 1 + 5
