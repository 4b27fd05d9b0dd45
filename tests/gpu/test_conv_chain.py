"""Problems that kernels for a convolution and the 1x1 convolutions behind it refuse; test_chain.py
compares their results."""

from __future__ import annotations

from typing import Any

import pytest

from onnxbolt.codegen.render import Instance
from onnxbolt.families import Family, named
from tests.gpu.cases import ALL
from tests.gpu.conv_chains import CONV_SHAPES, FIRST_SHAPES, conv_chain_problem, first_chain_problem
from tests.gpu.device import KernelError, Library

pytestmark = pytest.mark.gpu


def one(family: Family[Any]) -> Instance:
    return next(instance for instance in ALL if instance.config.family is family)


@pytest.mark.parametrize(
    ("part", "field", "value", "reason"),
    [
        ("chain", "layers", 1, "number of layers"),
        ("conv", "groups", 2, "no groups"),
        ("conv", "c", 20, "align_a"),
        ("conv", "stride_w", 9, "TMA's 8"),
        ("chain", "ldd", 3, "16 bytes"),
        ("chain", "m", 2**31 - 1, "close to 2.31"),
    ],
)
def test_what_an_implicit_gemm_is_not_for_is_refused(
    library: Library, part: str, field: str, value: int, reason: str
) -> None:
    problem = conv_chain_problem(library, one(named("b2b_conv_sm90")), CONV_SHAPES[0])
    setattr(getattr(problem.arguments, part), field, value)
    with pytest.raises(KernelError, match=reason):
        library.kernel(one(named("b2b_conv_sm90"))).check(problem.arguments)


def test_an_implicit_gemm_with_layers_behind_it_splits_no_k(library: Library) -> None:
    problem = conv_chain_problem(library, one(named("b2b_conv_sm90")), CONV_SHAPES[0])
    with pytest.raises(KernelError, match="cannot split k"):
        library.kernel(one(named("b2b_conv_sm90"))).launch(problem.arguments, split_k=2)


@pytest.mark.parametrize(
    ("part", "field", "value", "reason"),
    [
        ("chain", "layers", 3, "two layers"),
        ("conv", "x_nchw", 0, "reads NCHW"),
        ("conv", "stride_h", 3, "another filter or stride"),
        ("conv", "k", 2**10, "more channels"),
    ],
)
def test_what_a_first_convolution_is_not_for_is_refused(
    library: Library, part: str, field: str, value: int, reason: str
) -> None:
    problem = first_chain_problem(library, one(named("b2b_stem_sm90")), FIRST_SHAPES[0])
    setattr(getattr(problem.arguments, part), field, value)
    with pytest.raises(KernelError, match=reason):
        library.kernel(one(named("b2b_stem_sm90"))).check(problem.arguments)
