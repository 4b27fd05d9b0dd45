"""Speech in a recording, as Silero VAD's utility finds it with its default settings."""

from __future__ import annotations

import io
import wave
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tests.trained.agreement import Array

RATE = 16000
WINDOW, CONTEXT = 512, 64  # samples
START, END = 0.5, 0.35  # probabilities: speech begins from the first on, and ends below the other
SHORTEST, SILENCE, MARGIN = RATE // 4, RATE // 10, 30 * RATE // 1000  # samples

Step = Callable[[Array, Array], tuple[float, Array]]  # (window, state): probability, next state


def samples(data: bytes) -> Array:
    """The samples of a WAV file with one channel of 16 bits at 16 kHz, from -1 to 1."""
    with wave.open(io.BytesIO(data)) as file:
        form = (file.getnchannels(), file.getsampwidth(), file.getframerate())
        if form != (1, 2, RATE):
            raise ValueError(f"the recording has {form} channels, bytes and Hz, not (1, 2, {RATE})")
        frames = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    return frames.astype(np.float32) / 32768


def probabilities(recording: Array, step: Step) -> list[float]:
    """The probability of speech in each window; a window comes with the end of the one before."""
    padded = np.pad(recording, (CONTEXT, -len(recording) % WINDOW))
    state = np.zeros((2, 1, 128), np.float32)
    found = []
    for start in range(0, len(padded) - CONTEXT, WINDOW):
        probability, state = step(padded[None, start : start + CONTEXT + WINDOW], state)
        found.append(probability)
    return found


def segments(found: Sequence[float], length: int) -> list[tuple[int, int]]:
    """The first and last sample of each part of a recording of `length` samples that is speech."""
    parts = [(start, end) for start, end in _parts(found, length) if end - start > SHORTEST]
    widened = []
    for k, (start, end) in enumerate(parts):
        before = start - parts[k - 1][1] if k else 2 * start
        after = parts[k + 1][0] - end if k + 1 < len(parts) else 2 * (length - end)
        widened.append((start - min(MARGIN, before // 2), end + min(MARGIN, after // 2)))
    return widened


def _parts(found: Sequence[float], length: int) -> Iterator[tuple[int, int]]:
    """Parts from the window where speech begins to the first of the windows of a silence."""
    start = silence = None
    for k, probability in enumerate(found):
        here = k * WINDOW
        if probability >= START:
            start, silence = (here if start is None else start), None
        elif probability < END and start is not None:
            silence = here if silence is None else silence
            if here - silence >= SILENCE:
                yield start, silence
                start = silence = None
    if start is not None:
        yield start, length
