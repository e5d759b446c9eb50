"""Teach openwakeword a word of your own: train the classifier of one of its words on stock ONNX Runtime.

    pip install onward openwakeword==0.5.1 espeakng-loader
    python wake_word.py --word "hey onward" --output hey_onward.onnx

openwakeword listens with three networks: a mel spectrogram, an embedding of speech (one vector of 96 numbers for each
80 ms), and for each word a small classifier that reads the last 16 vectors, about two seconds. The first two serve all
words and stay as they are. The classifier of "alexa" is trained to hear the new word instead.

The clips are made with espeak-ng (see `speech.py`), or are your own: `--positive` and `--negative` name folders of WAV
files (16 kHz, mono, 16 bits) with and without the word. The last quarter of the files is held out. At the end
openwakeword itself loads the tuned file, listens to the held-out clips, and its scores are compared with those of the
file from which the training began.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import speech
from onnx.tools.update_model_dims import update_inputs_outputs_dims

import onward

try:
    import openwakeword
    from openwakeword.utils import AudioFeatures
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}: pip install openwakeword==0.5.1 espeakng-loader") from None

SECONDS = 3  # of a clip; the word ends about 0.2 s before the clip does
CONTEXT = 16  # embeddings that the classifier reads
THRESHOLD = 0.5  # openwakeword's own
BATCH_SIZE = 256

# What else people say: half of it sentences, half of it close to the word. Other sentences and words are held out.
BEGINNINGS = speech.texts("""
    hey|hey|hey|they|pay|day|okay|may|say|hi|oh|hello
""")
SENTENCES = speech.texts("""
    onward and upward|we are moving forward|play some music|what time is it|turn on the lights|good morning
    turn off the radio|set a timer for ten minutes|how is the weather today|call my mother|alexa|okay computer
    stop|onward|open the window please|the train leaves at noon|I would like a cup of tea|hey what's up|next song
    on board|thank you|they onboard new people|where are my keys|hey there my friend|one two three four
    an awkward moment|volume up|the ward is on the left|read me the news|hey|we are on our way|in a word yes
    who won the war|she wants an answer|a reward|go backward|hello world|pay one word|turn the volume down
    who is at the door|onwards|it is on order|never mind|hey man what's new|good night everyone|start the car
    I will be there at seven|the dog wants to go out|they want more|remind me tomorrow|dinner is ready
    please repeat that|skip this one
""")
WORDS = speech.texts("""
    jarvis|edward|robert|harvard|wander|oscar|honey|you|anna|henry|alan|amber|ann|word|inward|wayward|toward
    coward|award|orange|under|honor|hunter|william|warden|onion|otto|arthur|albert|alfred|mark|on|one|what|water
    octopus|angela|and|once|only|over|answer|conrad|donald|howard|andrew|norbert|siri|orchid|oliver|owen|upward
    google|ronald
""")
HELD_OUT_SENTENCES = speech.texts("""
    what a steward|forward march|lock the front door|is the coffee hot|they wandered off|guarded|tell me a story
    how far is the station|an hour went by|hey that is my chair|we ordered pizza|I am on guard today
    close the garage|the meeting was moved|may I borrow a pen|honourable mention|dim the bedroom lamp
    find my phone
""")
HELD_OUT_WORDS = speech.texts("""
    leonard|hannah|homeward|orlando|cortana|everyone|bernard|wanda|simon|skyward
