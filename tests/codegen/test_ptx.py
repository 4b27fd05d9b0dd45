"""The reading of PTX on a few lines of it."""

from __future__ import annotations

import pytest

from tests.codegen.ptx import Kernel, kernels

_TEXT = """
.visible .entry first(
	.param .align 8 .b8 first_param_0[64]
)
{
	.reg .b64 	%rd<9>;
	mov.b64 	%rd1, first_param_0;
	add.s64 	%rd2, %rd1, 16;
	ld.param.v2.u64 	{%rd3, %rd4}, [%rd2+8];
	cvta.to.global.u64 	%rd5, %rd4;
	ld.global.f32 	%f1, [%rd5+4];
	setp.eq.s32 	%p1, %r1, 0;
	@%p1 bra 	$L__BB0_2;

	// begin inline asm
	griddepcontrol.wait;
	// end inline asm
	st.global.f32 	[%rd5], %f1;

$L__BB0_2:
	ld.global.v2.f32 	{%f2, %f3}, [%rd6];
	{
	.reg .pred P1;
	AGAIN:
	mbarrier.try_wait.parity.shared::cta.b64 P1, [%r2], %r3;
	@P1 bra DONE;
	bra AGAIN;
	DONE:
	}
	cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes \
[%r4], [%rd2, {%r5, %r6}], [%r7];
	ret;

}
"""


@pytest.fixture
def kernel() -> Kernel:
    (kernel,) = kernels(_TEXT)
    return kernel


def test_what_every_path_waits_for_is_not_early(kernel: Kernel) -> None:
    assert [access.opcode.partition(".2d")[0] for access in kernel.early()] == [
        "ld.global.f32",
        "ld.global.v2.f32",
        "cp.async.bulk.tensor",
    ]


def test_addresses_come_from_places_in_the_parameter(kernel: Kernel) -> None:
    first, unknown, copy = kernel.early()
    assert kernel.offsets(first) == {32}  # the second of two pointers that lie from 24 on
    assert kernel.offsets(unknown) == set()
    assert kernel.offsets(copy) == {16}  # a tensor map


def test_shared_memory_is_no_access(kernel: Kernel) -> None:
    assert not any(
        each.is_global for each in kernel.instructions if each.opcode.startswith("mbarrier")
    )


def test_a_table_of_branches_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be followed"):
        kernels(_TEXT.replace("bra AGAIN;", "brx.idx %r1, table;"))
