"""Teach the text recogniser of rapidocr an alphabet that it does not have: Georgian.

    pip install rapidocr==3.10.0 matplotlib pillow onward
    python examples/recipes/ocr_alphabet.py --output georgian

The recogniser that rapidocr ships (PP-OCRv6_rec_small.onnx) knows 18,708 characters, none of them Georgian. The recipe

    1. reads held-out lines with rapidocr as it is installed,
    2. gives the network a new last layer, with one class for each letter of the new alphabet,
    3. trains it on drawn lines of text with the CTC loss, on stock ONNX Runtime,
    4. writes `recogniser.onnx` and reads the same held-out lines, and a page, with rapidocr and this file.

Another alphabet: `--alphabet` with the letters, `--fonts` and `--other-fonts` with .ttf files that draw them. Letters
that the recogniser already knows start from what it knows of them.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

import onward
from onward import losses, schedules, surgery

GEORGIAN = "აბგდევზთიკლმნოპჟრსტუფქღყშჩცძწჭხჯჰ"
# The DejaVu fonts come with matplotlib.
FACES = ["DejaVuSans", "DejaVuSans-Oblique", "DejaVuSerif", "DejaVuSansMono"]
OTHER_FACES = ["DejaVuSans-Bold", "DejaVuSerif-Italic"]
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
    """Return the input of the network, float32 [3, HEIGHT, WIDTH]: -1 … 1, padded with 0, as rapidocr does it.

    rapidocr makes room for longer lines; here they are squeezed, so that all lines have one shape.
    """
    width = min(WIDTH, int(np.ceil(HEIGHT * picture.shape[1] / picture.shape[0])))
    resized = np.asarray(Image.fromarray(picture).resize((width, HEIGHT), Image.Resampling.BILINEAR), np.float32)
    padded = np.zeros((3, HEIGHT, WIDTH), np.float32)
    padded[:, :, :width] = resized.transpose(2, 0, 1) / 127.5 - 1
    return padded


def training_data(
    alphabet: str, fonts: list[Path], count: int, seed: int, held_out: list[str]
) -> dict[str, np.ndarray]:
    """Return drawn lines with the three label inputs of the CTC loss. Class 0 is the blank, the last is the space."""
    random = np.random.default_rng(seed)
    classes = {letter: index for index, letter in enumerate(alphabet + " ", start=1)}
    x = np.empty((count, 3, HEIGHT, WIDTH), np.float32)
    labels = np.zeros((count, LONGEST), np.int64)
    lengths = np.empty(count, np.int64)
    for i in range(count):
        while (text := random_text(alphabet, random)) in held_out:
            pass
        x[i] = as_input(draw_line(text, fonts[random.integers(len(fonts))], random))
        labels[i, : len(text)] = [classes[letter] for letter in text]
        lengths[i] = len(text)
    steps = np.full(count, WIDTH // 8)  # the network makes one prediction for every eight columns
    return {"x": x, "labels": labels, "labels/output_lengths": steps, "labels/label_lengths": lengths}


# %% The network.
def with_new_head(file: Path, alphabet: str, seed: int) -> onward.TrainingModel:
    """Return the recogniser with a last layer for `alphabet`.

    The classes of rapidocr are the blank of CTC, the letters, and the space. A class that the old layer has keeps its
    weights, so that at least the blank and the space are right from the beginning; the others are drawn.
    """
    characters = onward.load(file).ir.metadata_props.get("character")
    if characters is None:
        raise SystemExit("not a recogniser of rapidocr: there is no `character` in its metadata")
    known = [surgery.BLANK, *characters.splitlines(), " "]
    model = surgery.replace_head(file, [*alphabet, " "], blank=0, old_classes=known, seed=seed)
    model.ir.metadata_props["character"] = "\n".join(alphabet)  # rapidocr reads the alphabet here
    return model


# %% rapidocr itself.
def open_rapidocr(model: Path) -> Any:
    from rapidocr import RapidOCR

    return RapidOCR(params={"Rec.model_path": str(model), "Global.log_level": "error"})


def read_line(engine: Any, picture: np.ndarray) -> str:
    """Return the text of a line; the switches stay as they are set here until they are set again."""
    found = engine(picture, use_det=False, use_cls=False, use_rec=True).txts
    return found[0] if found else ""


def edit_distance(a: str, b: str) -> int:
    """Return the number of letters to insert, delete or replace."""
    row = list(range(len(b) + 1))
    for i, letter in enumerate(a, start=1):
        above, row[0] = row[0], i
        for j, other in enumerate(b, start=1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (letter != other))
    return row[-1]


def report(when: str, engine: Any, held_out: dict[str, list[tuple[str, np.ndarray]]]) -> None:
    """Print which share of the held-out lines, and of their characters, rapidocr reads."""
    for name, lines in held_out.items():
        pairs = [(text, read_line(engine, picture)) for text, picture in lines]
        whole = sum(text == found for text, found in pairs) / len(pairs)
        wrong = sum(edit_distance(text, found) for text, found in pairs) / sum(len(text) for text, _ in pairs)
        print(f"{when:6}  {name}: {whole:6.1%} of the lines, {max(0.0, 1 - wrong):6.1%} of the characters")


def draw_page(words: list[str], font_file: Path) -> Image.Image:
    """Return a page with two columns of words."""
    page = Image.new("RGB", (640, 60 + 50 * len(words)), "white")
    font = ImageFont.truetype(str(font_file), 36)
    for i, word in enumerate(words):
        ImageDraw.Draw(page).text((40 + 300 * (i % 2), 40 + 100 * (i // 2)), word, fill="black", font=font)
    return page


def main(args: argparse.Namespace) -> None:
    try:
        import matplotlib
        import rapidocr
    except ModuleNotFoundError as error:
        raise SystemExit(f"{error}: pip install rapidocr==3.10.0 matplotlib") from None

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    seen = args.fonts or [folder / f"{face}.ttf" for face in FACES]
    unseen = args.other_fonts or [folder / f"{face}.ttf" for face in OTHER_FACES]
    source = args.model or Path(rapidocr.__file__).parent / "models" / "PP-OCRv6_rec_small.onnx"
    args.output.mkdir(parents=True, exist_ok=True)

    random = np.random.default_rng(args.seed + 1)
    texts = [random_text(args.alphabet, random) for _ in range(args.held_out)]
    held_out = {
        name: [(text, draw_line(text, fonts[i % len(fonts)], random)) for i, text in enumerate(texts)]
        for name, fonts in (("fonts of the training", seen), ("other fonts          ", unseen))
    }
    report("before", open_rapidocr(source), held_out)

    start = time.perf_counter()
    data = training_data(args.alphabet, seen, args.steps * args.batch_size, args.seed, texts)
    network = with_new_head(source, args.alphabet, args.seed)
    head = surgery.layers(network)[0].weights
    model = onward.make_trainable(
        network,
        loss=losses.CTC(time_axis=1, logits=True),  # the network ends in a Softmax: the loss reads what goes into it
        output=network.proto().graph.node[-1].input[0],
        train=[*head, *args.train],  # all else is frozen
        optimizer=onward.Adam(
            schedules.Cosine(args.learning_rate, args.steps),
            groups={name: {"learning_rate": 10 * args.learning_rate} for name in head},  # it has more to learn
        ),
    )
    trainer = onward.Trainer(model)
    trainer.fit(data, batch_size=args.batch_size, progress="plain")
    tuned = args.output / "recogniser.onnx"
    onward.save(trainer.to_inference(), tuned)
    (args.output / "keys.txt").write_text("".join(f"{letter}\n" for letter in args.alphabet), encoding="utf-8")
    print(f"{args.steps} steps, {len(data['x'])} lines: {time.perf_counter() - start:.0f} s")

    engine = open_rapidocr(tuned)
    report("after", engine, held_out)
    if args.alphabet == GEORGIAN:
        page = draw_page(WORDS, unseen[0])
        page.save(args.output / "page.png")
        print("page.png, with rapidocr's detector:", " ".join(engine(page, use_det=True).txts or ()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("georgian"), help="folder for the tuned files")
    parser.add_argument("--model", type=Path, help="another recogniser of rapidocr (default: the one in its package)")
    parser.add_argument("--alphabet", default=GEORGIAN)
    parser.add_argument("--fonts", type=Path, nargs="+", help=".ttf files (default: four DejaVu fonts of matplotlib)")
    parser.add_argument("--other-fonts", type=Path, nargs="+", help=".ttf files for held-out lines only")
    parser.add_argument("--train", nargs="*", default=["linear_*"], help="globs of weights to train with the new layer")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--held-out", type=int, default=100, help="number of held-out lines for each group of fonts")
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