""")


def other_text(sentences: list[str], words: list[str], random: np.random.Generator) -> str:
    """Return something that is not the word."""
    if random.random() < 0.5:
        return str(random.choice(sentences))
    return f"{random.choice(BEGINNINGS)} {random.choice(words)}"


def clip_of(spoken: np.ndarray, random: np.random.Generator, *, ends: tuple[float, float] = (0.05, 0.3)) -> np.ndarray:
    """Return 16-bit samples in which `spoken` ends so many seconds before the end, at some volume, over noise.

    In every second clip the noise begins and ends somewhere, and digital silence is around it: microphones never give
    that, but openwakeword's `predict_clip` adds a second of it to both ends of a file.
    """
    size = SECONDS * speech.RATE
    end = min(size - int(random.uniform(*ends) * speech.RATE), size + len(spoken) // 2)
    start = max(end - len(spoken), 0)
    clip = np.zeros(max(end, size), np.float32)
    clip[start:end] = spoken[start - end :] * random.uniform(0.1, 0.8)
    clip, end = clip[:size], min(end, size)
    noise = speech.noise(size, random) * speech.level(clip[start:end]) * 10 ** (-random.uniform(5, 30) / 20)
    if random.random() < 0.5:
        noise[: random.integers(0, start + 1)] = 0
        noise[random.integers(end, size + 1) :] = 0
    return np.clip((clip + noise) * 32767, -32768, 32767).astype(np.int16)


def made_clips(
    word: str, sentences: list[str], words: list[str], speakers: list[str], count: int, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return `count` clips with the word, and twice as many with something else or with noise alone, by `speakers`."""
    with_word = [speech.say_somehow(word, str(random.choice(speakers)), random) for _ in range(count)]
    without = []
    for index in range(2 * count):
        text = other_text(sentences, words, random)
        spoken = speech.say_somehow(text, str(random.choice(speakers)), random)
        without.append(spoken if index % 10 else speech.noise(2 * speech.RATE, random) * 0.2)
    return (
        np.stack([clip_of(spoken, random) for spoken in with_word]),
        np.stack([clip_of(spoken, random, ends=(-0.8, 1.0)) for spoken in without]),  # some are cut off
    )


