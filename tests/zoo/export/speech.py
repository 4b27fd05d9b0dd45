"""Parts of models of speech that convolve over time."""

from __future__ import annotations

import transformers as hf
from torch import Tensor, nn


class Vocoder(nn.Module):
    """SpeechT5's HiFi-GAN: a spectrogram [N, frames, 80] becomes sound, by transposed convolutions
    whose weights are normalized when the model runs."""

    def __init__(self) -> None:
        super().__init__()
        self.model = hf.SpeechT5HifiGan(hf.SpeechT5HifiGanConfig(upsample_initial_channel=256))
        self.model.apply_weight_norm()

    def forward(self, spectrogram: Tensor) -> Tensor:
        return self.model(spectrogram)


class Stem(nn.Module):
    """The two convolutions in front of Whisper's encoder, with the positions' embedding left
    out."""

    def __init__(self, channels: int = 80, width: int = 768) -> None:
        super().__init__()
        self.first = nn.Conv1d(channels, width, 3, padding=1)
        self.second = nn.Conv1d(width, width, 3, stride=2, padding=1)

    def forward(self, spectrum: Tensor) -> Tensor:
        x = nn.functional.gelu(self.first(spectrum))
        return nn.functional.gelu(self.second(x)).permute(0, 2, 1)
