"""Other projects on the board: an adapter each in `conformance/adapters`, and an environment of its own."""

from __future__ import annotations

from pathlib import Path

from onward.arguments import unknown_name
from onward.errors import A101, ArgumentError, Diagnostic
from onward.scoreboard.pool import Contestant

ADAPTERS, ENVIRONMENTS = Path("conformance/adapters"), Path("conformance/.venvs")


def checkout() -> Path:
    """Return the folder of the checkout of Onward that we are in.

    Raises:
        ArgumentError: we are in none: the adapters are not part of the installed package.
    """
    for place in (Path.cwd(), *Path.cwd().parents):
        if (place / ADAPTERS).is_dir():
            return place
    raise ArgumentError(
        Diagnostic(
            A101,
            "peers are in a checkout of Onward",
            found=f"no folder {ADAPTERS} above {Path.cwd().name}",
            hint="run the command in a checkout, or name an adapter by --backend FILE.py@PYTHON",
        )
    )


def peers() -> list[str]:
    """Return the names of all peers that have an adapter."""
    found = (p.stem for p in (checkout() / ADAPTERS).glob("*.py"))
    return sorted(name for name in found if not name.startswith("_") and name != "install")


def peer(name: str) -> Contestant:
    """Return a peer on the board.

    Raises:
        ArgumentError: there is no such peer, or its environment has not been made; the message has the command.
    """
    root = checkout()
    if name not in peers():
        raise unknown_name("peer", name, peers())
    python = root / ENVIRONMENTS / name / "bin" / "python"
    if not python.exists():
        raise ArgumentError(
            Diagnostic(
                A101,
                f"the environment of peer `{name}` has not been made",
                found=f"no {python.relative_to(root)}",
                hint=f"make it with `make scoreboard-peers PEERS={name}`",
            )
        )
    return Contestant(name, str(root / ADAPTERS / f"{name}.py"), str(python))
