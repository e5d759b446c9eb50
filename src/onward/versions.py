"""The versions of other packages that Onward supports. They are stated only here.

`SUPPORTED` agrees with pyproject.toml and docs/versions.md (tests compare them). Older versions are refused. Versions
above the newest tested one are accepted; if something fails, the message mentions them.

>>> check({"torch": "2.13.0+cpu"})
>>> beyond_tested({"torch": "9.1.0"})
'torch 9.1.0 is newer than the newest tested, 2.13'
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from onward.errors import BackendError, Diagnostic

B310 = "B310"


@dataclasses.dataclass(frozen=True)
class Range:
    """The supported versions of one package: from `oldest` on; the part `untested` of the range was never run."""

    oldest: str
    newest_tested: str
    extra: str = ""  # the extra of Onward that installs the package
    untested: str = ""


SUPPORTED: Mapping[str, Range] = {
    "numpy": Range("2.0", "2.4"),
    "onnx": Range("1.23", "1.23"),
    "onnx-ir": Range("1.1", "1.1"),
    "onnxruntime": Range("1.22", "1.31"),
    "protobuf": Range("6.31.1", "7.36"),
    "safetensors": Range("0.5", "0.8"),
    "rich": Range("13.0", "15.0"),
    "typer": Range("0.16", "0.29"),
    "torch": Range("2.8", "2.13", "torch", untested="2.9 to 2.12"),
    "onnxscript": Range("0.7.1", "0.7", "torch"),
    "tensorflow-cpu": Range("2.20", "2.21", "tensorflow"),
    "tf2onnx": Range("1.17", "1.17", "tensorflow"),
    "numba": Range("0.60", "0.68", "fast"),
    "jax": Range("0.7.2", "0.10", "jax", untested="0.8.1 to 0.10.1"),
    "optax": Range("0.2.5", "0.2", "jax", untested="0.2.6 and 0.2.7"),
    "iree-base-compiler": Range("3.13.0", "3.13", "iree"),
    "iree-base-runtime": Range("3.13.0", "3.13", "iree"),
    "keras": Range("3.5.0", "3.15", "keras", untested="3.5.1 to 3.11 and 3.12.1 to 3.15.0"),
}


@dataclasses.dataclass(frozen=True)
class Runtime:
    """The newest operator set and IR version that one version of ONNX Runtime reads."""

    opset: int
    ir_version: int


# Measured by loading a graph of every operator set and IR version with each runtime (nox -s old_runtimes).
RUNTIMES: Mapping[str, Runtime] = {
    "1.17": Runtime(20, 9),
    "1.18": Runtime(21, 10),
    "1.19": Runtime(21, 10),
    "1.20": Runtime(21, 10),
    "1.21": Runtime(22, 10),
    "1.22": Runtime(22, 10),
    "1.23": Runtime(23, 11),
    "1.24": Runtime(25, 13),
    "1.25": Runtime(26, 13),
    "1.26": Runtime(26, 13),
    "1.27": Runtime(26, 13),
    "1.28": Runtime(26, 13),
    "1.29": Runtime(26, 13),
    "1.30": Runtime(26, 13),
    "1.31": Runtime(26, 13),
}


def check(found: Mapping[str, str]) -> None:
    """Check that each package, given with its version, is new enough.

    Raises:
        BackendError: names all packages that are too old, with the versions needed and the command to upgrade.
    """
    problems = []
    for name, version in found.items():
        supported = SUPPORTED[name]
        if parse(version) < parse(supported.oldest):
            what = f"'onward[{supported.extra}]'" if supported.extra else f"'{name}>={supported.oldest}'"
            problems.append(
                Diagnostic(
                    B310,
                    f"{name} {version} is too old",
                    needed=f"{supported.oldest} or newer (tested up to {supported.newest_tested})",
                    hint=f"pip install --upgrade {what}",
                )
            )
    if problems:
        raise BackendError(problems)


def beyond_tested(found: Mapping[str, str]) -> str:
    """Return a sentence about the packages that are newer than the newest tested versions, or ""."""
    newer = [
        f"{name} {version} is newer than the newest tested, {SUPPORTED[name].newest_tested}"
        for name, version in found.items()
        if parse(version)[:2] > parse(SUPPORTED[name].newest_tested)[:2]
    ]
    return "; ".join(newer)


def runtime_needed(version: str, opset: int, ir_version: int) -> str:
    """Return the ONNX Runtime that reads an opset and IR version, or "" if `version` already reads them.

    >>> runtime_needed("1.22.0", opset=24, ir_version=10)
    'ONNX Runtime 1.24 or newer for operator set 24 and IR version 10'
    >>> runtime_needed("1.24.0", opset=24, ir_version=10)
    ''
    """
    reads = [v for v, r in RUNTIMES.items() if r.opset >= opset and r.ir_version >= ir_version]
    if any(parse(v) <= parse(version) for v in reads):
        return ""
    newer = f"{reads[0]} or newer" if reads else f"newer than {list(RUNTIMES)[-1]}"
    return f"ONNX Runtime {newer} for operator set {opset} and IR version {ir_version}"


def parse(version: str) -> tuple[int, int, int]:
    """Return major, minor and patch version.

    >>> parse("2.13.0a0+cpu"), parse("3"), parse("1.2rc1")
    ((2, 13, 0), (3, 0, 0), (1, 2, 0))
    """
    parts = []
    for part in version.split("+")[0].split(".")[:3]:
        digits = part[: next((i for i, c in enumerate(part) if not c.isdigit()), len(part))]
        parts.append(int(digits or 0))
    major, minor, patch = [*parts, 0, 0][:3]
    return major, minor, patch
