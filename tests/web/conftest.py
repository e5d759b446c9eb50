"""A stand-in for onnxruntime-web, for tests without a browser."""

from __future__ import annotations

import pytest

from onward.web import Runtime


@pytest.fixture
def stand_in() -> Runtime:
    """What has the shape of onnxruntime-web, and is none."""
    return Runtime("0.0.0", b"export {};\n", b"\0asm")
