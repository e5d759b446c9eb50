"""A small server for trying a site: files of one folder on this machine, with the headers that allow threads."""

from __future__ import annotations

import functools
import http.server
from pathlib import Path

from onward.errors import A101, ArgumentError, Diagnostic

_TYPES = {".mjs": "text/javascript", ".js": "text/javascript", ".wasm": "application/wasm", ".json": "application/json"}


class _Handler(http.server.SimpleHTTPRequestHandler):
    extensions_map = {**http.server.SimpleHTTPRequestHandler.extensions_map, **_TYPES}

    def end_headers(self) -> None:
        """Add what makes the page isolated, so that ONNX Runtime may use threads."""
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()

    def list_directory(self, path: object) -> None:
        """Show no lists of files."""
        self.send_error(404)

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing for each file."""


def serve(directory: Path, port: int) -> http.server.ThreadingHTTPServer:
    """Return a server of `directory` on this machine alone; 0 takes any free port. `serve_forever()` runs it.

    Raises:
        ArgumentError: the port cannot be used.
    """
    try:
        return http.server.ThreadingHTTPServer(
            ("127.0.0.1", port), functools.partial(_Handler, directory=str(directory))
        )
    except (OSError, OverflowError) as error:
        raise ArgumentError(
            Diagnostic(A101, f"port {port} cannot be used: {error}", place="port=", hint="choose another: port=8001")
        ) from error
