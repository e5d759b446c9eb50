"""What a user sees who has not installed JAX."""

from __future__ import annotations

import subprocess
import sys


def test_from_jax_without_jax_says_how_to_install_it():
    code = (
        "import sys; sys.modules['jax'] = None\n"
        "import onward\n"
        "try:\n"
        "    onward.from_jax(None, {}, optimizer='sgd', example_batch={}, predict=None)\n"
        "except onward.OnwardError as error:\n"
        "    print(error)\n"
    )

    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert "error[E100]: onward.from_jax needs `jax`, which is not installed" in printed
    assert "pip install 'onward[jax]'" in printed
