"""The mutants. Each replaces a text, which stands once in its file, by another, and names the
tests that should find it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """`tests`: files, folders or node ids for pytest, relative to the repository's root."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def _mutants(file: str, tests: str, *changes: tuple[str, str, str]) -> list[Mutant]:
    """The mutants of one file: names, old and new texts; `tests` are separated by spaces."""
    return [Mutant(name, file, old, new, tuple(tests.split())) for name, old, new in changes]


MUTANTS: tuple[Mutant, ...] = (
    # epilogue functors, compiled for the host
    *_mutants(
        "custom_ops/epilogue/steps.h",
        "tests/custom_ops/test_steps.py",
        ("HardSwish divides by 5", "x * (1.f / 6.f) + 0.5f", "x * (1.f / 5.f) + 0.5f"),
        (
            "LeakyRelu for positive values",
            "return x < 0.f ? x * alpha[0] : x;",
            "return x > 0.f ? x * alpha[0] : x;",
        ),
        ("Elu without its minus one", "alpha[0] * expm1f(x)", "alpha[0] * expf(x)"),
        ("GeluErf of x instead of x / sqrt(2)", "erff(x * 0.70710678f)", "erff(x)"),
        (
            "Clip swallows NaN",
            "return clamp(x, bounds[0], bounds[1]);",
            "return fminf(fmaxf(x, bounds[0]), bounds[1]);",
        ),
    ),
    *_mutants(
        "custom_ops/epilogue/approximations.h",
        "tests/custom_ops/test_approximations.py",
        (
            "two GELU coefficients swapped",
            "1.58142843f, -6.77542089f, -17.9578466f",
            "1.58142843f, -17.9578466f, -6.77542089f",
        ),
        (
            "approximate Softplus without the maximum",
            "return fmaf(e, slope, maximum(x, 0.f));",
            "return fmaf(e, slope, x);",
        ),
    ),
    *_mutants(
        "custom_ops/epilogue/pairs.h",
        "tests/custom_ops/test_pairs.py",
        (
            "two fp16 GELU coefficients swapped",
            "-0.0728759765625f, 0.048492431640625f, -0.00602",
            "0.048492431640625f, -0.0728759765625f, -0.00602",
        ),
        (
            "halves of a pair exchanged",
            '"=r"(pair) : "f"(second), "f"(first));\n  else',
            '"=r"(pair) : "f"(first), "f"(second));\n  else',
        ),
        ("a coefficient that is no fp16 number", "-0.98583984375f", "-0.9858f"),
    ),
    *_mutants(
        "custom_ops/profiler/steps.h",
        "tests/custom_ops/test_steps.py",
        (
            "the tuner's reference has another Mish",
            "x * tanh(LogOfOnePlusExp(x))",
            "x * Logistic(x)",
        ),
        (
            "the tuner's reference takes PRelu's slope for positive values",
            "x < 0 ? x * v : x",
            "x > 0 ? x * v : x",
        ),
        (
            "the tuner's bounds forget the argument's error",
            "return {y, fmax(above, below) + ",
            "return {y, ",
        ),
    ),
    # programmatic dependent launch, by the kernels' PTX
    *_mutants(
        "custom_ops/families/pool/kernel.h",
        "tests/codegen/test_dependent_launch.py",
        (
            "pooling does not wait",
            "  WaitForPredecessors();\n  if constexpr (R > 0)",
            "  if constexpr (R > 0)",
        ),
    ),
    *_mutants(
        "custom_ops/sm90/producer.h",
        "tests/codegen/test_dependent_launch.py",
        (
            "a producer of tiles has a way around the wait",
            "const int early = load_early_weights();\n    WaitForPredecessors();",
            "const int early = load_early_weights();\n    if (early) WaitForPredecessors();",
        ),
    ),
    *_mutants(
        "custom_ops/families/elementwise/kernel.h",
        "tests/codegen/test_dependent_launch.py",
        (
            "elementwise kernels do not wait",
            "  WaitForPredecessors();\n  for (int64_t row = first;",
            "  for (int64_t row = first;",
        ),
    ),
    # host code of the kernels and of the library
    *_mutants(
        "custom_ops/sm90/convolution.h",
        "tests/custom_ops/test_im2col.py",
        (
            "im2col's lower corner one pixel off",
            "{conv.h, conv.stride_h, -conv.pad_top,",
            "{conv.h, conv.stride_h, 1 - conv.pad_top,",
        ),
        (
            "im2col's upper corner from the left padding",
            "conv.pad_right - conv.dilation_w * (conv.s - 1)",
            "conv.pad_left - conv.dilation_w * (conv.s - 1)",
        ),
    ),
    *_mutants(
        "custom_ops/sm90/phase_places.h",
        "tests/custom_ops/test_phase_places.py",
        (
            "all slices of y that a slice makes lie in the first",
            "int64_t(image) * slices + z",
            "int64_t(image) * slices",
        ),
    ),
    *_mutants(
        "custom_ops/ops/pool/pool.cc",
        "tests/custom_ops/test_pool3d_in_ort.py",
        (
            "pads along the depth are exchanged",
            "a.pad_top = AsInt(window.begin[kDepth]), a.pad_bottom = AsInt(window.end[kDepth]);",
            "a.pad_top = AsInt(window.end[kDepth]), a.pad_bottom = AsInt(window.begin[kDepth]);",
        ),
    ),
    *_mutants(
        "custom_ops/ops/pool/pool.cc",
        "tests/custom_ops/test_library_in_ort.py",
        (
            "a pool's pad_right is pad_left",
            "a.count_include_pad = count_include_pad_",
            "a.pad_right = a.pad_left, a.count_include_pad = count_include_pad_",
        ),
    ),
    *_mutants(
        "custom_ops/ops/shared/convolution.cc",
        "tests/custom_ops/test_library_in_ort.py",
        (
            "a convolution's pad_right is pad_left",
            "a.groups = AsInt(groups_)",
            "a.pad_right = a.pad_left, a.groups = AsInt(groups_)",
        ),
    ),
    *_mutants(
        "custom_ops/ops/shared/window.cc",
        "tests/custom_ops/test_library_in_ort.py",
        (
            "ceil_mode lets a window begin in the padding",
            "return (extent - 1) * stride[axis] >= input + begin[axis] ? extent - 1 : extent;",
            "return extent;",
        ),
        (
            "dilation left out of a window's reach",
            "dilation[axis] * (kernel[axis] - 1) - 1;\n  if (span < 0)",
            "(kernel[axis] - 1) - 1;\n  if (span < 0)",
        ),
    ),
    *_mutants(
        "custom_ops/runtime/placement.cc",
        "tests/custom_ops/test_slices_in_ort.py",
        (
            "slices end one channel early",
            "input.back() = end - begin;",
            "input.back() = end - begin - 1;",
        ),
    ),
    *_mutants(
        "custom_ops/runtime/device.cc",
        "tests/custom_ops/test_selection.py",
        (
            "kernels for a newer GPU of the family are taken",
            "least / 10 == gpu / 10 && least < gpu;",
            "least / 10 == gpu / 10;",
        ),
        (
            "sm_90a's kernels run on what comes behind it",
            "!arch.alone && least / 10",
            "least / 10",
        ),
    ),
    *_mutants(
        "custom_ops/runtime/kernel_table.cc",
        "tests/custom_ops/test_selection.py",
        (
            "kernels are found without their epilogue",
            "!std::strcmp(kernel->epilogue, op.epilogue) &&",
            "true &&",
        ),
    ),
    # tuning
    *_mutants(
        "onnxbolt/measurements/keys.py",
        "tests/measurements/test_keys.py",
        (
            "tuning key without the power limit",
            '"machine": plain(machine)})',
            '"machine": plain(dataclasses.replace(machine, power_limit=0))})',
        ),
        (
            "tuning key without the templates' digest",
            '"machine": plain(machine)})',
            '"machine": plain(dataclasses.replace(machine, templates=""))})',
        ),
    ),
    *_mutants(
        "onnxbolt/measurements/records.py",
        "tests/measurements/test_records.py",
        (
            "a gain within the noise wins",
            "max(LEAST_GAIN * theirs, 3 * our_mad, 3 * their_mad)",
            "LEAST_GAIN * theirs",
        ),
    ),
    *_mutants(
        "onnxbolt/codegen/digest.py",
        "tests/codegen/test_digest.py",
        ("the sources' digest is without the templates", ', resource_dir("templates"))', ", )"),
        (
            "comments are all that is left out of a digest",
            'if token[0] in "/{',
            """if token[0] in "'/{""",
        ),
    ),
    *_mutants(
        "onnxbolt/tune/profiler.py",
        "tests/tune/test_profiler.py",
        ("the tuner accepts one wrong value", "elif not excess <= 1.0:", "elif not excess <= 1e9:"),
    ),
    *_mutants(
        "onnxbolt/tune/acceptance.py",
        "tests/tune/test_acceptance.py",
        (
            "the tuner allows a sum the error of a longer one",
            "arithmetic.accumulation(terms) + handed",
            "arithmetic.accumulation(10 * terms) + handed",
        ),
    ),
    *_mutants(
        "onnxbolt/tune/database.py",
        "tests/tune/test_database.py",
        (
            "a configuration that failed once may be the best",
            "if all(m.status is Status.OK for m in group)",
            "if any(m.status is Status.OK for m in group)",
        ),
        (
            "the measurement of fewest runs counts",
            "key=lambda item: (item[1].runs, item[0])",
            "key=lambda item: (-item[1].runs, item[0])",
        ),
    ),
    # canonicalization
    *_mutants(
        "onnxbolt/canonicalize/batchnorm.py",
        "tests/canonicalize/test_batchnorm.py",
        (
            "BatchNormalization without epsilon",
            'variance + node.attrs.get("epsilon", 1e-5)',
            "variance",
        ),
        ("BatchNormalization's mean is not scaled", "beta - mean * scale", "beta - mean"),
        (
            "BatchNormalization in training mode is folded",
            'node.attrs.get("training_mode", 0) or',
            "False or",
        ),
    ),
    *_mutants(
        "onnxbolt/canonicalize/gemm_form.py",
        "tests/canonicalize/test_gemm_form.py",
        ("Gemm's alpha is lost", "return values if alpha == 1 else", "return values if True else"),
        ("Gemm's beta is lost", "        if beta != 1:\n", "        if False:\n"),
        (
            "Gemms of different alpha share a weight",
            'key = (b.name, node.attrs.get("transB", 0), alpha)\n    if',
            'key = (b.name, node.attrs.get("transB", 0), 1.0)\n    if',
        ),
    ),
    *_mutants(
        "onnxbolt/canonicalize/pad_form.py",
        "tests/canonicalize/test_pad_form.py",
        ("Pad by other values than zero is folded", "or value != 0 or", "or"),
        ("Pad takes the place of a convolution's pads", "[a + b for a, b in", "[a for a, b in"),
    ),
    *_mutants(
        "onnxbolt/canonicalize/conv_form.py",
        "tests/canonicalize/test_conv_form.py",
        ("SAME_UPPER pads as SAME_LOWER", 'mode == "SAME_UPPER" else', 'mode == "SAME_LOWER" else'),
        ("SAME ignores strides", "if stride == 1:", "if stride >= 1:"),
    ),
    *_mutants(
        "onnxbolt/canonicalize/conv_transpose_form.py",
        "tests/canonicalize/test_conv_transpose_form.py",
        (
            "a transposed convolution's odd pad is at the other end",
            'mode == "SAME_UPPER" else',
            'mode == "SAME_LOWER" else',
        ),
        (
            "output_shape ignores strides",
            "totals.append(stride * (size - 1)",
            "totals.append((size - 1)",
        ),
        (
            "a transposed convolution's filter is not reversed",
            "np.flip(apart, tuple(range(2, 2 + rank)))",
            "apart",
        ),
        (
            "groups of a transposed convolution are one",
            "values.reshape(groups, c, k, *values.shape[2:]).swapaxes(1, 2)",
            "values.swapaxes(0, 1)",
        ),
    ),
    *_mutants(
        "onnxbolt/forms.py",
        "tests/ops/test_conv_transpose.py",
        (
            "channels that are no whole accesses are read as they lie",
            "suits = native.last and native.count(count) % multiple == 0",
            "suits = native.last",
        ),
    ),
    *_mutants(
        "onnxbolt/ops/conv_transpose/geometry.py",
        "tests/ops/test_conv_transpose.py",
        ("phases are not cut", "return self.begin % self.stride", "return 0"),
        (
            "a line whose output ends within its phases is stored in rows",
            "return self.cut == (self.padding - self.end) % self.stride == 0",
            "return self.cut == 0",
        ),
    ),
    *_mutants(
        "onnxbolt/ops/conv_transpose/packing.py",
        "tests/ops/test_conv_transpose.py",
        ("taps are not reversed", "return np.flip(apart, at)", "return apart"),
        (
            "dilation of a transposed convolution is left out",
            "slice(axis.front, axis.reach, axis.dilation)",
            "slice(axis.front, axis.front + axis.size)",
        ),
    ),
    *_mutants(
        "onnxbolt/ops/conv_transpose/__init__.py",
        "tests/ops/test_conv_transpose.py",
        (
            "a line is written into a Concat's result",
            "return not lies_in_rows(anchor.node)",
            "return True",
        ),
    ),
    *_mutants(
        "onnxbolt/canonicalize/affine.py",
        "tests/canonicalize/test_batchnorm.py",
        (
            "factors of a transposed convolution are those of its inputs",
            "scale.reshape(groups, 1, width,",
            "scale.reshape(groups, width, 1,",
        ),
    ),
    *_mutants(
        "onnxbolt/canonicalize/scale_shift.py",
        "tests/canonicalize/test_scale_shift.py",
        (
            "c - x becomes x + c",
            '("Sub", True): lambda c: (-np.ones_like(c), c)',
            '("Sub", True): lambda c: (np.ones_like(c), c)',
        ),
        (
            "x / c becomes x * c",
            '("Div", False): lambda c: (1 / c, 0 * c)',
            '("Div", False): lambda c: (c, 0 * c)',
        ),
    ),
    *_mutants(
        "onnxbolt/canonicalize/affine.py",
        "tests/canonicalize/test_batchnorm.py tests/canonicalize/test_scale_shift.py",
        ("a value with other readers is scaled", "if sole_use(graph, x) is not node:", "if False:"),
        (
            "a weight that overflows is folded",
            "return rounded if np.isfinite(rounded.astype(np.float64)).all() else None",
            "return rounded",
        ),
    ),
    *_mutants(
        "onnxbolt/canonicalize/noops.py",
        "tests/canonicalize/test_noops.py",
        (
            "Pad by anything is no operation",
            "pads is not None and not pads.any()",
            "pads is not None",
        ),
        (
            "x / 1 and 1 / x are alike",
            '_COMMUTATIVE = ("Add", "Mul")',
            '_COMMUTATIVE = ("Add", "Mul", "Div")',
        ),
        (
            "Transpose of any order is no operation",
            "list(order) == list(range(len(order)))",
            "len(order) > 0",
        ),
    ),
    *_mutants(
        "onnxbolt/canonicalize/formulas.py",
        "tests/canonicalize/test_activations.py",
        (
            "any factor in front of GELU's bracket",
            "            found.coefficient, formula.coefficient, self._like\n",
            "            formula.coefficient, formula.coefficient, self._like\n",
        ),
        (
            "another x in the same formula",
            "x is None or x is tensor else None",
            "True else None",
        ),
    ),
    # layout
    *_mutants(
        "onnxbolt/forms.py",
        "tests/layout/test_layout.py tests/layout/test_excerpts.py tests/layout/test_split.py",
        ("padding is not filled", "    taken[tuple(where)] = fill\n", ""),
        ("channels of a concatenation begin at 0", "        offset += count\n", ""),
        (
            "LAST_TO_FIRST is FIRST_TO_LAST",
            "4: (0, 3, 1, 2), 5: (0, 4, 1, 2, 3)}",
            "4: (0, 2, 3, 1), 5: (0, 4, 1, 2, 3)}",
        ),
    ),
    *_mutants(
        "onnxbolt/layout/rules/pad.py",
        "tests/layout/test_layout.py",
        (
            "an infinite border meets padded channels",
            "if form.padded and fill and not np.isfinite(fill[0]):",
            "if False:",
        ),
        ("Pad's axes do not follow the layout", "[:, FIRST_TO_LAST[rank]]", ""),
    ),
    *_mutants(
        "onnxbolt/layout/rules/transpose.py",
        "tests/layout/test_layout.py tests/layout/test_pixels.py",
        (
            "a Transpose in NHWC vanishes whatever it does",
            "    if perm == list(range(rank)):\n",
            "    if True:\n",
        ),
    ),
    *_mutants(
        "onnxbolt/layout/rules/reduce.py",
        "tests/layout/test_layout.py",
        (
            "a reduction's axes do not follow the layout",
            "FIRST_TO_LAST[len(node.inputs[0].shape)].index(a) for a in",
            "a for a in",
        ),
    ),
    *_mutants(
        "onnxbolt/layout/places.py",
        "tests/layout/test_slices.py",
        (
            "the last part of a Concat does not complete it",
            "if len(self.written) + 1 == self.count else []",
            "if len(self.written) == self.count else []",
        ),
    ),
    *_mutants(
        "onnxbolt/ops/products.py",
        "tests/layout/test_layout.py tests/layout/test_depthwise.py",
        (
            "weights keep channels that nothing reads",
            "values = take(values, reads.channels, in_axis)",
            "pass",
        ),
        (
            "vectors are not padded",
            "np.ascontiguousarray(take(np.array(values), writes.channels, 0))",
            "np.ascontiguousarray(np.array(values))",
        ),
    ),
    # precision
    *_mutants(
        "onnxbolt/precision/decide.py",
        "tests/test_precision.py",
        (
            "inputs that ONNX wants in fp32 are rounded",
            "if inputs and index in ops.FP32_INPUTS.get(node.op, ()):",
            "if False:",
        ),
        (
            "integers in fp32 are rounded",
            "counts = not reason and self._counts(node)",
            "counts = False",
        ),
    ),
    # planning
    *_mutants(
        "onnxbolt/ops/conv/problem.py",
        "tests/plan/test_problems.py",
        (
            "pads left and bottom exchanged",
            "(rows.pads[0], columns.pads[0], rows.pads[1], columns.pads[1])",
            "(rows.pads[0], rows.pads[1], columns.pads[0], columns.pads[1])",
        ),
    ),
    *_mutants(
        "onnxbolt/ops/conv/problem.py",
        "tests/ops/test_conv3d.py",
        (
            "pads of volumes in pairs",
            "w.pads[0], d.pads[1], h.pads[1],",
            "d.pads[1], w.pads[0], h.pads[1],",
        ),
    ),
    *_mutants(
        "onnxbolt/graph/volumes.py",
        "tests/graph/test_volumes.py",
        ("strides of points are skipped", "self.filter == self.stride == 1", "self.filter == 1"),
        ("slices are no batch", "return n * sizes[0], tuple", "return n, tuple"),
        ("one axis that is a point is enough", "or all(axis.is_point", "or any(axis.is_point"),
    ),
    *_mutants(
        "custom_ops/ops/shared/convolution.cc",
        "tests/custom_ops/test_conv3d_in_ort.py",
        ("slices are one image", "a.n = AsInt(a.n * x);", ""),
        (
            "columns of pixels begin with the pad at their end",
            "a.pad_top = AsInt(window.begin[kDepth])",
            "a.pad_top = AsInt(window.end[kDepth])",
        ),
    ),
    *_mutants(
        "custom_ops/sm90/volume.h",
        "tests/custom_ops/test_im2col.py",
        (
            "the depth's upper corner without the dilation",
            "depth.pad_back - depth.dilation * (depth.filter - 1)",
            "depth.pad_back - (depth.filter - 1)",
        ),
    ),
    *_mutants(
        "onnxbolt/plan/ranges.py",
        "tests/plan/test_ranges.py",
        (
            "the last row of a table ends",
            "max_m=UNBOUNDED if run is runs[-1] else run[-1]",
            "max_m=run[-1]",
        ),
        (
            "rows of a table overlap",
            "least = found[-1].config.max_m + 1 if found else 0",
            "least = found[-1].config.max_m if found else 0",
        ),
    ),
    *_mutants(
        "onnxbolt/families/blocks/access.py",
        "tests/families/test_mma_sync.py",
        (
            "alignment ignores the number of elements",
            "return next(width for width in widths if elements % width == 0)",
            "return next(widths)",
        ),
    ),
    *_mutants(
        "onnxbolt/families/blocks/mma_sync.py",
        "tests/families/test_mma_sync.py",
        (
            "shared memory of one stage",
            "return config.stages * tile_bytes(config.tile, dtype)",
            "return tile_bytes(config.tile, dtype)",
        ),
    ),
    *_mutants(
        "onnxbolt/families/blocks/tiled.py",
        "tests/plan/test_cost.py",
        (
            "K is walked once for all filter positions",
            "return problem.taps * ceil_divide(problem.depth, tile_k)",
            "return ceil_divide(problem.depth, tile_k)",
        ),
    ),
    # rewriting, bodies and export
    *_mutants(
        "onnxbolt/rewrite.py",
        "tests/test_rewrite.py tests/layout/test_layout.py tests/layout/test_depthwise.py",
        (
            "a node keeps what it was called",
            "        node.origin = None\n        node.outputs.clear()",
            "        node.outputs.clear()",
        ),
        (
            "equal constants of other shapes are shared",
            "(values.dtype.str, values.shape, values.tobytes())",
            "(values.dtype.str, values.tobytes())",
        ),
    ),
    *_mutants(
        "onnxbolt/ops/conv/__init__.py",
        "tests/layout/test_depthwise.py",
        (
            "a depthwise convolution keeps its groups",
            'attributes["group"] = len(writes.channels)',
            "pass",
        ),
    ),
    *_mutants(
        "onnxbolt/epilogues/rectifiers.py",
        "tests/ops/test_functions.py",
        (
            "HardSwish's body divides by 5",
            'emit("HardSigmoid", [x], alpha=1.0 / 6.0, beta=0.5)',
            'emit("HardSigmoid", [x], alpha=1.0 / 5.0, beta=0.5)',
        ),
    ),
    *_mutants(
        "onnxbolt/epilogues/gelu.py",
        "tests/ops/test_functions.py",
        ("GELU's body with another cubic", 'emit("Const", 0.044715)', 'emit("Const", 0.044)'),
    ),
    *_mutants(
        "onnxbolt/epilogues/operands.py",
        "tests/ops/test_functions.py tests/custom_ops/test_steps.py",
        (
            "Add takes a vector",
            'operand="tensor",\n    patterns=(Tensor("Add"),)',
            'operand="vector",\n    patterns=(Tensor("Add"),)',
        ),
    ),
    *_mutants(
        "benchmarks/device_time.py",
        "tests/benchmarks/test_end_to_end.py",
        ("a side's device time is its slowest", "p: samples[p].median", "p: -samples[p].median"),
    ),
    *_mutants(
        "onnxbolt/canonicalize/rearranged_activations.py",
        "tests/canonicalize/test_rearranged_activations.py",
        (
            "an activation moves in front of a tensor that others read",
            "while (node := producer(x)) is not None and sole_use(graph, x) is not None:",
            "while (node := producer(x)) is not None:",
        ),
        ("a constant widens the result", "return rank <= len(x.shape) and", "return"),
        ("a Cast is moved", " and step.name not in CASTS.values()", ""),
    ),
    *_mutants(
        "onnxbolt/canonicalize/split_axes.py",
        "tests/canonicalize/test_split_axes.py",
        ("parts of an axis are exchanged", "len(groups) and kept == order", "len(groups)"),
        ("0 for an unknown size", "isinstance(size, int) else -1", "isinstance(size, int) else 0"),
    ),
    *_mutants(
        "onnxbolt/canonicalize/batchnorm.py",
        "tests/canonicalize/test_batchnorm.py",
        ("rows of another width", "2 or target[2] != len(scale)", "2"),
    ),
    *_mutants(
        "onnxbolt/match/projections.py",
        "tests/match/test_projections.py",
        (
            "merged weights in another order",
            "[part.values for part in parts]",
            "[part.values for part in parts[::-1]]",
        ),
        (
            "merged results in another order",
            "merged.joined = tuple(results)",
            "merged.joined = tuple(results[::-1])",
        ),
        (
            "projections that others read are merged",
            "moved.left_over.issuperset(found.result.outputs)",
            "True",
        ),
    ),
    *_mutants(
        "onnxbolt/verify/levels.py",
        "tests/match/test_projections.py",
        (
            "only the first of joined tensors is compared",
            "for piece in tensor.written)",
            "for piece in tensor.written[:1])",
        ),
    ),
    # deployment and verification
    *_mutants(
        "onnxbolt/canonicalize/known_conditions.py",
        "tests/canonicalize/test_known_conditions.py",
        ("a name of a branch twice in the graph", "while taken[free] > 0:", "while False:"),
    ),
    *_mutants(
        "onnxbolt/graph/bodies.py",
        "tests/graph/test_bodies.py tests/e2e/test_bodies.py",
        (
            "constants of a branch that is always taken go to the main graph",
            "graph = changed.graph.source.graph",
            "graph = changed.body.model.graph",
        ),
        (
            "a state keeps its first size",
            "_kept(before, results.get(following), name in supposed)",
            "before",
        ),
        (
            "unequal constants become one",
            "if known is constant or self._sum(known) == self._sum(constant):",
            "if True:",
        ),
        (
            "a constant that changed keeps its name",
            "changed = not (isinstance(constant, Constant) and constant.untouched)",
            "changed = False",
        ),
    ),
    *_mutants(
        "onnxbolt/verify/session.py",
        "tests/verify/test_bodies.py",
        (
            "parts with control flow know their sizes",
            "any(has_bodies(node) for node in nodes)",
            "False",
        ),
    ),
    *_mutants(
        "onnxbolt/verify/rules.py",
        "tests/verify/test_bounds.py tests/test_verify.py",
        ("one draw of signs decides integers", "for _ in range(_CHOICES)", "for _ in range(1)"),
        (
            "all integers behind rounded values are uncertain",
            "spread if is_set(spread) else _spread(value, other)",
            "spread if is_set(spread) else np.full(value.shape, np.inf)",
        ),
        (
            "a normalization reads its sum before it is rounded",
            "                env[name] = self._ended_by(node, env[name])\n",
            "",
        ),
    ),
    *_mutants(
        "onnxbolt/verify/bodies.py",
        "tests/verify/test_bodies.py",
        (
            "loops are compared in their first iteration",
            "return second",
            "return first",
        ),
        (
            "bodies inside of bodies are not compared",
            "yield from rows(inner, given, path)",
            "pass",
        ),
    ),
    *_mutants(
        "onnxbolt/graph/scopes.py",
        "tests/canonicalize/test_known_conditions.py",
        ("readers inside of bodies keep old names", "rename(graph.node, new)", "pass"),
    ),
    *_mutants(
        "onnxbolt/directory.py",
        "tests/test_directory.py",
        (
            "a result replaces another model's original",
            "for path in (job.source, *external_files(job.source))",
            "for path in ()",
        ),
        (
            "names that differ by case alone are two",
            'unicodedata.normalize("NFC", path.as_posix()).casefold()',
            "path.as_posix()",
        ),
        (
            "a fault of one model stops the others",
            "except Exception as error:",
            "except EOFError as error:",
        ),
    ),
    *_mutants(
        "onnxbolt/ci/__init__.py",
        "tests/ci/test_ci.py",
        (
            "a CI chooses what its lock file lacks",
            "lock=job.lock, frozen=True",
            "lock=job.lock, frozen=False",
        ),
    ),
    *_mutants(
        "onnxbolt/ci/base.py",
        "tests/ci/test_base.py",
        ("links of the base are followed", '("-c", "core.symlinks=false")', "()"),
        (
            "the checkout's index is the base's",
            '"GIT_INDEX_FILE": str(Path(self._scratch.name, "index"))',
            '"ONNXBOLT_NO": ""',
        ),
    ),
    *_mutants(
        "onnxbolt/ci/junit.py",
        "tests/ci/test_junit.py",
        ("a failed level passes", "if failed:", "if not rows and failed:"),
    ),
    *_mutants(
        "onnxbolt/report/page/__init__.py",
        "tests/report/page/test_page.py",
        ("embedded JSON may end its script", 'for char in "<>&', 'for char in ">&'),
        ("templates escape nothing", "autoescape=True", "autoescape=False"),
        ("errors of nodes are lost", 'if row["node"]:', 'if not row["node"]:'),
    ),
    *_mutants(
        "onnxbolt/report/page/folding.py",
        "tests/report/page/test_folding.py",
        (
            "layers need not be wired alike",
            "(kind[:-period] == kind[period:]) & same.all(axis=1)",
            "kind[:-period] == kind[period:]",
        ),
    ),
    *_mutants(
        "onnxbolt/report/page/layout.py",
        "tests/report/page/test_layout.py",
        ("blocks may cover each other", "while pools and pools[-1][0] > mean", "while False"),
    ),
    *_mutants(
        "onnxbolt/report/page/tables.py",
        "tests/report/page/test_page.py",
        (
            "measured times are marked as predicted",
            "[ours, numbers.microseconds(ours, measured)]",
            "[ours, numbers.microseconds(ours)]",
        ),
    ),
    *_mutants(
        "onnxbolt/report/reading.py",
        "tests/report/test_reading.py",
        ("the schema is not asked", "_validator()(values)", "_validator()"),
    ),
    *_mutants(
        "onnxbolt/report/diff.py",
        "tests/report/test_diff.py",
        ("times differ without differing", "_NOISE = 0.01", "_NOISE = 0.0"),
    ),
    *_mutants(
        "onnxbolt/report/several.py",
        "tests/report/test_several.py",
        ("the last code counts", "return min(codes, default", "return max(codes, default"),
    ),
    *_mutants(
        "onnxbolt/runtime.py",
        "tests/test_runtime.py",
        ("another model's library is taken", "    if found.digest != digest:\n", "    if False:\n"),
        (
            "the library is registered whatever the providers",
            "if providers is not None and CUDA not in wanted:",
            "if False:",
        ),
        (
            "a session's library is for the first GPU",
            "options.add_session_config_entry(DEVICE, str(device))",
            'options.add_session_config_entry(DEVICE, "0")',
        ),
    ),
    *_mutants(
        "onnxbolt/ops/attention/body.py",
        "tests/ops/test_attention_body.py",
        ("heads counted in one axis of rows", "body.size(x, 2, REST)", "body.size(x, 2)"),
    ),
    *_mutants(
        "onnxbolt/ops/body.py",
        "tests/e2e/test_empty.py",
        (
            "a Concat right before a Reshape",
            'self("Abs", [self("Concat", parts, axis=0)])',
            'self("Concat", parts, axis=0)',
        ),
    ),
    *_mutants(
        "onnxbolt/ops/attention/grids.py",
        "tests/ops/test_attention_position_tables.py",
        (
            "biases of a grid that lack an axis",
            "whole = same and _alike(_broadcast(biases), sizes(to.outputs[0]), open_batch)",
            "whole = same",
        ),
    ),
    *_mutants(
        "onnxbolt/canonicalize/block_form.py",
        "tests/canonicalize/test_block_form.py",
        (
            "blocks that an image's edge cuts are folded",
            "if not whole or len(set(firsts)) < len(firsts):",
            "if len(set(firsts)) < len(firsts):",
        ),
        (
            "pixels that appear twice are folded",
            "if not whole or len(set(firsts)) < len(firsts):",
            "if not whole:",
        ),
        (
            "a Reshape to other heights and widths is a pixel_unshuffle",
            "if not kept or not _are_equal(",
            "if not _are_equal(",
        ),
    ),
    *_mutants(
        "onnxbolt/canonicalize/resize_form.py",
        "tests/canonicalize/test_resize_form.py",
        ("scales are multiplied in fp32 alone", "(np.float32, np.float64)", "(np.float32,)"),
    ),
    *_mutants(
        "onnxbolt/ops/resize/__init__.py",
        "tests/layout/test_resize.py",
        (
            "Transposes move through cubic Resizes",
            'cubic = sampling.mode == "cubic"',
            "cubic = False",
        ),
    ),
    *_mutants(
        "onnxbolt/canonicalize/contrib_group_norm.py",
        "tests/canonicalize/test_contrib_group_norm.py",
        ("GroupNorm of ONNX's epsilon", '.get("epsilon", _EPSILON)', '.get("eps", _EPSILON)'),
        ("SkipGroupNorm without its bias", "for place in (3, 4)]", "for place in (3,)]"),
    ),
    *_mutants(
        "onnxbolt/verify/nudges.py",
        "tests/verify/test_nudges.py",
        ("all weights nudged upwards", "rng.choice([-1.0, 1.0], wide.shape)", "1.0"),
        ("small integers nudged", "stays = exact | ~", "stays = ~"),
    ),
    *_mutants(
        "onnxbolt/verify/whole.py",
        "tests/verify/test_whole.py tests/verify/test_nudges.py",
        (
            "yardsticks without a cap",
            "row.judged(yardsticks.get(row.name, 0.0), models.cap)",
            "row.judged(yardsticks.get(row.name, 0.0))",
        ),
        (
            "one way of rounding",
            "for seed in range(nudges.DRAWS):",
            "for seed in range(0):",
        ),
    ),
    *_mutants(
        "onnxbolt/tolerances.py",
        "tests/test_tolerances.py tests/test_verify.py",
        (
            "infinities of any sign are alike",
            "(np.isnan, np.isposinf, np.isneginf)",
            "(np.isnan, np.isinf)",
        ),
        (
            "the error is divided by itself",
            "float(np.linalg.norm(difference)) / (scale or 1.0)",
            "float(np.linalg.norm(difference)) / (norm or 1.0)",
        ),
        ("twice the yardstick", "RATIO = 1.5 ", "RATIO = 2.0 "),
    ),
)
