"""The tests with other versions of the packages Onward builds on, each in an environment of its own.

    nox -s "tests(versions='oldest')"   # the lower bounds of pyproject.toml (constraints-oldest.txt)
    nox -s "tests(versions='newest')"   # whatever is newest on PyPI, but for torch
    nox -s "tests(versions='tested')"   # the pinned ones of `make test` (constraints.txt)
    nox -s core                         # what needs no torch, on the oldest and on the newest Python
    nox -s old_runtimes                 # compiled programs on ONNX Runtime 1.17 and up, without Onward

Arguments after `--` go to pytest. `make test` runs the short form: tests/versions, which takes a model through the
oldest versions.
"""

from __future__ import annotations

import nox

nox.options.sessions = ["tests", "core", "old_runtimes"]
VERSIONS = {
    "oldest": ["-c", "constraints-oldest.txt"],
    # The newest torch is not asked for: PyPI's build brings gigabytes of CUDA. In one command, or eager replaces it.
    "newest": ["torch==2.13.0", "--upgrade", "--upgrade-strategy", "eager"],
    "tested": ["-c", "constraints.txt"],
}
RUNTIMES = ["1.17.0", "1.18.0", "1.19.0", "1.20.0", "1.21.0", "1.22.0", "1.23.2", "1.24.1", "1.25.1", "1.26.0"]
RUNTIMES += ["1.27.0", "1.28.0", "1.29.0", "1.30.0", "1.31.1"]  # every minor version on PyPI


@nox.session
@nox.parametrize("versions", list(VERSIONS))
def tests(session: nox.Session, versions: str) -> None:
    """All tests with one set of versions."""
    session.install("-e", ".[dev,demo,mlflow,wandb]", *VERSIONS[versions])
    session.run("python", "-m", "pytest", "-n", "2", "--dist", "worksteal", "-q", *session.posargs)


@nox.session(python=["3.10", "3.13"])
def core(session: nox.Session) -> None:
    """The tests that need no torch, with the newest packages that this Python has."""
    session.install("-e", ".[fast,data,images,tensorboard,demo]", "pytest", "pytest-xdist", "hypothesis", "jsonschema")
    session.run("python", "-m", "pytest", "-n", "2", "--dist", "worksteal", "-q", *(session.posargs or ["tests"]))


@nox.session
def old_runtimes(session: nox.Session) -> None:
    """Programs compiled here, trained in environments that have only onnxruntime and numpy; prints the table."""
    session.install("-e", ".[dev,demo]", *VERSIONS["tested"])
    session.run("python", "tests/versions/old_runtimes.py", session.create_tmp(), *RUNTIMES)
