"""Deployment: session options that use a model's library where this machine can, with one script
for every machine, the CUDA provider with options that suit the model, and whether runs of the
model can be captured in a CUDA graph.

- If the library holds kernels for this GPU, `session_options` registers it.
- Without a library or a GPU, with an old driver or an architecture that the library does not hold,
  with a library that this system does not load (built for another processor, say), with an
  onnxruntime without CUDA or whose CUDA provider does not load, or with onnxbolt.enable set to "0",
  it registers nothing and function bodies run. It gives one OnnxboltWarning, or raises
  LibraryError if `strict`.
- For providers without CUDA it sets onnxbolt.enable to "0", and function bodies run.
- For a damaged library, another model's library, or bytes of another sum it raises LibraryError;
  nothing of the file was loaded.

Imports neither onnx nor the optimizer, and onnxruntime only when it is used.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxbolt.errors import InputError, LibraryError
from onnxbolt.library_file import Library, given_sum
from onnxbolt.metadata import Source, read_metadata
from onnxbolt.names import (
    CONVOLUTIONS,
    CUDA_GRAPH,
    DEVICE,
    ENABLE,
    FIXED,
    IMPOSSIBLE,
    INPUTS,
    NONE,
    OPEN,
    POSSIBLE,
)

if TYPE_CHECKING:
    import onnxruntime as ort

CUDA = "CUDAExecutionProvider"
# ONNX Runtime 1.31's reordering of channels for CPU convolutions crashes on fp16
# products behind a Transpose, of which torchvision's vision transformers have many
_OFF, CPU_CHANNELS = "optimization.disable_specified_optimizers", "NchwcTransformer"
_NO_PROVIDER = "this onnxruntime's CUDA provider does not load"
_REMEDY = (
    "are CUDA and cuDNN installed, in the versions that onnxruntime-gpu names? See the error that"
    " onnxruntime printed"
)
# y = Abs(x) for one float as an ONNX file (opset 13)
_SMALLEST = (
    b'\x08\x08:4\n\r\n\x01x\x12\x01y"\x03Abs:\x00\x12\x01gZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01'
    b"b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\r"
)
Provider = str | tuple[str, dict[str, Any]]


# kinds of search for algorithms by what `optimize` noted of the convolutions that are left to ONNX
# Runtime. EXHAUSTIVE measures every algorithm for every new size: 38 ms a run of a text detector at
# a new size with two convolutions left on an H200, 7.2 ms with HEURISTIC and 4.1 ms with DEFAULT.
_SEARCH = {FIXED: "EXHAUSTIVE", OPEN: "DEFAULT"}


class OnnxboltWarning(UserWarning):
    """The model runs slower than it could: the fused kernels are not used here, so that the nodes
    run as their ONNX functions, or `optimize` has not written the model."""


def get_library_path(model: Path | str) -> Path:
    """The path of a model's library, out.onnx -> out.onnxbolt.so, whether it exists or not."""
    return Path(model).with_suffix(".onnxbolt.so")


def session_options(
    model: Source,
    *,
    providers: Sequence[Provider] | None = None,
    strict: bool = False,
    library: Path | str | None = None,
    library_sha256: str | None = None,
    options: ort.SessionOptions | None = None,
) -> ort.SessionOptions:
    """`options` (new ones by default) with the model's library registered where this machine can
    use it.

    `model` is a path or the bytes of the file; `library` is by default the file beside the model;
    `providers` are those that the session will get (by default all that onnxruntime has). Loading a
    library runs its code: `library_sha256`, the sum in hex that `onnxbolt optimize` reports, says
    which bytes may be loaded, and others never are. Raises LibraryError for a library that does not
    fit or, if `strict`, is not used, and InputError for a file that is no ONNX model and for a sum
    that is none.
    """
    import onnxruntime as ort

    expected = None if library_sha256 is None else given_sum(library_sha256)
    options = options or ort.SessionOptions()
    metadata = read_metadata(model)
    digest = metadata.get("onnxbolt.digest", "")
    if metadata.get("onnxbolt.precision") == "fp16":
        keep_channels(options)
    if not digest:
        return options  # no fused nodes
    available = ort.get_available_providers()
    wanted = _settings(available if providers is None else providers)
    if providers is not None and CUDA not in wanted:
        options.add_session_config_entry(ENABLE, "0")
        return options
    device = int(wanted.get(CUDA, {}).get("device_id", 0))
    reason = _why_not(options, available) or _load(
        model, library, expected, digest, device, options
    )
    if reason and strict:
        raise LibraryError(f"the fused kernels cannot be used: {reason}")
    if reason:
        warnings.warn(
            "the fused kernels are not used, and the nodes run as ONNX functions, which is"
            f" slower: {reason}",
            OnnxboltWarning,
            stacklevel=2,
        )
    return options


