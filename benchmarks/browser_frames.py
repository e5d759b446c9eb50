"""Whether a page waits for its training: the longest time between two frames while a network trains in its worker.

    make web
    python benchmarks/browser_frames.py [build/site] [--steps 300] [--rounds 5]

Opens the site in Chromium. In each round it trains while somebody draws, labels and looks at the answers, and it notes
when each frame was drawn. Prints for each round the longest time between two frames, how many were above 100 ms, and
the most processor time that one task of the page's main thread took: the first is what a person sees, and depends on
what else the machine does; the last is the page's own. The last column says how many processors other programs used
meanwhile: on a quiet machine next to none. Fails if a frame took more than 100 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
from pathlib import Path
from threading import Thread

from onward.web import serve

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
LIMIT = 100  # ms


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=Path, nargs="?", default=ROOT / "build" / "site")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    chromium = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)
    if chromium is None:
        raise SystemExit("Chromium is not installed (Debian: apt-get install chromium)")
    if not (arguments.site / "site.json").exists():
        raise SystemExit(f"{arguments.site} is no site: run `make web`, or name one that `onward web` wrote")
    if not (ROOT / "js" / "node_modules" / "playwright-core").exists():
        npm = ["npm", "install", "--ignore-scripts", "--no-package-lock", "--no-audit", "--no-fund", "--silent"]
        subprocess.run(npm, cwd=ROOT / "js", check=True, timeout=900)
    server = serve(arguments.site, 0)
    Thread(target=server.serve_forever, daemon=True).start()
    job = {
        "chromium": chromium,
        "modules": str(ROOT / "js" / "node_modules"),
        "site": f"http://127.0.0.1:{server.server_address[1]}/",
        "steps": arguments.steps,
        "rounds": arguments.rounds,
    }
    said = subprocess.check_output(["node", str(HERE / "browser_frames.mjs"), json.dumps(job)], text=True)
    server.shutdown()
    found = json.loads(said)
    print(found["facts"])
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print("| frames | longest, ms | above 100 ms | own processor time of a task, ms | a step | other programs |")
    print("|---:|---:|---:|---:|---:|---:|")
    for r in found["rounds"]:
        cells = [
            r["frames"],
            f"{r['longest']:.0f}",
            r["above100"],
            f"{r['task']['cpu']:.0f}",
            r["step"],
            f"{r['others']:.2f}",
        ]
        print(f"| {' | '.join(map(str, cells))} |")
    late = [slow for r in found["rounds"] for slow in r["slow"] if slow["ms"] > LIMIT]
    for slow in late:
        print(f"{slow['ms']:.0f} ms: {', '.join(slow['scripts']) or 'no script of the page'}")
    return int(any(r["longest"] > LIMIT for r in found["rounds"]))


if __name__ == "__main__":
    raise SystemExit(main())
