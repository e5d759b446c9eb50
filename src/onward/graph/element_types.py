"""Element types by name. ONNX's own names mean what ONNX says: `float` has 32 bits, `double` has 64."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir


def element_type(given: Any) -> ir.DataType:
    """Return the element type that a name, a number of onnx's enumeration, or a type of numpy stands for.

    >>> element_type("float").name, element_type("double").name, element_type("float64").name
    ('FLOAT', 'DOUBLE', 'DOUBLE')
    >>> element_type("tensor(int64)").name, element_type(np.float32).name, element_type(1).name
    ('INT64', 'FLOAT', 'FLOAT')

    Raises:
        TypeError: there is no such type.
    """
    if isinstance(given, ir.DataType):
        return given
    if given is None:  # which numpy reads as float64
        raise TypeError("None is not an element type")
    try:
        if isinstance(given, int) and not isinstance(given, bool):
            return ir.DataType(given)
        if isinstance(given, str):
            name = given.strip().removeprefix("tensor(").removesuffix(")")
            if name.upper() in ir.DataType.__members__ and name.upper() != "UNDEFINED":
                return ir.DataType[name.upper()]
            return ir.DataType.from_numpy(np.dtype(name))
        return ir.DataType.from_numpy(np.dtype(given))
    except ValueError as error:
        raise TypeError(f"{given!r} is not an element type") from error
