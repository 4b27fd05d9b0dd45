"""Rewrites equivalent forms of a computation into one, so that matching needs to know only that.

Every pass keeps the value of each tensor of the source model that is still there under its name,
and records in `provenance` of the nodes that it makes which source nodes they replace. Passes are
repeated until none finds anything to do.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_graphsurgeon as gs

from onnxbolt.canonicalize import (
    activations,
    attention_form,
    batchnorm,
    bias_form,
    block_form,
    branches,
    channel_norm_form,
    concat_form,
    constant_fold,
    contrib_group_norm,
    contrib_norm_form,
    conv_form,
    conv_transpose_form,
    cut_form,
    einsum_form,
    embedding_form,
    expand_form,
    flatten,
    gemm_form,
    glu_form,
    group_norm_form,
    index_form,
    max_form,
    mean_form,
    noops,
    norm_form,
    pad_form,
    patch_form,
    position_form,
    quantized,
    rearranged_activations,
    reshaped_sums,
    resize_form,
    rotary_form,
    scale_shift,
    shape_form,
    snake_form,
    split_axes,
    sum_form,
    transpose_form,
    whole_window_form,
)
from onnxbolt.graph import promises
from onnxbolt.graph.edit import prune
from onnxbolt.graph.promises import stage
from onnxbolt.graph.shapes import infer
from onnxbolt.graph.stages import Stages

# each pass with what it does, for the report; a comment says why a pass stands where it does
PASSES: list[tuple[Callable[[gs.Graph], int], str]] = [
    # the passes below would change the operators that rotations are written as
    (rotary_form.run, "rotations of pairs of columns recognized"),
    # an Identity before a weight would hide that the weight is constant
    (noops.run, "nodes without effect removed"),
    # a constant of codes would be computed as values
    (quantized.run, "quantized models written with DequantizeLinear and QuantizeLinear alone"),
    # the passes below need constant weights and shapes
    (constant_fold.run, "constant expressions computed"),
    (pad_form.run, "Pads by zeros moved into convolutions"),
    (conv_form.run, "attributes of convolutions and pads of poolings made explicit"),
    (conv_transpose_form.run, "ConvTranspose without strides written as Conv"),
    # attributes are explicit now
    (cut_form.run, "Slices behind convolutions written as other pads"),
    (block_form.run, "blocks of pixels that become channels folded into convolutions"),
    (resize_form.run, "computed sizes of Resize replaced by constant scales"),
    (concat_form.run, "Splits and Concats inside a Concat removed"),
    (expand_form.run, "Expands replaced by broadcasting"),
    (index_form.run, "neighbouring entries gathered by a Slice"),
    (mean_form.run, "means over an image written as GlobalAveragePool"),
    (max_form.run, "GlobalMaxPools written as MaxPool"),
    (sum_form.run, "Sum written as Add"),
    (einsum_form.run, "Einsums that permute axes written as Transpose"),
    # projections and masks that it makes are canonicalized as others
    (attention_form.run, "ONNX Runtime's attention divided into projections, masks and attention"),
    # the next passes recognize what it writes
    (contrib_norm_form.run, "ONNX Runtime's norms of sums written as sums and norms"),
    # it looks for Adds of tensors whose shapes are known without an Expand
    (embedding_form.run, "constant terms of sums of embeddings added up"),
    (split_axes.run, "axes transposed before they are divided"),
    # the next pass recognizes what it writes
    (channel_norm_form.run, "normalizations of channels written as those of rows"),
    # a factor behind a normalization would be folded into the next weights
    (norm_form.run, "decomposed normalizations recognized"),
    # the next pass recognizes what it writes
    (contrib_group_norm.run, "ONNX Runtime's group normalizations written as operators of ONNX"),
    # so would gamma and beta of groups
    (group_norm_form.run, "normalizations of groups recognized"),
    # it looks for normalizations, of which some were decomposed
    (reshaped_sums.run, "Reshapes of sums moved in front of them"),
    # the foldings below look for one form of product
    (gemm_form.run, "Gemm written as MatMul and Add"),
    # scale_shift folds the constants in front of the Transpose
    (transpose_form.run, "Transposes to NCHW moved behind factors and residuals"),
    # a BatchNormalization between Conv and Mul hides them from scale_shift
    (batchnorm.run, "BatchNormalization folded into weights"),
    (scale_shift.run, "constant factors and summands folded into weights"),
    # a row that is added everywhere has become a bias
    (position_form.run, "products of constant rows computed"),
    # scale_shift folds the normalization of pixels into the convolution
    (patch_form.run, "patch embeddings written as matrix products"),
    (whole_window_form.run, "convolutions of whole images written as matrix products"),
    # each branch is now one Conv, or a BatchNormalization that no Conv could take
    (branches.run, "parallel convolutions merged"),
    # formulas of activations have no bias
    (bias_form.run, "biases of activations written as Add"),
    # flatten passes one activation node, but not the nodes of a decomposition
    (activations.run, "decomposed activations recognized"),
    # a decomposed activation would read its argument twice, as if that were stored
    (shape_form.run, "sizes read from images that are stored anyway"),
    (snake_form.run, "Snake activations recognized"),
    # an activation is one node now
    (rearranged_activations.run, "activations moved in front of Reshapes and Transposes"),
    (glu_form.run, "products of gated units divided"),
    # the nodes between two Reshapes are now in their shortest form
    (flatten.run, "Reshapes around a product removed"),
]
_MOST_ROUNDS = 10


@stage(requires=promises.SOUND, ensures=promises.KEPT)
def canonicalize(graph: gs.Graph, stages: Stages | None = None) -> list[str]:
    """Run all passes on the graph, in place, but for those that `stages` leave out. Returns a line
    for each pass that changed something, and one for each parallel convolution that could not be
    merged."""
    stages, log = stages or Stages(), list[str]()
    count = 1
    for _ in range(_MOST_ROUNDS):
        before = len(log)
        for run, effect in PASSES:
            name = run.__module__.rpartition(".")[2]
            if stages.leaves_out(name):
                continue
            if count:  # else the shapes are the same as for the previous pass
                infer(graph)
            count = run(graph)
            if count:
                log.append(f"{name}: {count} ({effect})")
                stages.changed.setdefault(name, effect)
        if len(log) == before:
            break
    prune(graph)
    infer(graph)
    return log + branches.unmerged(graph)
