"""Read what is between the brackets of `dense<…>`: nothing, hex, texts, one element for all, or nested lists."""

from __future__ import annotations

import math
import re

import numpy as np

from onward.mlir.numbers import float_bits, float_width, integer_width, storage
from onward.mlir.scanner import DIGITS, Scanner
from onward.mlir.syntax import Dense, Dialect, Scalar, Tensor, named

_TOKEN = re.compile(r"[\[\](),]|[^\s\[\](),]+")
_LIST = re.compile(r"[^>\"]*")
_INTEGER = re.compile(r"-?(?:0x[0-9A-Fa-f]+|[0-9]+)")
_DECIMAL = re.compile(r"-?[0-9]+\.[0-9]*(?:[eE][-+]?[0-9]{1,6})?")

AMPLIFIED = 16
"""The bytes that a character of a text may become."""

Literal = tuple[str, list[str] | list[bytes] | str, tuple[int, ...]]


def read_literal(scan: Scanner) -> Literal:
    """Return (kind, elements, shape) of the literal here; the type comes after it in the text."""
    if scan.peek() == ">":
        return "empty", [], (0,)
    if scan.peek() == '"' and re.match(r'"0x', scan.text[scan.position : scan.position + 3]):
        raw = scan.raw_string()
        if scan.peek() != ",":
            return "hex", raw[2:], ()
        scan.fail("a list of texts has no brackets", needed="`[`")
    if '"' in scan.text[scan.position : scan.position + 4096].partition(">")[0]:
        return _texts(scan)
    found = scan.match(_LIST)
    assert found is not None
    tokens = _TOKEN.findall(found[0])
    flat, shape = _structure(scan, tokens)
    return "numbers", flat, shape


def _texts(scan: Scanner) -> Literal:
    """Read quoted texts in nested lists."""
    texts: list[bytes] = []
    tokens: list[str] = []
    while scan.peek() != ">":
        if scan.peek() == '"':
            texts.append(scan.string())
            tokens.append("0")
        elif scan.peek() in ("[", "]", ","):
            tokens.append(scan.peek())
            scan.position += 1
        else:
            scan.fail("a list of texts has something else in it")
    _, shape = _structure(scan, tokens)
    return "texts", texts, shape


def _structure(scan: Scanner, tokens: list[str]) -> tuple[list[str], tuple[int, ...]]:
    """Return the elements in nested lists, and the shape that the lists have. A complex number is two elements."""
    flat: list[str] = []
    counts: list[int] = []  # of the lists that are open
    sizes: dict[int, int] = {}  # of the lists at each depth
    deepest, separated = 0, True  # whether an element may follow
    in_pair = False
    for token in tokens:
        if token == "[":
            if not separated or len(counts) >= scan.limits.rank or (flat and len(counts) >= deepest > 0):
                scan.fail("the lists of a tensor do not fit together")
            counts.append(0)
        elif token == "]":
            if not counts:
                scan.fail("the lists of a tensor do not fit together")
            depth, count = len(counts), counts.pop()
            if (separated and count) or sizes.setdefault(depth, count) != count:
                scan.fail("the lists of a tensor have different lengths")
            deepest = max(deepest, depth)
            if counts:
                counts[-1] += 1
            separated = False
        elif token == "," and not in_pair:
            if separated or not counts:
                scan.fail("a comma of a tensor has no element before it")
            separated = True
        elif token in ("(", ")", ","):
            in_pair = token != ")"
            if token == ")":
                if counts:
                    counts[-1] += 1
                separated = False
        else:
            if not (separated or in_pair) or (sizes and deepest and len(counts) != deepest):
                scan.fail("the elements of a tensor do not fit together")
            flat.append(token)
            if not in_pair:
                if counts:
                    counts[-1] += 1
                separated = False
    if counts or in_pair:
        scan.fail("a list of a tensor is not closed")
    return flat, tuple(sizes[d] for d in range(1, deepest + 1))


class Expanded:
    """The bytes of what is written once and used often: a short text must not fill the memory."""

    def __init__(self, scan: Scanner) -> None:
        self.left = scan.limits.splat_bytes + AMPLIFIED * len(scan.text)

    def spend(self, scan: Scanner, size: int, what: str = "tensors that are written as one element take") -> None:
        self.left -= size
        if self.left < 0:
            scan.fail(f"{what} too much memory")


