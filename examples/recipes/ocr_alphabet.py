"""Teach the text recogniser of rapidocr an alphabet that it does not have: Georgian.

    pip install rapidocr==3.10.0 matplotlib pillow onward
    python examples/recipes/ocr_alphabet.py --output georgian

The recogniser that rapidocr ships (PP-OCRv6_rec_small.onnx) knows 18,708 characters, none of them Georgian. The recipe

    1. reads held-out lines with rapidocr as it is installed,
    2. gives the network a new last layer, with one class for each letter of the new alphabet,
    3. trains it on drawn lines of text with the CTC loss, on stock ONNX Runtime,
    4. writes `recogniser.onnx` and `keys.txt`, and reads the same held-out lines with rapidocr and these files.

Another alphabet: `--alphabet` with the letters, `--fonts` with .ttf files that draw them. Letters that the recogniser
already knows keep what it knows of them.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from PIL import Image, ImageDraw, ImageFont

import onward
from onward import losses, schedules

GEORGIAN = "აბგდევზთიკლმნოპჟრსტუფქღყშჩცძწჭხჯჰ"
# The DejaVu fonts come with matplotlib. The last two draw held-out lines only.
FACES = ["DejaVuSans", "DejaVuSans-Oblique", "DejaVuSerif", "DejaVuSansMono", "DejaVuSans-Bold", "DejaVuSerif-Italic"]
HELD_OUT_FACES = 2
WORDS = ["გამარჯობა", "საქართველო", "თბილისი", "მადლობა", "წიგნი", "ყვავილი"]
HEIGHT, WIDTH = 48, 320  # what rapidocr makes of a line: 48 pixels high, padded to 320 or more
LONGEST = 16


# %% Lines of text, drawn with fonts.
def draw_line(text: str, font_file: Path, random: np.random.Generator) -> np.ndarray:
    """Return a picture of `text`, uint8 [height, width, 3]: any size, colour and paper, a little tilted and noisy."""
    font = ImageFont.truetype(str(font_file), int(random.integers(22, 44)))
    left, top, right, bottom = font.getbbox(text)
    margin = random.integers(3, 9, 4)
    size = int(right - left + margin[0] + margin[1]), int(bottom - top + margin[2] + margin[3])
    paper, ink = random.integers(170, 256, 3), random.integers(0, 90, 3)
    if random.random() < 0.2:
        paper, ink = ink, paper
    page = Image.new("RGB", size, tuple(paper.tolist()))
    ImageDraw.Draw(page).text((margin[0] - left, margin[2] - top), text, fill=tuple(ink.tolist()), font=font)
    page = page.rotate(random.normal(0, 0.7), Image.Resampling.BILINEAR, fillcolor=tuple(paper.tolist()))
    noise = random.normal(0, random.uniform(0, 12), (size[1], size[0], 3))
    return np.clip(np.asarray(page) + noise, 0, 255).astype(np.uint8)


def random_text(alphabet: str, random: np.random.Generator) -> str:
    """Return one to three words of random letters, at most LONGEST characters."""
    words = ("".join(random.choice(list(alphabet), random.integers(1, 9))) for _ in range(random.integers(1, 4)))
    return " ".join(words)[:LONGEST].strip()


def as_input(picture: np.ndarray) -> np.ndarray:
    """Return the input of the network, float32 [3, HEIGHT, WIDTH], as rapidocr computes it (-1 … 1, padded with 0)."""
    width = min(WIDTH, int(np.ceil(HEIGHT * picture.shape[1] / picture.shape[0])))
    resized = np.asarray(Image.fromarray(picture).resize((width, HEIGHT), Image.Resampling.BILINEAR), np.float32)
    padded = np.zeros((3, HEIGHT, WIDTH), np.float32)
    padded[:, :, :width] = resized.transpose(2, 0, 1) / 127.5 - 1
    return padded


def training_data(alphabet: str, fonts: list[Path], count: int, seed: int) -> dict[str, np.ndarray]:
    """Return drawn lines with the three label inputs of the CTC loss. Class 0 is the blank, the last is the space."""
    random = np.random.default_rng(seed)
    classes = {letter: index for index, letter in enumerate(alphabet + " ", start=1)}
    x = np.empty((count, 3, HEIGHT, WIDTH), np.float32)
    labels = np.zeros((count, LONGEST), np.int64)
    lengths = np.empty(count, np.int64)
    for i in range(count):
        text = random_text(alphabet, random)
        x[i] = as_input(draw_line(text, fonts[random.integers(len(fonts))], random))
        labels[i, : len(text)] = [classes[letter] for letter in text]
        lengths[i] = len(text)
    steps = np.full(count, WIDTH // 8)  # the network makes one prediction for every eight columns
    return {"x": x, "labels": labels, "labels/output_lengths": steps, "labels/label_lengths": lengths}


# %% The network.
def find(name: str, model: onnx.ModelProto) -> str:
    return next(p.value for p in model.metadata_props if p.key == name)


def with_new_head(model: onnx.ModelProto, alphabet: str, seed: int) -> tuple[onnx.ModelProto, list[str], str]:
    """Return the recogniser with a last layer for `alphabet`, the names of its weights, and the name of the logits.

    rapidocr's classes are: the blank of CTC, the letters, the space. A class that the old layer has is copied from it,
    so that at least the blank and the space are right from the beginning; the others are drawn.
    """
    known = ["", *find("character", model).splitlines(), " "]
    wanted = ["", *alphabet, " "]
    random = np.random.default_rng(seed)
    new = onnx.ModelProto()
    new.CopyFrom(model)
    names = []
    for tensor in new.graph.initializer:
        if tensor.dims[-1:] == [len(known)]:  # the weight [features, classes] and the bias [classes]
            old = numpy_helper.to_array(tensor)
            head = random.normal(old.mean(), old.std(), (*old.shape[:-1], len(wanted))).astype(old.dtype)
            for index, letter in enumerate(wanted):
                if letter in known:
                    head[..., index] = old[..., known.index(letter)]
            tensor.CopyFrom(numpy_helper.from_array(head, tensor.name))
            names.append(tensor.name)
    del new.graph.value_info[:]  # shapes of the old layer
    new.graph.output[0].type.tensor_type.shape.dim[-1].dim_value = len(wanted)
    next(p for p in new.metadata_props if p.key == "character").value = "\n".join(alphabet)  # rapidocr reads this
    softmax = new.graph.node[-1]
    assert softmax.op_type == "Softmax" and len(names) == 2, "this is not a recogniser of PP-OCR"
    return new, names, softmax.input[0]


# %% rapidocr itself.
def open_rapidocr(**recogniser: str) -> Any:
    """Return a function that reads a picture of one line with rapidocr."""
    from rapidocr import RapidOCR

    settings = {f"Rec.{name}": value for name, value in recogniser.items()}
    engine = RapidOCR(params={"Global.log_level": "error", **settings})

    def read(picture: np.ndarray) -> str:
        found = engine(picture, use_det=False, use_cls=False, use_rec=True).txts
        return found[0] if found else ""

    return read


def edit_distance(a: str, b: str) -> int:
    """Return the number of letters to insert, delete or replace."""
    row = list(range(len(b) + 1))
    for i, letter in enumerate(a, start=1):
        above, row[0] = row[0], i
        for j, other in enumerate(b, start=1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (letter != other))
    return row[-1]


def score(read: Any, lines: list[tuple[str, np.ndarray]]) -> tuple[float, float]:
    """Return the share of lines that are read without an error, and of letters."""
    pairs = [(text, read(picture)) for text, picture in lines]
    errors = sum(edit_distance(text, found) for text, found in pairs)
    return sum(t == f for t, f in pairs) / len(pairs), max(0.0, 1 - errors / sum(len(t) for t, _ in pairs))


def main(args: argparse.Namespace) -> None:
    import matplotlib
    import rapidocr

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    fonts = args.fonts or [folder / f"{face}.ttf" for face in FACES]
    seen, unseen = (fonts, fonts) if args.fonts else (fonts[:-HELD_OUT_FACES], fonts[-HELD_OUT_FACES:])
    source = args.model or Path(rapidocr.__file__).parent / "models" / "PP-OCRv6_rec_small.onnx"
    args.output.mkdir(parents=True, exist_ok=True)

    random = np.random.default_rng(args.seed + 1)
    texts = [random_text(args.alphabet, random) for _ in range(args.held_out)]
    held_out = {
        "new lines, fonts of the training": [(t, draw_line(t, seen[i % len(seen)], random)) for i, t in enumerate(texts)],
        "new lines, fonts never seen": [(t, draw_line(t, unseen[i % len(unseen)], random)) for i, t in enumerate(texts)],
    }
    before = open_rapidocr(model_path=str(source))
    for name, lines in held_out.items():
        print("before, {}: {:.1%} of the lines, {:.1%} of the letters".format(name, *score(before, lines)))

    start = time.perf_counter()
    data = training_data(args.alphabet, seen, args.steps * args.batch_size, args.seed)
    print(f"drew {len(data['x'])} lines in {time.perf_counter() - start:.0f} s")
    network, head, logits = with_new_head(onnx.load(source), args.alphabet, args.seed)
    model = onward.make_trainable(
        network,
        loss=losses.CTC(time_axis=1, logits=True),
        output=logits,
        optimizer=onward.Adam(schedules.Cosine(args.learning_rate, args.steps)),
        train=[*head, *args.train],
    )
    trainer = onward.Trainer(model)
    start = time.perf_counter()
    history = trainer.fit(data, batch_size=args.batch_size, progress="plain")
    print(f"trained {args.steps} steps in {time.perf_counter() - start:.0f} s, mean loss {history.last['loss']:.3f}")

    tuned, keys = args.output / "recogniser.onnx", args.output / "keys.txt"
    onward.save(trainer.to_inference(), tuned)
    keys.write_text("".join(f"{letter}\n" for letter in args.alphabet), encoding="utf-8")
    after = open_rapidocr(model_path=str(tuned), rec_keys_path=str(keys))
    for name, lines in held_out.items():
        print("after, {}: {:.1%} of the lines, {:.1%} of the letters".format(name, *score(after, lines)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("georgian"), help="folder for the tuned files")
    parser.add_argument("--model", type=Path, help="a recogniser of PP-OCR (default: the one in rapidocr)")
    parser.add_argument("--alphabet", default=GEORGIAN)
    parser.add_argument("--fonts", type=Path, nargs="+", help=".ttf files (default: the DejaVu fonts of matplotlib)")
    parser.add_argument("--train", nargs="*", default=[], help="globs of more weights to train than the new layer")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=1e-2)
    parser.add_argument("--held-out", type=int, default=60, help="number of held-out lines for each group of fonts")
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
