"""Speech for the recipes, at 16 kHz: what espeak-ng says in many voices, and noise to put below it.

espeak-ng is a small formant synthesiser; `pip install espeakng-loader` brings it as a library. It stands for the
recordings that you would make yourself. Its voices do not breathe, so numbers that are measured with them are not those
of real speakers.
"""

from __future__ import annotations

import ctypes
import functools
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np

RATE = 16_000


def texts(text: str) -> list[str]:
    """Return the texts between bars and line ends."""
    return [part.strip() for part in text.replace("\n", "|").split("|") if part.strip()]


# Variants of the voice: each has its own formants, pitch and roughness.
SPEAKERS = texts("""
    f1|f2|f3|f4|f5|m1|m2|m3|m4|m5|m6|m7|m8|klatt|klatt2|klatt3|Alex|Alicia|Andrea|Andy|Annie|Denis|Diogo|Gene
    Henrique|Hugo|Jacky|Lee|Marco|Mario|Michael|Mike|Nguyen|Reed|Tweaky|adam|anika|antonio|aunty|belinda|benjamin
    boris|caleb|david|ed|edward|grandma|grandpa|gustave|ian|iven|john|kaukovalta|linda|marcelo|max|michel|miguel
    norbert|pablo|paul|pedro|quincy|rob|robert|sandro|shelby|steph|travis|victor|zac
""")
ACCENTS = ["en-us", "en", "en-gb-scotland", "en-gb-x-rp", "en-gb-x-gbclan", "en-029"]

_SYNCHRONOUS, _UTF8, _SPEED, _PITCH, _RANGE = 2, 1, 1, 3, 4  # numbers of espeak-ng's speak_lib.h
_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


def say(text: str, speaker: str, accent: str = "en-us", *, speed: int = 165, pitch: int = 50) -> np.ndarray:
    """Return `text` as float32 samples in -1 … 1 at 16 kHz; `speed` in words per minute, `pitch` 0 … 99.

    Silence at both ends is cut off.
    """
    library, rate, chunks = _espeak()
    chunks.clear()
    if library.espeak_SetVoiceByName(f"{accent}+{speaker}".encode()) != 0:
        raise ValueError(f"espeak-ng has no voice {accent}+{speaker}")
    for parameter, value in ((_SPEED, speed), (_PITCH, pitch), (_RANGE, 50)):
        library.espeak_SetParameter(parameter, value, 0)
    data = text.encode()
    library.espeak_Synth(data, len(data) + 1, 0, 1, 0, _UTF8, None, None)
    spoken = np.concatenate(chunks).astype(np.float32) / 32768
    size = round(len(spoken) * RATE / rate)
    spectrum = np.fft.rfft(spoken)[: size // 2 + 1]  # resample: leave out what is above 8 kHz
    samples = np.fft.irfft(spectrum, size) * (size / len(spoken))
    loud = np.flatnonzero(np.abs(samples) > 0.01)
    return samples[loud[0] : loud[-1] + 1].astype(np.float32)


def say_somehow(text: str, speaker: str, random: np.random.Generator) -> np.ndarray:
    """Return `text` by `speaker`, in a random accent, speed and pitch, at full volume."""
    accent, speed, pitch = str(random.choice(ACCENTS)), int(random.integers(130, 200)), int(random.integers(25, 75))
    spoken = say(text, speaker, accent, speed=speed, pitch=pitch)
    return spoken / np.abs(spoken).max()


def noise(size: int, random: np.random.Generator, colour: float | None = None) -> np.ndarray:
    """Return noise of root mean square 1 whose power falls with frequency ** `colour`: 0 hisses, 2 rumbles."""
    if colour is None:
        colour = random.uniform(0, 2)
    frequencies = np.maximum(np.fft.rfftfreq(size, 1 / RATE), 50)
    spectrum = np.fft.rfft(random.standard_normal(size)) * frequencies ** (-colour / 2)
    samples = np.fft.irfft(spectrum, size)
    return (samples / np.sqrt(np.mean(samples**2))).astype(np.float32)


def level(samples: np.ndarray) -> float:
    """Return the root mean square of `samples`."""
    return float(np.sqrt(np.mean(np.square(samples, dtype=np.float64))))


def read_wav(path: Path) -> np.ndarray:
    """Return a 16-bit mono WAV file of 16 kHz as float32 samples."""
    with wave.open(str(path)) as file:
        found = (file.getframerate(), file.getnchannels(), file.getsampwidth())
        if found != (RATE, 1, 2):
            raise ValueError(f"{path}: {found[0]} Hz, {found[1]} channels, {8 * found[2]} bits; needed: 16000, 1, 16")
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768


def wav_files(folder: Path) -> Iterator[np.ndarray]:
    """Yield the recordings in `folder`, in the order of their names."""
    for path in sorted(folder.glob("*.wav")):
        yield read_wav(path)


@functools.cache
def _espeak() -> tuple[ctypes.CDLL, int, list[np.ndarray]]:
    """Return the library, its sample rate, and the list to which it appends what it says."""
    try:
        import espeakng_loader
    except ModuleNotFoundError as error:
        raise SystemExit(f"{error}: pip install espeakng-loader") from None

    library = ctypes.CDLL(espeakng_loader.get_library_path())
    library.espeak_Synth.argtypes = [
        *(ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint, ctypes.c_int, ctypes.c_uint, ctypes.c_uint),
        *(ctypes.c_void_p, ctypes.c_void_p),
    ]
    rate = library.espeak_Initialize(_SYNCHRONOUS, 0, espeakng_loader.get_data_path().encode(), 0)
    if rate <= 0:
        raise RuntimeError("espeak-ng does not start")
    chunks: list[np.ndarray] = []

    @_Callback
    def collect(samples: ctypes._Pointer[ctypes.c_short], count: int, events: int | None) -> int:
        if samples and count:
            chunks.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0

    library.espeak_SetSynthCallback(collect)
    library.collect = collect  # the library keeps only the address
    return library, rate, chunks
