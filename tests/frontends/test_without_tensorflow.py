"""What a user sees who has not installed TensorFlow."""

from __future__ import annotations

import subprocess
import sys


def test_from_tensorflow_without_tensorflow_says_how_to_install_it():
    code = (
        "import sys; sys.modules['tensorflow'] = None\n"
        "import onward\n"
        "try:\n"
        "    onward.from_tensorflow(None, loss='mse', optimizer='sgd')\n"
        "except onward.OnwardError as error:\n"
        "    print(error)\n"
    )

    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert "error[E100]: onward.from_tensorflow needs `tensorflow`, which is not installed" in printed
    assert "pip install 'onward[tensorflow]'" in printed
