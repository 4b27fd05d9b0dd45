"""Names of kernels as Nsight Compute prints them. tests/e2e/test_library.py finds those of a
library that was compiled."""

from __future__ import annotations

import pytest

from onnxbolt.kernel_names import as_printed, kernel_names

KERNEL = (
    "void onnxbolt::sm90::PersistentKernel<onnxbolt::sm90::KernelShape<onnxbolt::Config<90l, -1l>,"
    " cutlass::half_t, onnxbolt::epilogue::Chain<onnxbolt::epilogue::Bias>, 64, 0, false>, true,"
    " onnxbolt::sm90::TileEnd<onnxbolt::A<3> > >(onnxbolt::sm90::TileEnd<onnxbolt::A<3> >::Params)"
)


def test_constants_have_their_types_and_parameters_are_left_out() -> None:
    assert as_printed(KERNEL) == (
        "void onnxbolt::sm90::PersistentKernel<onnxbolt::sm90::KernelShape<onnxbolt::Config<"
        "(long)90, (long)-1>, cutlass::half_t, onnxbolt::epilogue::Chain<onnxbolt::epilogue::Bias>,"
        " (int)64, (int)0, (bool)0>, (bool)1, onnxbolt::sm90::TileEnd<onnxbolt::A<(int)3>>>"
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("f(int)", "f"),
        ("void f<true>(a)", "void f<(bool)1>"),
        ("void f<half2, sm90>()", "void f<half2, sm90>"),
        ("void f<g<1> (*)(int)>(x)", "void f<g<(int)1> (*)(int)>"),
        ("unusual", "unusual"),
    ],
)
def test_other_names(name: str, expected: str) -> None:
    assert as_printed(name) == expected


def test_bytes_that_are_no_library() -> None:
    with pytest.raises(ValueError, match="not a 64-bit ELF file"):
        kernel_names(b"\x7fELF", [])
