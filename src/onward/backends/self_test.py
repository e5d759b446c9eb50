"""Run the self-test of a program on a backend: does it compute what ONNX Runtime's CPU kernels compute?"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from onward.backends.base import Session, open_session
from onward.compiler.make_self_test import make_self_test
from onward.compiler.program import Program
from onward.compiler.self_test import Deviation
from onward.errors import BackendError, Diagnostic

B102 = "B102"

_SHOWN = 6


def open_tested(program: Program, backend: str, wanted: bool | None, **options: Any) -> tuple[Program, Session]:
    """Return a program and its session after the self-test, if the program has one and the backend needs one.

    With `wanted`, the program gets a test where it has none, and it runs on every backend; with False none runs.

    Raises:
        BackendError: names the values that the backend computes wrong.
    """
    if wanted and program.self_test is None and program.entries:
        program = dataclasses.replace(program, self_test=make_self_test(program))
    session = open_session(program, backend, **options)
    alone = session.processes == 1  # several processes share the batch, and a loss may be their mean
    if wanted or (wanted is None and alone and not session.makes_self_tests and not session.verifies):
        run_self_test(program, backend, **options)
    return program, session


def run_self_test(program: Program, backend: str, **options: Any) -> int:
    """Run one step of each training entry in a session of its own, and return how many values were compared.

    A program without a self-test has nothing to compare.

    Raises:
        BackendError: names the first values that deviate, in the order of the program's state.
    """
    test = program.self_test
    if test is None:
        return 0
    session = open_session(program, backend, **options)
    deviations: list[Deviation] = []
    compared = 0
    for name in (n for n in program.entries if n in test.entries):
        if compared:
            session.set_state(program.state)
        entry = program.entries[name]
        outputs = session.step({n: a for n, a in test.batch.items() if n in entry.step.input_names}, entry=name)
        loss = float(np.asarray(outputs[entry.loss], np.float64).sum())
        deviations += test.deviations(name, loss, program.state, session.get_state())
        compared += 1 + len(test.entries[name].state)
    if deviations:
        problems = [_problem(d, backend) for d in deviations[:_SHOWN]]
        if len(deviations) > _SHOWN:
            problems.append(Diagnostic(B102, f"{len(deviations) - _SHOWN} more of {compared} values deviate"))
        raise BackendError(problems)
    return compared


def _problem(deviation: Deviation, backend: str) -> Diagnostic:
    loss = deviation.state is None
    return Diagnostic(
        B102,
        f"{'the loss' if loss else f'the new state `{deviation.state}`'} deviates on backend `{backend}`",
        place=f"self-test of training entry `{deviation.entry}`",
        found=_shown(deviation.found, loss),
        needed=f"{_shown(deviation.needed, loss)}, within {deviation.tolerance:.2g}",
        hint="training on it would go wrong: use another backend, another version of it, or a program of the profile "
        "`portable` (docs/anywhere.md)",
    )


def _shown(values: tuple[float, ...], loss: bool) -> str:
    return ("" if loss else "checksum ") + ", ".join(f"{v:.9g}" for v in values)