def own_clips(positive: Path, negative: Path, held_out: bool, random: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Return clips of the recordings in two folders: the last quarter if `held_out`, else the others."""
    parts = []
    for folder in (positive, negative):
        recordings = list(speech.wav_files(folder))
        cut = len(recordings) * 3 // 4
        chosen = recordings[cut:] if held_out else recordings[:cut]
        if not chosen:
            raise SystemExit(f"{folder} holds {len(recordings)} WAV files; at least four are needed")
        ends = (0.05, 0.3) if folder == positive else (-0.8, 1.0)
        parts.append(np.stack([clip_of(samples, random, ends=ends) for samples in chosen]))
    return tuple(parts)


def embed(features: AudioFeatures, clip: np.ndarray) -> np.ndarray:
    """Return one vector of 96 numbers for each 80 ms of `clip`, as openwakeword computes them while it listens.

    Then each 80 ms (and the 30 ms before) have a spectrogram of their own, limited to 80 dB below its own maximum;
    `AudioFeatures.embed_clips` limits it to 80 dB below the loudest moment of the clip, so that silence differs.
    """
    before = np.concatenate([np.zeros(480, np.int16), clip])
    moments = [before[i : i + 480 + 1280] for i in range(0, len(clip), 1280)]
    spectrogram = np.concatenate([features._get_melspectrogram(moment) for moment in moments])  # [8 * moments, 32]
    read = [spectrogram[end - 76 : end, :, None] for end in range(80, len(spectrogram) + 1, 8)]
    return features.embedding_model_predict(np.stack(read).astype(np.float32))


def windows(with_word: np.ndarray, without: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what the classifier reads, [N, 16, 96], and labels [N, 1].

    The word has just ended in the last three windows of a clip; all windows of a clip without it are negative, and so
    are those in which the word has not begun.
    """
    features = AudioFeatures(inference_framework="onnx")
    inputs, labels = [], []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for clips, is_word in ((with_word, True), (without, False)):
            embedded = np.stack(list(pool.map(functools.partial(embed, features), clips)))  # [clips, moments, 96]
            count = embedded.shape[1] - CONTEXT + 1
            for first in range(count):
                if is_word and count - 6 <= first < count - 3:
                    continue  # in the middle of the word: neither
                inputs.append(embedded[:, first : first + CONTEXT])
                labels.append(np.full((len(clips), 1), is_word and first >= count - 3, np.float32))
    return np.concatenate(inputs), np.concatenate(labels)


def classifier(path: Path) -> onnx.ModelProto:
    """Return the classifier in `path` with a free batch size: it says [1, 16, 96], but nothing in it needs the 1."""
    model = onnx.load(path)
    return update_inputs_outputs_dims(
        model, {model.graph.input[0].name: ["N", CONTEXT, 96]}, {model.graph.output[0].name: ["N", 1]}
    )


def best_scores(model: openwakeword.Model, clips: np.ndarray) -> dict[str, np.ndarray]:
    """Return, for each word that openwakeword listens for, its highest score in each clip."""
    found = []
    for clip in clips:
        frames = model.predict_clip(clip)
        found.append({name: max(frame[name] for frame in frames) for name in frames[0]})
    return {name: np.array([scores[name] for scores in found]) for name in found[0]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--word", default="hey onward", help="what espeak-ng says")
    parser.add_argument("--positive", type=Path, help="folder of your own recordings of the word")
    parser.add_argument("--negative", type=Path, help="folder of your own recordings of anything else")
    parser.add_argument(
        "--clips", type=int, default=400, help="clips with the word that are made; twice as many without it"
    )
    parser.add_argument("--held-out", type=int, default=60, help="the same for the test")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("hey_onward.onnx"))
    arguments = parser.parse_args()
    random = np.random.default_rng(arguments.seed)
    began = time.perf_counter()

    if arguments.positive and arguments.negative:
        train = own_clips(arguments.positive, arguments.negative, False, random)
        test = own_clips(arguments.positive, arguments.negative, True, random)
    else:
        held_out = speech.SPEAKERS[1::4]
        speakers = [name for name in speech.SPEAKERS if name not in held_out]
        train = made_clips(arguments.word, SENTENCES, WORDS, speakers, arguments.clips, random)
        test = made_clips(arguments.word, HELD_OUT_SENTENCES, HELD_OUT_WORDS, held_out, arguments.held_out, random)
    print(f"{len(train[0])} clips with the word, {len(train[1])} without ({time.perf_counter() - began:.0f} s)")

    inputs, labels = windows(*train)
    print(f"{len(inputs)} windows, {labels.mean():.0%} of them with the word ({time.perf_counter() - began:.0f} s)")

    start = Path(openwakeword.__file__).parent / "resources" / "models" / "alexa_v0.1.onnx"
    model = classifier(start)
    logit = model.graph.node[-1].input[0]  # in front of the Sigmoid
    trainable = onward.make_trainable(
        model, loss="bce_with_logits", output=logit, optimizer=onward.AdamW(weight_decay=0.01)
    )
    trainer = onward.Trainer(trainable, backend="onnxruntime")
    steps = arguments.epochs * -(-len(inputs) // BATCH_SIZE)
    falling = onward.schedules.Cosine(1e-3, steps=steps)  # with a constant rate, some runs end in a bad moment
    trainer.fit(
        inputs, labels, epochs=arguments.epochs, batch_size=BATCH_SIZE, learning_rate=falling, seed=arguments.seed
    )
    onward.save(trainer.to_inference(), arguments.output)
    print(f"wrote {arguments.output} ({time.perf_counter() - began:.0f} s)")

    listening = openwakeword.Model(wakeword_models=[str(start), str(arguments.output)], inference_framework="onnx")
    right, wrong = (best_scores(listening, clips) for clips in test)
    for when, name in (("before", start.stem), ("after", arguments.output.stem)):
        recall, accepts = np.mean(right[name] >= THRESHOLD), np.mean(wrong[name] >= THRESHOLD)
        print(
            f"{when}: hears the word in {recall:.1%} of {len(test[0])} held-out clips with it, "
            f"and in {accepts:.1%} of {len(test[1])} without it ({name})"
        )
    print(f"{time.perf_counter() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
