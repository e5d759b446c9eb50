"""Make the environments of peers: `python conformance/adapters/install.py [PEER ...]` (default: all).

Each adapter names its packages in a comment: `# packages: a==1 b==2`. An environment that is complete is left alone.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ADAPTERS = Path(__file__).resolve().parent
ENVIRONMENTS = ADAPTERS.parent / ".venvs"


def packages(adapter: Path) -> list[str]:
    """Return the packages that an adapter needs."""
    found = re.search(r"^# packages: (.*)$", adapter.read_text(encoding="utf-8"), re.MULTILINE)
    return found.group(1).split() if found else []


def main(names: list[str]) -> int:
    known = {p.stem: p for p in sorted(ADAPTERS.glob("*.py")) if packages(p)}
    unknown = [n for n in names if n not in known]
    if unknown:
        print(f"no such peer: {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    failed = []
    for name in names or known:
        wanted = packages(known[name])
        place = ENVIRONMENTS / name
        done = place / "packages.txt"
        if done.exists() and done.read_text() == "\n".join(wanted):
            print(f"{name}: there already")
            continue
        print(f"{name}: {' '.join(wanted)}", flush=True)
        steps = [[sys.executable, "-m", "venv", "--clear", str(place)]]
        pip = [str(place / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
        # torch alone first: its index has older versions of what the others need.
        steps += [[*pip, p] for p in wanted if p.startswith("torch=")]
        steps += [[*pip, *wanted]]
        if any(subprocess.run(step, check=False).returncode for step in steps):
            failed.append(name)
        else:
            done.write_text("\n".join(wanted))
    if failed:
        print(f"could not be made: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
