"""Fine-tune the text recogniser of rapidocr to an alphabet of your own: the recipe `recipes/ocr_alphabet.py`.

    pip install rapidocr==3.10.0 matplotlib pillow onward
    python examples/finetune_ocr.py --output georgian --alphabet აბგდევზთიკლმნოპჟრსტუფქღყშჩცძწჭხჯჰ

It takes the options of the recipe, which explains each step: new last layer, CTC loss, drawn lines, before and after.
"""

from __future__ import annotations

import runpy
from pathlib import Path

if __name__ == "__main__":
    runpy.run_path(str(Path(__file__).parent / "recipes" / "ocr_alphabet.py"), run_name="__main__")
