"""Parameters of a chain's layers, which a node has in one list: each layer's kernel gets its
own."""

from __future__ import annotations

import subprocess
from pathlib import Path

from onnxbolt.families.b2b_gemm_sm90 import B2bGemmSm90Config
from tests.codegen.compilation import compile_program

_PROGRAM = """
#include <cstdio>
#include "b2b/layers.h"
#include "epilogue/chain.h"
using namespace onnxbolt;
using namespace onnxbolt::epilogue;
using Layers = ChainLayers<Config<ROW>, Chain<Bias, Clip>, Chain<Bias, Relu>,
                           Chain<LeakyRelu, HardSigmoid>>;

int main() {
  ChainArguments chain{};
  for (int i = 0; i < kMaxParams; ++i) chain.epilogue[0].params[i] = float(i + 1);
  const ChainArguments spread = Layers::spread_params(chain);
  for (int layer = 0; layer < Layers::kLayers; ++layer) {
    const float* params = spread.epilogue[layer].params;
    for (int i = 0; i < Layers::params(layer); ++i) std::printf("%g ", params[i]);
    std::puts("");
  }
}
"""


def test_each_layer_of_a_b2b_kernel_gets_its_own_parameters(tmp_path: Path) -> None:
    config = B2bGemmSm90Config(
        arch=90,
        rows=64,
        columns=16,
        depth=16,
        later=(16, 16, 0),
        stages=0,
        tma_rows=True,
        consumers=2,
        resident=False,
    )
    program = compile_program(
        tmp_path / "params.cu", _PROGRAM.replace("ROW", ", ".join(map(str, config.row())))
    )
    lines = subprocess.run(
        [str(program)], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert [line.split() for line in lines] == [["1", "2"], [], ["3", "4", "5"]]
