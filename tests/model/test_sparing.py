"""Tensors of zeros take no memory, and mapped data is given back, without a change of one bit."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onward
from onward.storage import sparing

SIZE = 16 * 2**20  # bytes
linux = pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is read from /proc")


def memory() -> int:
    """Return the bytes that the process holds in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@linux
@pytest.mark.parametrize("parts", [1, 64])
def test_zeros_take_memory_only_where_they_are_written(parts: int):
    before = memory()

    arrays = [sparing.zeros((SIZE // parts,), np.dtype(np.uint8)) for _ in range(parts)]
    total = sum(int(a.sum()) for a in arrays)
    read = memory() - before
    arrays[0][:] = 1

    assert total == 0
    assert read < SIZE // 4
    assert memory() - before > SIZE // parts // 2


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "bool"])
def test_an_array_of_zeros_is_replaced_by_an_equal_one(dtype: str):
    array = np.zeros((300, 400), dtype)

    found = sparing.without_zeros(array)

    assert found is not array
    assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert found.flags.writeable
    assert found.flags.aligned
    assert found.flags.c_contiguous


@pytest.mark.parametrize("place", [0, 49_999])
def test_an_array_with_one_bit_set_stays(place: int):
    array = np.zeros(50_000, np.float32)
    array[place] = -0.0

    assert sparing.without_zeros(array) is array


@linux
def test_mapped_data_that_is_given_back_can_be_read_again(tmp_path: Path):
    data = np.random.default_rng(0).integers(0, 256, SIZE, np.uint8)
    path = tmp_path / "data"
    path.write_bytes(data.tobytes())
    with open(path, "rb") as file:
        mapped = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    part = mapped[1000:-1000].view(np.float32)
    equal = np.array_equal(mapped, data)
    before = memory()

    sparing.release(part)

    assert before - memory() > SIZE // 2
    assert equal
    assert np.array_equal(mapped, data)


@pytest.mark.parametrize("number", [0, 7])
def test_what_was_written_to_a_private_mapping_stays(number: int, tmp_path: Path):
    """Such a mapping has what the file has not: to give it back would lose it."""
    np.ones(50_000, np.float32).tofile(tmp_path / "data")
    mapped = np.memmap(tmp_path / "data", np.float32, mode="c")
    made = sparing.zeros((50_000,), np.dtype(np.float32))
    for array in (mapped, made):
        array[:] = number

    found = [sparing.without_zeros(array) for array in (mapped, made)]
    sparing.release(mapped)
    sparing.release(made)

    assert all((array == number).all() for array in (mapped, made, *found))


def test_texts_stay():
    texts = np.array(["a"] * 10_000, object)

    assert sparing.without_zeros(texts) is texts


@linux
@pytest.mark.parametrize("external", [False, True])
def test_a_program_holds_no_memory_for_moments_of_zeros(external: bool, tmp_path: Path):
    width = 1500
    proto = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 20]> net (float[N, {width}] x) => (float[N, {width}] y) '
        "{ y = MatMul(x, w) }"
    )
    weight = np.random.default_rng(0).normal(size=(width, width)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onward.save(onward.make_trainable(proto, loss="mse"), tmp_path / "t.onnx", external_data=external)

    program = onward.compile(tmp_path / "t.onnx")
    before = memory()
    moments = [v for v in program.state.values() if v.shape == weight.shape and not v.any()]

    assert len(moments) == 2
    assert memory() - before < weight.nbytes // 4
    assert all(moment.flags.writeable for moment in moments)  # its own memory, not that of the file
