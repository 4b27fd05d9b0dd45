"""One form for each thing, so that matching needs to know only that one.

Every pass keeps the value of each tensor name of the source model that is still bound, and records
in `provenance` of the nodes that it makes which source nodes they stand for. Passes are repeated
until none finds anything to do.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_graphsurgeon as gs

from onnxbolt.canonicalize import (
    activations,
    batchnorm,
    branches,
    concat_form,
    constant_fold,
    conv_form,
    expand_form,
    flatten,
    gemm_form,
    mean_form,
    noops,
    pad_form,
    resize_form,
    scale_shift,
    sum_form,
)
from onnxbolt.graph import promises
from onnxbolt.graph.edit import prune
from onnxbolt.graph.promises import stage
from onnxbolt.graph.shapes import infer

PASSES: list[tuple[Callable[[gs.Graph], int], str]] = [
    (noops.run, "first, since an Identity before a weight hides that it is constant"),
    (
        constant_fold.run,
        "weights and shapes that are computed become constants for all that follows",
    ),
    (pad_form.run, "a convolution has a border of zeros for nothing"),
    (conv_form.run, "kernels are told pads, not auto_pad"),
    (resize_form.run, "layouts then need not follow what computes sizes"),
    (concat_form.run, "layouts then see which channels are the same"),
    (expand_form.run, "a gate keeps its size, and matching sees what it gates"),
    (mean_form.run, "layouts then see a pooling, and that nothing moves behind it"),
    (sum_form.run, "matching then knows one kind of residual"),
    (gemm_form.run, "before the foldings, which then know one kind of product"),
    (
        batchnorm.run,
        (
            "before scale_shift, since a BatchNormalization between Conv and Mul hides the one from"
            " the other"
        ),
    ),
    (scale_shift.run, "after the weights are constant and the products in form"),
    (
        branches.run,
        (
            "after the foldings, when each branch is one Conv, or a BatchNormalization that no Conv"
            " can take"
        ),
    ),
    (activations.run, "before flatten, which may then pass one node rather than a decomposition"),
    (flatten.run, "last, when what stands between two Reshapes is in its shortest form"),
]
_MOST_ROUNDS = 10


@stage(requires=promises.SOUND, ensures=promises.KEPT)
def canonicalize(graph: gs.Graph) -> list[str]:
    """Bring the graph to one form, in place; returns a line for each pass that changed
    something, and for what it nearly changed."""
    log: list[str] = []
    count = 1
    for _ in range(_MOST_ROUNDS):
        before = len(log)
        for run, reason in PASSES:
            if count:  # else the shapes are those that the pass before saw
                infer(graph)
            count = run(graph)
            if count:
                log.append(f"{run.__module__.rpartition('.')[2]}: {count} ({reason})")
        if len(log) == before:
            break
    prune(graph)
    infer(graph)
    return log + branches.unmerged(graph)
