"""Every error that onnxbolt raises on purpose. Each message says what, where, and what to do.

OnnxboltError                 exit code 1
├── InputError                the model, a file or an option is not usable as given
│   ├── AdviceError           no advice that `explain --write-model` could follow;
│   │                         carries the explanation
│   └── OpsetError            opset or IR version outside what onnx and ONNX Runtime know
│       └── LiftError         an older opset whose operators have no newer form;
│                             `optimize` writes such a model as it is
├── BuildError                the CUDA compiler or the linker failed;
│   │                         carries the command, its log and the source
│   └── ToolchainError        no compiler, no CUTLASS: names the extra to install
├── LibraryError              a custom-op library is missing, damaged, or belongs to another model
├── RejectedError             carries the report
│   ├── AccuracyError         exit code 3: an output differs by more than its limit
│   ├── CoverageError         exit code 4: fused nodes do less of the work than --require-fused
│   └── SpeedError            exit code 4: the speed-up is below --min-speedup
└── FrozenError               exit code 5: the lock file lacks what --frozen needs
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnxbolt.advice.explanation import Explanation
    from onnxbolt.report import Report


class OnnxboltError(Exception):
    """Base of all; `exit_code` is what the command line returns."""

    exit_code = 1


class InputError(OnnxboltError):
    """A model, file or option that cannot be used as given."""


class AdviceError(InputError):
    """There is no advice to follow, so that no model is written; `explanation` says why."""

    def __init__(self, message: str, explanation: Explanation) -> None:
        super().__init__(message)
        self.explanation = explanation


class OpsetError(InputError):
    """The model's opset or IR version is outside the supported range."""


class LiftError(OpsetError):
    """An operator of the model cannot be converted to the opset that the stages work on; the
    message says which one and why."""


class BuildError(OnnxboltError):
    """Compiling or linking failed."""

    def __init__(self, message: str, command: str = "", log: str = "", source: str = "") -> None:
        super().__init__(message)
        self.command, self.log, self.source = command, log, source


class ToolchainError(BuildError):
    """A compiler or its headers are missing."""


class LibraryError(OnnxboltError):
    """The custom-op library is missing, damaged, or was built for another model."""


class RejectedError(OnnxboltError):
    """The optimized model does not meet a requirement; `report` has the details."""

    def __init__(self, message: str, report: Report) -> None:
        super().__init__(message)
        self.report = report


class AccuracyError(RejectedError):
    """The optimized model's outputs differ from the original's by more than their limits."""

    exit_code = 3


class CoverageError(RejectedError):
    """Fused nodes do a smaller share of the FLOPs than --require-fused asks for."""

    exit_code = 4


class SpeedError(RejectedError):
    """The optimized model's speed-up over ONNX Runtime is below --min-speedup."""

    exit_code = 4


class FrozenError(OnnxboltError):
    """With --frozen: the lock file lacks a decision, or was made for other kernels."""

    exit_code = 5
