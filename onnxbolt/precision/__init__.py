"""Stage 3: fp32 parts of a graph become fp16 or bf16 where that is safe.

Weights and compute are 16-bit, graph inputs and outputs keep their types. Which operations stay in
fp32, and why, is data (`Kept`): see `ops` for the tables, `decide` for the rules, `apply` for the
change itself.
"""

from __future__ import annotations

import onnx
import onnx_graphsurgeon as gs

from onnxbolt.dtypes import DType
from onnxbolt.graph import promises
from onnxbolt.graph.bodies import Changed, bodies_of, import_within, put_back
from onnxbolt.graph.exporter import export_apart
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.promises import stage
from onnxbolt.graph.shapes import infer
from onnxbolt.graph.weights import Weights, complete
from onnxbolt.precision.apply import Conversion
from onnxbolt.precision.constants import Constants
from onnxbolt.precision.decide import Decision, Kept
from onnxbolt.precision.kernel_table import Kernels, kernels_of
from onnxbolt.precision.lift import lift_casts

__all__ = ["Kept", "convert", "rounded_apart", "rounded_original"]

LOW = {"fp16": DType.F16, "bf16": DType.BF16}


@stage(requires=promises.SOUND, ensures=promises.KEPT)
def convert(
    graph: gs.Graph,
    precision: str,
    kernels: Kernels | None = None,
    between: frozenset[gs.Node] = frozenset(),
) -> list[Kept]:
    """Convert `graph` in place to "fp16" or "bf16" ("keep": no change), and return the nodes that
    stay in fp32.

    `kernels` are those of the ONNX Runtime that will run the model, by default of the installed
    one. `between` are nodes between codes, which stay. Tensors' dtypes have to be known
    (shapes.infer) and are right afterwards.
    """
    if precision not in LOW:
        return []
    constants = Constants(LOW[precision])
    decision = Decision(graph, LOW[precision], constants, kernels or kernels_of(), between)
    kept = decision.kept(graph)
    Conversion(graph, decision, constants).run()
    lift_casts(graph)
    return kept


def rounded_original(model: onnx.ModelProto, precision: str) -> onnx.ModelProto:
    """The model with only its types changed. Its error is that of rounding alone, the yardstick of
    verification."""
    return complete(*rounded_apart(model, precision))


def rounded_apart(model: onnx.ModelProto, precision: str) -> tuple[onnx.ModelProto, Weights]:
    """As `rounded_original`; the second result has the data that the model's initializers lack."""
    if precision not in LOW:
        return model, {}
    graph = import_model(model)
    put_back(graph, _rounded(graph, precision))
    return export_apart(graph)


def _rounded(graph: gs.Graph, precision: str) -> list[Changed]:
    """Convert the graph and those of its bodies, which are returned."""
    infer(graph)
    found, _ = bodies_of(graph)
    convert(graph, precision)
    inner = [(body, import_within(body.model, graph)) for body in found]
    return [Changed(body, own, _rounded(own, precision)) for body, own in inner]