def make_dense(scan: Scanner, literal: Literal, kind: Tensor, expanded: Expanded) -> Dense:
    """Return the tensor of a literal and its type."""
    if kind.shape is None or None in kind.shape:
        scan.fail("the type of a constant has an unknown size")
    shape = tuple(d or 0 for d in kind.shape)
    how, content, listed = literal
    size = math.prod(shape)
    if how == "texts" or isinstance(kind.element, Dialect):
        if isinstance(kind.element, Scalar) or how not in ("texts", "empty"):
            scan.fail("the elements of a tensor do not have its type")
        texts = tuple(item for item in content if isinstance(item, bytes))
        if not listed and len(texts) == 1:
            expanded.spend(scan, 8 * size + len(texts[0]))
            texts *= size
        if len(texts) != size or (listed and how == "texts" and listed != shape):
            scan.fail(f"a tensor of {list(shape)} has {len(texts)} texts")
        return Dense(kind, texts=texts)
    name = kind.element.name if isinstance(kind.element, Scalar) else ""
    numpy_type = storage(name)
    if numpy_type is None:
        scan.fail(f"a tensor has elements of the type `{named(kind.element)}`, which ONNX does not have")
    if how == "hex":
        assert isinstance(content, str)
        try:
            data = bytes.fromhex(content)
        except ValueError:
            scan.fail("the hex of a tensor has a character that is not hex, or an odd number of them")
        if " " in content or "\t" in content:
            scan.fail("the hex of a tensor has spaces in it")
        splat = len(data) == numpy_type.itemsize
    else:
        tokens = [item for item in content if isinstance(item, str)]
        data = _bytes(scan, tokens, name)
        splat = how != "empty" and not listed
        if not splat and (math.prod(listed) != size or (size and listed != shape)):
            scan.fail(f"a tensor of {list(shape)} is written with the shape {list(listed)}")
    if splat and size != 1:
        if len(data) != numpy_type.itemsize:
            scan.fail(f"a tensor of {list(shape)} has no such number of elements")
        expanded.spend(scan, size * numpy_type.itemsize)
        data = data * size
    if len(data) != size * numpy_type.itemsize:
        scan.fail(f"a tensor of {list(shape)} has {len(data):,} bytes", needed=f"{size * numpy_type.itemsize:,}")
    return Dense(kind, data)


def _bytes(scan: Scanner, tokens: list[str], name: str) -> bytes:
    """Return the bytes of numbers as MLIR stores them."""
    if any(len(token) > DIGITS for token in tokens):
        scan.fail("a number of a tensor has too many digits")
    numpy_type = storage(name)
    assert numpy_type is not None
    if name.startswith("complex"):
        return _bytes(scan, tokens, name[8:-1])
    width = integer_width(name) or ((64, False) if name == "index" else None)
    if width is not None:
        values = [_integer(scan, token, *width) for token in tokens]
        unsigned = np.array(values, np.uint64) if values else np.zeros(0, np.uint64)
        if width[1] or width[0] == 1:
            return unsigned.astype(numpy_type).tobytes()
        spare = np.uint64(64 - width[0])  # the sign of a narrow integer fills its byte
        return ((unsigned << spare).view(np.int64) >> spare.astype(np.int64)).astype(numpy_type).tobytes()
    size = float_width(name)
    assert size is not None
    if all(_DECIMAL.fullmatch(token) for token in tokens):
        with np.errstate(over="ignore"):
            return np.array([float(t) for t in tokens], np.float64).astype(numpy_type).tobytes()
    parts = []
    for token in tokens:
        if _DECIMAL.fullmatch(token):
            bits = float_bits(token, name)
        elif token.startswith("0x") and _INTEGER.fullmatch(token) and int(token, 16) < 2**size:
            bits = int(token, 16)
        else:
            scan.fail(f"`{token[:40]}` is not an element of the type {name}")
        parts.append(bits.to_bytes(size // 8, "little"))
    return b"".join(parts)


def _integer(scan: Scanner, token: str, bits: int, unsigned: bool) -> int:
    """Return an integer, as the unsigned number with the same bits."""
    if bits == 1 and token in ("true", "false"):
        return int(token == "true")
    if _INTEGER.fullmatch(token):
        value = int(token, 16 if "x" in token else 10)
        if (0 if unsigned else -(2 ** (bits - 1))) <= value < 2**bits:
            return int(value % 2**bits)
    scan.fail(f"`{token[:40]}` is not an element of an integer type with {bits} bits")
