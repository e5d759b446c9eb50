"""Teach Silero's voice activity detector your room: train its 16 kHz network on stock ONNX Runtime.

    pip install onward silero-vad==6.2.3 espeakng-loader
    python voice_activity.py --output workshop_vad.onnx

The detector reads frames of 32 ms, with the 4 ms before, and hands a state from frame to frame; for each frame it gives
the probability of speech. It was trained on thousands of voices and noises, but not on yours. Here a voice speaks
beside a humming machine that is about as loud: the hum passes for speech, and words are missed.

The recordings are made with espeak-ng (see `speech.py`), or are your own: `--recordings` names a folder of WAV files
(16 kHz, mono, 16 bits), each with a file of the same name that ends in `.txt` and holds a line `start end` in seconds
for each stretch of speech, as Audacity exports labels. The last quarter of them is held out.

Half of what is trained with are ordinary clips, so that the detector does not forget them. At the end silero_vad's own
`OnnxWrapper` loads both files and listens to clips of speakers and sentences that were held out.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import speech

import onward

try:
    import silero_vad
    import torch
    from silero_vad.utils_vad import OnnxWrapper
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}: pip install silero-vad==6.2.3 espeakng-loader") from None

FRAME, CONTEXT = 512, 64  # samples
FRAMES = 125  # of a clip: 4 s
BATCH_SIZE = 32  # clips that are trained side by side
THRESHOLD = 0.5  # silero_vad's own
Clips = tuple[
    np.ndarray, np.ndarray
]  # samples [clips, FRAMES * FRAME], and whether each frame is speech [clips, FRAMES]

SENTENCES = speech.texts("""
    play some music|what time is it|turn on the lights|good morning|turn off the radio|call my mother
    set a timer for ten minutes|how is the weather today|open the window please|the train leaves at noon
    thank you|I would like a cup of tea|where are my keys|one two three four|read me the news|we are on our way
    stop
""")
HELD_OUT_SENTENCES = speech.texts("""
    turn the volume down|who is at the door|good night everyone|start the car|never mind|I will be there at seven
    the dog wants to go out|remind me tomorrow|dinner is ready|please repeat that
""")


def machine(size: int, random: np.random.Generator) -> np.ndarray:
    """Return the hum of a machine, of root mean square 1: overtones of a rotation, unsteady, over noise."""
    moments = np.arange(size) / speech.RATE
    rotation = random.uniform(90, 140)
    hum = np.zeros(size)
    for overtone in range(1, 20):
        hum += np.sin(2 * np.pi * rotation * overtone * moments + random.uniform(0, 2 * np.pi)) / np.sqrt(overtone)
    hum *= 1 + 0.5 * np.sin(2 * np.pi * random.uniform(3, 8) * moments)
    return (0.7 * hum / speech.level(hum) + 0.7 * speech.noise(size, random, 1)).astype(np.float32)


def talk(size: int, sentences: list[str], speaker: str, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return sentences with pauses, and which samples are speech.

    They are cut out of a longer talk: if all clips began and ended in silence, then all frames that are trained
    together would be silence at times, and the last ones would teach the detector to hear nothing.
    """
    lead = int(random.uniform(0, 3) * speech.RATE)
    samples, spoken = np.zeros(0, np.float32), np.zeros(0, bool)
    while len(samples) < lead + size:
        sentence = speech.say_somehow(str(random.choice(sentences)), speaker, random)
        pause = int(random.uniform(0.3, 1.5) * speech.RATE)
        samples = np.concatenate([samples, np.zeros(pause, np.float32), sentence])
        spoken = np.concatenate([spoken, np.zeros(pause, bool), np.ones(len(sentence), bool)])
    return samples[lead : lead + size], spoken[lead : lead + size]


def made_clips(
    count: int, sentences: list[str], speakers: list[str], random: np.random.Generator, *, near_machine: bool
) -> Clips:
    """Return clips of 4 s, near a machine or in a quiet room, and which frames are speech."""
    size = FRAMES * FRAME
    clips, labels = [], []
    for _ in range(count):
        clip, spoken = talk(size, sentences, str(random.choice(speakers)), random)
        loudness = speech.level(clip[spoken]) if spoken.any() else 0.1
        if near_machine:
            clip = clip + machine(size, random) * loudness * 10 ** (-random.uniform(-2, 5) / 20)
        else:
            clip = clip + speech.noise(size, random) * loudness * 10 ** (-random.uniform(20, 40) / 20)
        clips.append(clip * random.uniform(0.1, 0.8) / np.abs(clip).max())
        labels.append(spoken.reshape(FRAMES, FRAME).mean(axis=1) > 0.5)
    return np.stack(clips).astype(np.float32), np.stack(labels)


