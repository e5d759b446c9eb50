"""How long differentiation takes and how large backward graphs are.

    python benchmarks/differentiate.py [--plot differentiate.png] [--json differentiate.json]

Prints forward and backward nodes and the time of `onward.gradient` for ResNet-50 and a 12-layer BERT (with known and
unknown batch sizes) and for chains of up to 20,000 nodes; the time against the size is the plot. `calls` counts the
backward nodes of `onward.gradient(..., functions=True)`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import networks
import onnx

from onward.compiler.derivatives import gradient

NETWORKS: dict[str, Callable[[], tuple[onnx.ModelProto, list[str]]]] = {
    "ResNet-50": networks.resnet50,
    "ResNet-50, batch unknown": lambda: networks.resnet50(batch="N"),
    "ResNet-50, folded": lambda: networks.resnet50(normalized=False),
    "BERT, 12 layers": networks.bert,
    "BERT, batch and length unknown": lambda: networks.bert(batch="B", length="L"),
}
CHAINS = (1_000, 2_000, 5_000, 10_000, 20_000)


def measure(name: str, build: Callable[[], tuple[onnx.ModelProto, list[str]]]) -> dict[str, float | str]:
    """Return sizes and times of one network."""
    model, parameters = build()
    wall, cpu = time.perf_counter(), time.process_time()
    lowered = gradient(model, of=model.graph.output[0].name, wrt=parameters)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    outlined = gradient(model, of=model.graph.output[0].name, wrt=parameters, functions=True)
    forward = len(model.graph.node)
    backward, calls = (sum(n.op_type != "Constant" for n in m.graph.node[forward:]) for m in (lowered, outlined))
    return {
        "network": name,
        "forward": forward,
        "backward": backward,
        "ratio": backward / forward,
        "with_functions": calls,
        "ratio_with_functions": calls / forward,
        "functions": len(outlined.functions),
        "seconds": wall,
        "cpu_seconds": cpu,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plot", type=Path, help="write a plot of time against size (needs matplotlib)")
    parser.add_argument("--json", type=Path, help="write the numbers")
    arguments = parser.parse_args()
    results = [measure(name, build) for name, build in NETWORKS.items()]
    results += [measure(f"chain of {size:,}", lambda size=size: networks.chain(size)) for size in CHAINS]
    print(
        f"{'network':32} {'forward':>8} {'backward':>9} {'ratio':>6} {'calls':>7} {'ratio':>6} {'functions':>9} "
        f"{'seconds':>8} {'cpu':>7}"
    )
    for r in results:
        print(
            f"{r['network']:32} {r['forward']:8} {r['backward']:9} {r['ratio']:6.2f} {r['with_functions']:7} "
            f"{r['ratio_with_functions']:6.2f} {r['functions']:9} {r['seconds']:8.2f} {r['cpu_seconds']:7.2f}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    if arguments.plot:
        plot(results, arguments.plot)


def plot(results: list[dict[str, float | str]], path: Path) -> None:
    """Draw the time against the number of forward nodes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    chains = [r for r in results if str(r["network"]).startswith("chain")]
    axes.plot([r["forward"] for r in chains], [r["cpu_seconds"] for r in chains], "o-", label="chains")
    for r in results:
        if r not in chains:
            axes.plot(r["forward"], r["cpu_seconds"], "s", label=r["network"])
    axes.set_xlabel("forward nodes")
    axes.set_ylabel("seconds of CPU time")
    axes.set_title("onward.gradient: time against size")
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
