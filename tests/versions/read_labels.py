"""Print which of the graphs in a folder the onnxruntime that is here loads, one name per line: no Onward, no onnx.

    python read_labels.py FOLDER

`nox -s old_runtimes` writes one graph per operator set and one per IR version and runs this in each environment.
"""

from __future__ import annotations

import sys
from pathlib import Path

import onnxruntime


def main(folder: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    loaded = []
    for path in sorted(folder.glob("*.onnx")):
        try:
            onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except onnxruntime.capi.onnxruntime_pybind11_state.Fail as error:
            if "opset" not in str(error) and "IR version" not in str(error):
                raise  # something else than the label
        else:
            loaded.append(path.stem)
    print("\n".join(loaded))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
