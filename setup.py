"""Put the trainer in JavaScript, which js/ publishes on npm, into the wheel as well; all else is in pyproject.toml."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithTrainer(build_py):
    """Copies js/src/onward-train.mjs beside the page that uses it; an editable install finds it where it is."""

    def run(self):
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib, "onward/web/static/onward-train.mjs")
            self.mkpath(str(target.parent))
            self.copy_file("js/src/onward-train.mjs", str(target))


setup(cmdclass={"build_py": BuildWithTrainer})
