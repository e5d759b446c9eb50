"""Functions for all sessions: choose entries, check state, run the initialize graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from onward.arguments import check_name, unknown_name
from onward.compiler.program import Entry, PlainGraph, Program
from onward.errors import ArgumentError, BackendError, DataError, Diagnostic
from onward.model.roles import RANDOM_KEY, RANDOM_STEP

B100 = "B100"
B101 = "B101"
T100 = "T100"


def chosen_entries(program: Program, entry: str | None) -> list[Entry]:
    """Return the named entry, or all of them in order.

    Raises:
        ArgumentError: the entry does not exist.
        BackendError: the program has no training entry at all.
    """
    if not program.entries:
        raise BackendError(
            Diagnostic(
                B100,
                "the model has no training entry",
                hint="use onward.make_trainable(...), or `onward make-trainable`, first",
            )
        )
    if entry is None:
        return list(program.entries.values())
    check_name("training entry", entry, program.entries)
    return [program.entries[entry]]


def evaluation_graph(program: Program, entry: str | None = None) -> PlainGraph:
    """Return the evaluate graph of a training entry, by default of the first.

    Raises:
        BackendError: the program has none.
    """
    chosen = program.first if entry is None else program.entries.get(entry)
    if chosen is None or chosen.evaluate is None:
        raise BackendError(
            Diagnostic(
                B100,
                "the model has no loss to evaluate",
                hint="use onward.make_trainable(...), or `onward make-trainable`, first",
            )
        )
    return chosen.evaluate


def checked(program: Program, state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return copies of the arrays in `state`; raise one error for all with a wrong shape or type."""
    problems: list[Diagnostic] = []
    result: dict[str, np.ndarray] = {}
    for name, value in state.items():
        if name not in program.state:
            problems.extend(unknown_name("state", name, program.state).diagnostics)
            continue
        expected, array = program.state[name], np.asarray(value)
        if array.shape != expected.shape or array.dtype != expected.dtype:
            problems.append(
                Diagnostic(
                    B101,
                    f"state `{name}` does not fit",
                    found=f"{array.dtype}{list(array.shape)}",
                    needed=f"{expected.dtype}{list(expected.shape)}",
                )
            )
        else:
            result[name] = np.array(array)
    if problems:
        raise ArgumentError(problems)
    return result


def initial_state(
    program: Program, seed: int, run: Callable[[PlainGraph, dict[str, np.ndarray]], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Return the stored state, updated with the results of the initialize graph for `seed`."""
    state = {name: np.array(value) for name, value in program.state.items()}
    random = {RANDOM_KEY: np.array(seed, np.int64), RANDOM_STEP: np.array(0, np.int64)}
    state.update({k: v for k, v in random.items() if k in state})
    graph = program.initialize_graph
    if graph is not None:
        results = run(graph, {k: v for k, v in random.items() if k in graph.input_names})
        state.update({name: results[output] for output, name in graph.replaces.items()})
    return state


def require_feeds(wanted: Iterable[str], given: Mapping[str, np.ndarray], program: Program) -> None:
    """Raise DataError, with the names, if inputs of a graph have no value."""
    missing = sorted(set(wanted) - set(given))
    if missing:
        raise DataError(
            Diagnostic(
                T100,
                f"no value for input {', '.join(f'`{m}`' for m in missing)}",
                found=f"values for: {', '.join(sorted(set(given) - set(program.state))) or 'nothing'}",
                needed=f"inputs: {', '.join(program.input_names)}",
            )
        )