def cuda_provider(
    model: Source, device_id: int = 0, **options: str | int
) -> tuple[str, dict[str, str]]:
    """ONNX Runtime's CUDA provider with the options that suit the model, as sessions and
    `session_options` take it in `providers`.

    `model` is a path or the bytes of the file, of which only the metadata are read. `options` are
    further ones by ONNX Runtime's names, such as prefer_nhwc=True, gpu_mem_limit=2**31 or
    user_compute_stream=stream.ptr, and replace those that are chosen here (docs/deploy.md). Gives
    an OnnxboltWarning, and ONNX Runtime's defaults, for a model that `optimize` has not written.
    Raises InputError for a file that is no ONNX model, and for metadata and options that are none.
    """
    chosen: dict[str, str | int] = {"device_id": device_id}
    metadata = read_metadata(model)
    if CONVOLUTIONS in metadata:
        chosen["cudnn_conv_algo_search"] = _SEARCH[_sizes_to_suit(metadata, model)]
    elif "cudnn_conv_algo_search" not in options:
        warnings.warn(
            f"{_name(model)} does not say which convolutions ONNX Runtime runs in it, so its"
            " defaults are used, which are slow where sizes vary. Run: onnxbolt optimize",
            OnnxboltWarning,
            stacklevel=2,
        )
    return CUDA, {name: _option(name, value) for name, value in {**chosen, **options}.items()}


def cuda_graph_obstacle(model: Source) -> str:
    """Why no run of `model` can be captured in a CUDA graph (the provider option
    enable_cuda_graph); empty if nothing in the model says so.

    `model` is a path or the bytes of the file, of which only the metadata are read. `optimize`
    writes the answer; for a model that it has not written, the answer says so. Raises InputError
    for a file that is no ONNX model, and for metadata that are none.
    """
    answer = read_metadata(model).get(CUDA_GRAPH)
    if answer is None:
        return (
            f"{_name(model)} does not say whether its runs can be captured. Run: onnxbolt optimize"
        )
    if answer == POSSIBLE:
        return ""
    reason = answer.removeprefix(IMPOSSIBLE)
    if not reason or reason == answer or not reason.isprintable():
        raise InputError(
            f"{_name(model)}: the metadata entry {CUDA_GRAPH} is {ascii(answer)[:60]}, neither"
            f" {POSSIBLE} nor {IMPOSSIBLE}and a reason. Run: onnxbolt optimize"
        )
    return reason


def _sizes_to_suit(metadata: Mapping[str, str], model: Source) -> str:
    """FIXED or OPEN: the sizes of the convolutions that are left to ONNX Runtime. Where none is
    left, those of the inputs, since function bodies convolve where there is no library."""
    left, inputs = (metadata.get(name, "") for name in (CONVOLUTIONS, INPUTS))
    for name, value, known in (
        (CONVOLUTIONS, left, (NONE, FIXED, OPEN)),
        (INPUTS, inputs, (FIXED, OPEN)),
    ):
        if value not in known:
            raise InputError(
                f"{_name(model)}: the metadata entry {name} is {value[:40]!r}, none of"
                f" {', '.join(known)}. Run: onnxbolt optimize"
            )
    return inputs if left == NONE else left


