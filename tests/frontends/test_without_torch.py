"""What a user sees who has not installed PyTorch."""

from __future__ import annotations

import subprocess
import sys


def test_from_torch_without_torch_says_how_to_install_it():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import onward\n"
        "try:\n"
        "    onward.from_torch(None, loss='mse', optimizer='sgd', example_inputs=())\n"
        "except onward.OnwardError as error:\n"
        "    print(error)\n"
    )

    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert "error[E100]: onward.from_torch needs `torch`, which is not installed" in printed
    assert "pip install 'onward[torch]'" in printed
