"""The process in which IREE compiles: `child.py MODEL NAME BYTES TEXT COMPILER ARGUMENT…`.

It limits its own memory, imports the ONNX file MODEL with IREE's importer, names the module NAME, writes it to the file
TEXT, and becomes the compiler. It imports nothing of Onward, because that would take longer than many a compilation.
"""

from __future__ import annotations

import contextlib
import os
import sys

IMPORT_FAILED = 64
"""The exit code where IREE's importer refuses the model."""


def main(model: str, name: str, limit: str, text: str, *command: str) -> None:
    """Import, then become the compiler."""
    import onnx
    from iree.compiler.extras import onnx_importer
    from iree.compiler.ir import Context, StringAttr

    with contextlib.suppress(ImportError):  # Windows has no such limits
        import resource

        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        wanted = int(limit) if hard == resource.RLIM_INFINITY else min(int(limit), hard)
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash leaves no file behind
    info = onnx_importer.ModelInfo(onnx.load(model))
    context = Context()
    module = info.create_module(context=context).operation
    module.attributes["sym_name"] = StringAttr.get(name, context)
    try:
        onnx_importer.NodeImporter.define_function(info.main_graph, module).import_all()
        module.verify()
    except Exception as error:  # noqa: BLE001  # whatever it is, the parent says it
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(IMPORT_FAILED)
    with open(text, "w", encoding="utf-8") as file:
        file.write(module.get_asm(assume_verified=True))
    sys.stdout.flush()
    if sys.platform == "win32":
        import subprocess

        sys.exit(subprocess.run(command, check=False).returncode)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