def _option(name: str, value: object) -> str:
    """A provider option as ONNX Runtime takes it: True is 1."""
    if not isinstance(value, str | int):
        raise InputError(f"{name}={value!r} is no provider option: give a text or a whole number")
    return value if isinstance(value, str) else str(int(value))


def keep_channels(options: ort.SessionOptions) -> None:
    """Disable ONNX Runtime's reordering of channels for its CPU kernels, on which some fp16 models
    crash."""
    leave_out(options, [CPU_CHANNELS])


def leave_out(options: ort.SessionOptions, optimizers: Iterable[str]) -> None:
    """Disable these of ONNX Runtime's optimizers, unless `options` disable some already. The
    argument `disabled_optimizers` of a session would replace what options disable."""
    if not _entry(options, _OFF):
        options.add_session_config_entry(_OFF, ";".join(optimizers))


@functools.cache
def cuda_failure(device: int = 0) -> str:
    """Why ONNX Runtime's CUDA provider, though onnxruntime lists it, does not run on GPU `device`;
    empty where it does.

    The list says what onnxruntime was compiled with. Whether CUDA's and cuDNN's libraries are there
    shows when a session is made, and ONNX Runtime then goes on without the provider; only the
    kernels that need it fail.
    """
    import numpy as np
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        with warnings.catch_warnings(action="ignore"):
            session = ort.InferenceSession(
                _SMALLEST,
                options,
                providers=[(CUDA, {"device_id": str(device)}), "CPUExecutionProvider"],
            )
            session.run(None, {"x": np.ones(1, np.float32)})
    except Exception as error:  # onnxruntime's own exceptions derive from Exception alone
        return f"{_NO_PROVIDER}: {' '.join(str(error).split())[:300]}"
    return "" if CUDA in session.get_providers() else f"{_NO_PROVIDER}: {_REMEDY}"


def _settings(providers: Sequence[Provider]) -> dict[str, dict[str, Any]]:
    """Provider options by provider name."""
    return dict((provider, {}) if isinstance(provider, str) else provider for provider in providers)


def _why_not(options: ort.SessionOptions, available: Sequence[str]) -> str:
    """The reason why no library can be used here, whichever it is; empty if there is none."""
    if _entry(options, ENABLE) == "0":
        return f'the session configuration entry {ENABLE} is "0"'
    if CUDA not in available:
        return "this onnxruntime has no CUDA provider: install onnxruntime-gpu"
    return ""


def _entry(options: ort.SessionOptions, key: str) -> str:
    try:
        return str(options.get_session_config_entry(key))
    except RuntimeError:  # raised if the entry is not set
        return ""


def _load(
    model: Source,
    library: Path | str | None,
    sha256: str | None,
    digest: str,
    device: int,
    options: ort.SessionOptions,
) -> str:
    """Register the library, or return the reason why this machine cannot use it. The library is
    loaded only after it is known to belong to the model."""
    if library is not None:
        path = Path(library)
    elif isinstance(model, bytes):
        return (
            "the model was given as bytes, so its library cannot be looked for beside"
            " it: pass `library`"
        )
    else:
        path = get_library_path(model)
    if not path.exists():
        return f"{path} does not exist. Run: onnxbolt build {_name(model)}"
    found = Library(path, f"Run: onnxbolt build {_name(model)}", sha256)
    if found.digest != digest:
        raise LibraryError(
            f"{path} is not the library of {_name(model)}: its digest is"
            f" {found.digest[:12]}, the model's is {digest[:12]}. {found.remedy}"
        )
    arch, reason = found.probe(device)
    reason = reason if not arch else cuda_failure(device)
    if reason:
        return reason
    options.add_session_config_entry(DEVICE, str(device))
    options.register_custom_ops_library(found.loadable)
    return ""


def _name(model: Source) -> str:
    return "<model>" if isinstance(model, bytes) else str(model)
