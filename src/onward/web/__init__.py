"""A program as a static website that trains in the browser: `onward web FILE -o site/` (docs/browser.md).

describe.py   what the page must know: pictures or a form, classes, preparation
examples.py   samples that come with the page
runtime.py    onnxruntime-web, from npm
site.py       the files of the site, written all or none
server.py     a small server for trying it
static/       the page itself; the trainer is js/src/onward-train.mjs
"""

from __future__ import annotations

from onward.web.runtime import Runtime, fetch_runtime, read_runtime
from onward.web.server import serve
from onward.web.site import Site, build_site, is_site, write_site

__all__ = ["Runtime", "Site", "build_site", "fetch_runtime", "is_site", "read_runtime", "serve", "write_site"]
