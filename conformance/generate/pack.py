"""Put the generated data into one archive inside the package, for the wheel: `python -m generate.pack`."""

from __future__ import annotations

import pathlib
import sys
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[1]


def pack(folder: pathlib.Path, archive: pathlib.Path) -> int:
    """Write all files of `folder` to `archive`, always the same bytes for the same files; return their number."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as target:
        for file in files:
            entry = zipfile.ZipInfo(file.relative_to(folder).as_posix())  # a fixed time, so that bytes are equal
            entry.compress_type = zipfile.ZIP_DEFLATED
            target.writestr(entry, file.read_bytes(), compresslevel=9)
    return len(files)


if __name__ == "__main__":
    if not (ROOT / "data" / "manifest.json").exists():
        sys.exit("conformance/data is missing or half written: run `make conformance-data`")
    place = ROOT / "src" / "onward_conformance" / "data.zip"
    count = pack(ROOT / "data", place)
    print(f"{count} files, {place.stat().st_size / 1e6:.1f} MB")
