"""Which versions of PyTorch and of its exporter this adapter supports; all that depends on them is in this folder."""

from __future__ import annotations

from onward.errors import BackendError, Diagnostic, define, require_extra

OLDEST_TORCH = (2, 6)
OLDEST_ONNXSCRIPT = (0, 5)

B310 = define(
    "B310",
    "an unsupported version of PyTorch or onnxscript",
    why="Models are captured with torch.onnx.export(dynamo=True), whose interface is known from these versions on.",
    fix="Upgrade: pip install 'onward[torch]'.",
)


def check_versions() -> None:
    """Raise unless torch and onnxscript are installed and new enough."""
    try:
        import torch
    except ImportError as error:
        raise require_extra("torch", "torch", "onward.from_torch") from error
    try:
        import onnxscript
    except ImportError as error:
        raise require_extra("onnxscript", "torch", "onward.from_torch") from error
    problems = []
    for name, found, oldest in (
        ("torch", torch.__version__, OLDEST_TORCH),
        ("onnxscript", onnxscript.__version__, OLDEST_ONNXSCRIPT),
    ):
        if _parse(found) < oldest:
            needed = ".".join(str(v) for v in oldest)
            problems.append(Diagnostic(B310, f"{name} {found} is too old", needed=f"{needed} or newer"))
    if problems:
        raise BackendError(problems)


def _parse(version: str) -> tuple[int, ...]:
    parts = []
    for part in version.split("+")[0].split(".")[:2]:
        digits = "".join(c for c in part if c.isdigit())
        parts.append(int(digits or 0))
    return tuple(parts)