def own_clips(folder: Path, *, held_out: bool) -> Clips:
    """Return pieces of 4 s of the recordings in `folder`: of the last quarter if `held_out`, else of the others."""
    paths = sorted(folder.glob("*.wav"))
    cut = len(paths) * 3 // 4
    samples, labels = [], []
    for path in paths[cut:] if held_out else paths[:cut]:
        audio = speech.read_wav(path)
        spoken = np.zeros(len(audio), bool)
        for line in path.with_suffix(".txt").read_text().splitlines():
            start, end = (int(float(number) * speech.RATE) for number in line.split()[:2])
            spoken[start:end] = True
        pieces = len(audio) // (FRAMES * FRAME)
        samples.append(audio[: pieces * FRAMES * FRAME].reshape(pieces, -1))
        labels.append(spoken[: pieces * FRAMES * FRAME].reshape(pieces, FRAMES, FRAME).mean(axis=2) > 0.5)
    if not sum(map(len, samples)):
        raise SystemExit(f"{folder} holds {len(paths)} WAV files; at least four, of 4 s or more, are needed")
    return np.concatenate(samples), np.concatenate(labels)


def train(trainer: onward.Trainer, clips: Clips, epochs: int, random: np.random.Generator) -> None:
    """Go through the clips frame by frame, many side by side, and hand the state from frame to frame."""
    samples, labels = clips
    before = np.pad(samples, ((0, 0), (CONTEXT, 0)))
    for epoch in range(epochs):
        losses = []
        for batch in np.array_split(random.permutation(len(samples)), max(len(samples) // BATCH_SIZE, 1)):
            state = np.zeros((2, len(batch), 128), np.float32)
            for frame in range(FRAMES):
                outputs = trainer.step(
                    {
                        "input": before[batch, frame * FRAME : (frame + 1) * FRAME + CONTEXT],
                        "state": state,
                        "sr": np.array(speech.RATE),
                        "labels": labels[batch, frame, None].astype(np.float32),
                    }
                )
                state = outputs["stateN"]
                losses.append(float(outputs["loss"]))
        print(f"epoch {epoch + 1}/{epochs}  loss {np.mean(losses):.4f}")


def scores(path: Path, clips: Clips) -> tuple[float, float]:
    """Return the accuracy and the F1 of the frames when silero_vad itself listens with the file in `path`."""
    detector = OnnxWrapper(str(path), force_onnx_cpu=True)
    samples, labels = clips
    heard = detector.audio_forward(torch.from_numpy(samples), speech.RATE).numpy() >= THRESHOLD
    right = (heard & labels).sum()
    return float((heard == labels).mean()), float(2 * right / (heard.sum() + labels.sum()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recordings", type=Path, help="folder of your own recordings and their labels")
    parser.add_argument("--clips", type=int, default=96, help="how many clips near the machine espeak-ng makes")
    parser.add_argument("--held-out", type=int, default=40, help="the same for the test")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("workshop_vad.onnx"))
    arguments = parser.parse_args()
    random = np.random.default_rng(arguments.seed)
    began = time.perf_counter()

    held_out = speech.SPEAKERS[1::4]
    speakers = [name for name in speech.SPEAKERS if name not in held_out]
    if arguments.recordings:
        mine, mine_held_out = (own_clips(arguments.recordings, held_out=h) for h in (False, True))
    else:
        mine = made_clips(arguments.clips, SENTENCES, speakers, random, near_machine=True)
        mine_held_out = made_clips(arguments.held_out, HELD_OUT_SENTENCES, held_out, random, near_machine=True)
    old = made_clips(len(mine[0]), SENTENCES, speakers, random, near_machine=False)
    old_held_out = made_clips(arguments.held_out, HELD_OUT_SENTENCES, held_out, random, near_machine=False)
    print(f"{len(mine[0])} new clips and {len(old[0])} ordinary ones of 4 s ({time.perf_counter() - began:.0f} s)")

    start = Path(silero_vad.__file__).parent / "data" / "silero_vad_op18_ifless.onnx"
    together = tuple(np.concatenate(pair) for pair in zip(mine, old, strict=True))
    steps = arguments.epochs * max(len(together[0]) // BATCH_SIZE, 1) * FRAMES
    trainable = onward.make_trainable(
        start,
        loss="bce",
        output="output",
        train="model.*",  # `model_8k.*` is the network for 8 kHz
        freeze="*forward_basis_buffer",  # the Fourier transform
        optimizer=onward.Adam(onward.schedules.Cosine(arguments.learning_rate, steps=steps)),
    )
    trainer = onward.Trainer(trainable, backend="onnxruntime")
    train(trainer, together, arguments.epochs, random)
    onward.save(trainer.to_inference(), arguments.output)
    print(f"wrote {arguments.output} ({time.perf_counter() - began:.0f} s)")

    for kind, clips in (("new", mine_held_out), ("ordinary", old_held_out)):
        for when, path in (("before", start), ("after", arguments.output)):
            accuracy, f1 = scores(path, clips)
            print(f"{kind} clips, {when}: {accuracy:.1%} of {clips[1].size} held-out frames are right, F1 {f1:.3f}")
    print(f"{time.perf_counter() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
