"""The page under a mouse, a keyboard and a finger: Chromium is driven by playwright-core, which npm installs."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess

import pytest

from hostile.files import known_gap, small_model
from onward.model import serde
from onward.show.page import render_page

from .test_page import CHROMIUM, long_sizes, repeated_model

PLAYWRIGHT = "playwright-core@1.65.0"
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=known_gap("chromium"))


@pytest.fixture(scope="module")
def modules(tmp_path_factory) -> pathlib.Path:
    """The folder of node's modules, with playwright-core in it."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    folder = tmp_path_factory.mktemp("playwright")
    (folder / "package.json").write_text("{}", encoding="utf-8")
    command = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--silent", PLAYWRIGHT]
    installed = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    if installed.returncode:
        pytest.skip(f"npm cannot install {PLAYWRIGHT} here: {installed.stderr[-200:]}")
    return folder / "node_modules"


@pytest.fixture
def use(modules, tmp_path):
    """A function that does the steps and returns what the page shows after each."""

    def run(proto, *steps, width: int = 1400) -> list[dict]:
        (tmp_path / "page.html").write_text(render_page(serde.from_proto(proto)), encoding="utf-8")
        job = {"page": f"file://{tmp_path}/page.html", "chromium": CHROMIUM, "width": width, "touch": width < 900}
        done = subprocess.run(
            ["node", str(pathlib.Path(__file__).with_name("clicks.js")), json.dumps({**job, "steps": steps})],
            env={**os.environ, "NODE_PATH": str(modules)}, capture_output=True, text=True, timeout=180,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert answer["errors"] == []
        return answer["found"]

    return run


widths = pytest.mark.parametrize("width", [420, 1400])


@widths
def test_a_part_opens_and_the_way_back_is_a_click(use, width):
    start, blocks, block, back, top = use(
        repeated_model(30),
        ("look", 0),
        ("box", "30 × block ▸"),
        ("box", "Block 2 of 30 ▸"),
        ("button", "30 × block"),
        ("button", "Forward"),
        width=width,
    )

    assert (start["where"], start["boxes"], start["drawn"]) == ("Overviewall 182 nodes", 5, 5)
    assert blocks["where"] == "Forward › 30 × blockall 182 nodes"
    assert (block["where"], block["boxes"]) == ("Forward › 30 × block › Block 2 of 30all 182 nodes", 8)
    assert (back["where"], back["boxes"]) == (blocks["where"], blocks["boxes"])
    assert (top["where"], top["boxes"]) == (start["where"], 5)
    assert not any(s["wider"] for s in (start, blocks, block, back, top))


@widths
def test_no_label_of_an_edge_is_cut_off_at_the_side(use, width):
    (seen,) = use(long_sizes(), ("look", 0), width=width)

    assert seen["cut"] == 0


@widths
def test_all_nodes_are_shown_and_folded_again(use, width):
    every, folded = use(repeated_model(), ("button", "all 74 nodes"), ("button", "fold"), width=width)

    assert (every["where"], every["boxes"]) == ("Forward: all nodesfold", 76)
    assert every["drawn"] < 76
    assert folded["where"] == "Overviewall 74 nodes"


@widths
def test_a_click_on_a_node_shows_its_details_and_the_cross_closes_them(use, width):
    shown, closed = use(small_model(), ("box", "MatMul"), ("button", "×"), width=width)

    assert (shown["details"], shown["selected"], shown["selectedIsVisible"]) == ("MatMul", "MatMul", True)
    assert (closed["details"], closed["selected"]) == ("", "")


@widths
def test_a_search_finds_a_folded_node_and_shows_it_beside_its_details(use, width):
    found, following = use(repeated_model(30), ("search", "b17s"), ("press", "Enter"), width=width)

    assert (found["hits"], found["details"], found["selectedIsVisible"]) == ("1 of 6", "Relu", True)
    assert (following["hits"], following["details"], following["selectedIsVisible"]) == ("2 of 6", "Exp", True)


def test_escape_in_the_search_goes_back_to_where_it_began(use):
    inside, found, left = use(repeated_model(30), ("box", "30 × block ▸"), ("search", "b17s3"), ("press", "Escape"))

    assert found["where"] == "Forward: all nodesfold"
    assert (left["where"], left["hits"], left["details"]) == (inside["where"], "", "")


def test_keys_open_and_leave_parts(use):
    steps = [("press", k) for k in ("n", "n", "n", "Enter", "Enter", "Escape", "Backspace")]

    first, second, third, opened, deeper, out, top = use(repeated_model(30), *steps)

    assert [s["selected"] for s in (first, second, third)] == ["x", "Abs", "30 × block ▸"]
    assert (opened["where"], opened["boxes"]) == ("Forward › 30 × blockall 182 nodes", 32)
    assert deeper["where"] == "Forward › 30 × block › Block 1 of 30all 182 nodes"
    assert (out["where"], out["selected"]) == (opened["where"], "Block 1 of 30 ▸")
    assert top["where"] == "Overviewall 182 nodes"


def test_the_slash_begins_a_search_in_which_keys_are_letters(use):
    typed, _, fitted = use(repeated_model(), ("press", "/"), ("type", "softmax"), ("press", "0"))

    assert typed["hits"] == ""
    assert fitted["hits"] == "0 found"  # in the search a 0 is a letter


def test_a_drag_moves_the_graph_and_opens_nothing(use):
    before, after = use(repeated_model(30), ("look", 0), ("drag", ["30 × block ▸", 120, 60]))

    assert after["where"] == before["where"]
    assert after["zoom"] != before["zoom"]


def test_the_tabs_lead_to_each_graph_and_on_a_phone_to_the_facts(use):
    training, about, forward = use(
        small_model(), ("button", "Training"), ("button", "About"), ("button", "Forward"), width=420
    )

    assert (training["tab"], training["about"]) == ("Training", False)
    assert (about["tab"], about["about"]) == ("About", True)
    assert (forward["tab"], forward["about"], forward["drawn"]) == ("Forward", False, 4)
