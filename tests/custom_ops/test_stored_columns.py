"""How many columns a unit of a tile has: the planner's formulas for shared memory and the
kernels agree."""

from __future__ import annotations

import subprocess
from pathlib import Path

from onnxbolt.dtypes import DType
from onnxbolt.families.blocks.staging import stored_columns
from tests.codegen.compilation import compile_program

COLUMNS = (*range(8, 129, 8), 144, 160, 176, 192, 208, 224, 240, 256)
_PROGRAM = """
#include <cstdio>
#include "sm90/tensor_map.h"
using namespace onnxbolt::sm90;

int main() {
  for (int columns : {COLUMNS}) {
    for (bool residual : {false, true})
      std::printf("%d %d %d\\n", StoredColumns<cutlass::half_t>(columns, residual),
                  StoredColumns<cutlass::bfloat16_t>(columns, residual),
                  StoredColumns<float>(columns, residual));
  }
}
"""


def test_planner_and_kernels_store_the_same_columns_at_once(tmp_path: Path) -> None:
    program = compile_program(
        tmp_path / "columns.cu", _PROGRAM.replace("COLUMNS", ", ".join(map(str, COLUMNS)))
    )
    printed = subprocess.run(
        [str(program)], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    expected = [
        " ".join(
            str(stored_columns(columns, out, residual))
            for out in (DType.F16, DType.BF16, DType.F32)
        )
        for columns in COLUMNS
        for residual in (False, True)
    ]
    assert printed == expected
