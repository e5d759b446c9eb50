"""Mutants of MLIR texts: of their bytes, and of their tokens. The same index always gives the same mutant.

python tests/mlir/mutants.py 20000     # read so many; the exit code is 1 if one does not end in an error of ours
"""

from __future__ import annotations

import collections
import functools
import pathlib
import random
import re
import sys
import time
import traceback

if __name__ == "__main__":
    ROOT = pathlib.Path(__file__).resolve().parents[2]
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]

import onnx

import onward
from hostile.files import rich_model
from hostile.mutate import function_model, nested_model, plain_model

_TOKEN = re.compile(r'"[^"\n]*"|[%@!#^][\w.$-]+|[A-Za-z_][\w.$]*|-?\d[\w.]*|[^\w\s]|\s+')
WORDS = [
    *(
        "0",
        "-1",
        "1",
        "9223372036854775808",
        "1" * 500,
        "0x",
        "0x7FC00000",
        "1.0",
        "1e400",
        "-0.0",
        "18446744073709551616",
    ),
    *(
        "?",
        "*",
        "tensor",
        "tensor<9999999999999xf32>",
        "tensor<" + "2x" * 70 + "f32>",
        "none",
        "i1",
        "i0",
        "i999",
        "f32",
    ),
    *("f8E4M3FN", "complex<f32>", "complex<i8>", "index", "!onnx.Seq<tensor<1xf32>>", "!onnx.String", "!onward.any"),
    *("dense<0>", "dense<", "dense<1.0> : tensor<100000x100000xf32>", 'dense<"0x00">', "sparse<", "dense_resource<x>"),
    *(
        "unit",
        "true",
        "loc(",
        "affine_map",
        "^bb0",
        "^bb1",
        "%none",
        "%x",
        "@main_graph",
        "@nothing",
        "func.func",
        "module",
    ),
    *(
        "onnx.Constant",
        "onnx.Yield",
        '"onnx.If"',
        '"onnx.Return"',
        '"onward.training"',
        '"builtin.module"',
        '"\\FF\\00"',
    ),
    *(
        "onward.order",
        "onward.outputs",
        "onward.value_info",
        "onward.regions",
        "onward.initializer",
        "bytes",
        "clear",
        "stored",
    ),
    *(
        "(",
        ")",
        "{",
        "}",
        "[",
        "]",
        "<",
        ">",
        "<{",
        "}>",
        "->",
        ":",
        ",",
        "=",
        "//",
        '"',
        "\\",
        "\n",
        "{-#",
        "#-}",
        "\x00",
        "é",
    ),
    *("[" * 300, "{" * 300, "(" * 300, "!onnx.Opt<" * 300, '"onnx.If"() ({' * 200),
]


@functools.cache
def corpus() -> tuple[str, ...]:
    """Return the texts to mutate."""
    models = [rich_model(), nested_model(3), function_model(3), plain_model(), onward.samples.build("linear")]
    texts = [onward.mlir.to_text(model) for model in models]
    texts.append(onward.mlir.to_text(models[3], weights="resource"))
    texts.append(onward.mlir.to_text(models[3], dialect="torch-onnx"))
    texts.append(
        "!t = tensor<2xf32>\n#a = dense<1.5> : !t\n#b = [#a, #a]\nfunc.func @f(%x: !t) -> !t {\n"
        '  %a:2, %0 = "onnx.Split"(%x) {b = #b, c = #a} : (!t) -> (!t, !t, !t)\n  return %0 : !t\n}\n'
    )
    texts.append(onward.mlir.to_text(onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 18]> g (float[N,3] x, int64[1] k) => (float[M,3] y)'
        "{ c = Constant<value = float[2,3] {1, 2, 3, 4, 5, 6}>() z = Tile(x, k) y, i = TopK <axis = 0> (z, k) }"
    )))  # fmt: skip
    return tuple(texts)


def mutant(index: int) -> str:
    """Return one mutant: of the characters for even numbers, of the tokens for odd ones."""
    chance = random.Random(index)
    texts = corpus()
    text = texts[index // 2 % len(texts)]
    parts = list(text) if index % 2 == 0 else _TOKEN.findall(text)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        at = chance.randrange(len(parts))
        kind = chance.randrange(6)
        if kind == 0:
            del parts[at : at + chance.choice((1, 2, 20))]
        elif kind == 1:
            parts[at] = chr(chance.randrange(1, 256)) if index % 2 == 0 else chance.choice(WORDS)
        elif kind == 2:
            parts.insert(at, chance.choice(WORDS))
        elif kind == 3:
            parts[at:at] = parts[at : at + chance.choice((1, 10, 200))]
        elif kind == 4:
            other = chance.randrange(len(parts))
            parts[at], parts[other] = parts[other], parts[at]
        else:
            parts = parts[:at] if chance.random() < 0.3 else parts
        if not parts:
            break
    return "".join(parts)


def outcome(text: str) -> str:
    """Return what became of a text; raises whatever is not an error of ours."""
    try:
        proto = onward.mlir.from_text(text)
    except onward.OnwardError as error:
        return f"refused {error.code}"
    proto.SerializeToString()
    try:
        again = onward.mlir.from_text(onward.mlir.to_text(proto))
    except onward.OnwardError as error:
        return f"read; export refuses {error.code}"
    same = again.SerializeToString(deterministic=True) == proto.SerializeToString(deterministic=True)
    return "read and written again" if same else "DIFFERENT"


def main() -> int:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (4 * 2**30, 4 * 2**30))
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    outcomes: collections.Counter[str] = collections.Counter()
    slowest, bad = 0.0, 0
    for index in range(count):
        began = time.process_time()
        try:
            found = outcome(mutant(index))
        except Exception as error:  # noqa: BLE001  # finding these is the purpose
            found = f"RAISED {type(error).__name__}"
            print(index, traceback.format_exc(limit=-5), file=sys.stderr)
        slowest = max(slowest, time.process_time() - began)
        bad += found.startswith(("RAISED", "DIFFERENT"))
        if found == "DIFFERENT":
            print(index, "different", file=sys.stderr)
        outcomes[found] += 1
    for found, number in outcomes.most_common():
        print(f"{number:>7,}  {found}")
    print(f"slowest: {slowest:.2f} s; bad: {bad}")
    return 1 if bad or slowest > 10 else 0


if __name__ == "__main__":
    sys.exit(main())
