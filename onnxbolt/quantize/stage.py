"""The stage in front of all others where 8 bits are asked for: it makes the quantized model, which
is then the original that is optimized and compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from onnx import ModelProto

from onnxbolt import families
from onnxbolt.archs import get
from onnxbolt.errors import FrozenError, InputError
from onnxbolt.graph.importer import load_model
from onnxbolt.graph.saving import save_model
from onnxbolt.options import AUTO, Options
from onnxbolt.quantize.data import Data
from onnxbolt.quantize.making import Quantized, calibrated, digest_of, quantized
from onnxbolt.quantize.metric import loaded
from onnxbolt.quantize.scales import Quantization, Scales
from onnxbolt.quantize.search import Timed, searched
from onnxbolt.spelling import option


def staged(
    model: ModelProto,
    options: Options,
    known: Mapping[str, Scales],
    archs: Sequence[int],
    place: Path,
    shown: Path | None,
    timed: Timed,
) -> tuple[ModelProto, Quantization]:
    """The quantized model, which is written to `place` and will be at `shown`, and the account of
    how it was made: by calibration data, else by the scales of this model among those that are
    `known`. A search for precisions asks `timed` for the times of models.

    Raises InputError where there are no kernels or no scales, FrozenError for a lock file without
    this model's.
    """
    if not families.multiplies_codes(archs):
        names = ", ".join(get(arch).name for arch in archs)
        raise InputError(
            f"{option('precision', options.precision)}: not all of {names} have kernels that"
            f" multiply 8-bit codes; choose with {option('archs')}, or another precision"
        )
    made = _made(model, options, known, timed)
    if made.model is not model:  # else a search has left all as it was
        save_model(made.model, place, options.save_as_external_data, made.large)
    account = Quantization(
        made.scales,
        options.calibration is None,
        made.left,
        "" if made.model is model else str(shown or ""),
        options.max_error,
    )
    return model if made.model is model else load_model(place), account


def _made(
    model: ModelProto, options: Options, known: Mapping[str, Scales], timed: Timed
) -> Quantized:
    if options.calibration is not None:
        data = Data(Path(options.calibration), model, bool(options.metric))
        if options.max_error is not None and options.precision == AUTO:
            metric = loaded(options.metric) if options.metric else None
            method = options.calibration_method
            return searched(model, data, method, options.max_error, timed, metric)
        return calibrated(model, options.precision, data, options.calibration_method)
    if (found := known.get(digest_of(model)) if known else None) is not None:
        return quantized(model, found)
    if options.frozen:
        raise FrozenError(
            f"{option('frozen', True)}: {options.lock} has no scales of this model: run once with"
            f" {option('calibration')} and {option('lock')}, and commit the lock file"
        )
    raise InputError(
        f"{option('precision', options.precision)}: {options.lock} has no scales of this model;"
        f" give {option('calibration')}"
    )
