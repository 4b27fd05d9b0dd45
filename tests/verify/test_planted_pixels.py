"""Single pixels and elements that a kernel computes wrongly are found at both levels, whatever the
operator: all elements of all of our nodes are compared."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto

from onnxbolt.families import Family, named
from onnxbolt.graph.exporter import FUSED_DOMAIN
from onnxbolt.opspec import configs_of_node
from onnxbolt.verify import verify
from onnxbolt.verify.feeds import working_feeds
from onnxbolt.verify.models import reference
from onnxbolt.verify.session import CPU, Runner
from tests.gpu.fault_models import MODELS, Prepared, prepare
from tests.gpu.image_models import MODELS as IMAGES
from tests.support import fused

ROW, COLUMN = 77, 2  # a pixel of planted faults, and a channel
# those whose kernels have no product, and read pixels of other places or several of them
FAMILIES = (
    *("pool", "resize", "pixel_shuffle", "grid_sample", "squeeze_excite"),
    *("elementwise", "layout", "norm", "group_norm", "attention"),
)
Fault = Callable[[np.ndarray], None]
_prepared = functools.cache(prepare)


@functools.cache
def _right(name: str) -> Prepared:
    """The models of a family, which pass."""
    made = _prepared(named(name))
    assert verify(made.original, made.optimized, providers=[CPU]).passed
    return made


def _zero(rows: np.ndarray) -> None:
    rows[ROW] = 0


def _odd(rows: np.ndarray) -> None:
    rows[ROW, COLUMN] += 0.25


def _rows(values: np.ndarray) -> np.ndarray:
    """Pixels, or columns where there are few rows."""
    rows = values.reshape(-1, values.shape[-1])
    return rows if len(rows) > ROW else rows.T


def _plant(monkeypatch: pytest.MonkeyPatch, names: set[str], fault: Fault) -> None:
    """Give what nodes compute the fault, where it is one of the tensors `names`."""
    computed = Runner.part

    def part(
        self: Runner,
        nodes: Sequence[NodeProto],
        feeds: Mapping[str, np.ndarray],
        wanted: Sequence[str],
    ) -> dict[str, np.ndarray]:
        found = computed(self, nodes, feeds, wanted)
        for name in names & found.keys():
            found[name] = found[name].copy()
            fault(_rows(found[name]))
        return found

    monkeypatch.setattr(Runner, "part", part)


def _made(model: ModelProto, wanted: Callable[[NodeProto], bool]) -> set[str]:
    return {
        node.output[0] for node in model.graph.node if node.domain == FUSED_DOMAIN and wanted(node)
    }


def _of(family: Family[Any]) -> Callable[[NodeProto], bool]:
    return lambda node: family in {config.family for config in configs_of_node(node)}


def _check(original: ModelProto, optimized: ModelProto) -> None:
    result = verify(original, optimized, providers=[CPU])
    assert {"segment", "node"} <= {row.level for row in result.failures}, result.text()


@pytest.mark.parametrize("fault", [_zero, _odd])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_pixel_and_an_element_are_found(
    name: str, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = _right(name)
    _plant(monkeypatch, _made(made.optimized, _of(named(name))), fault)
    _check(made.original, made.optimized)


@pytest.mark.parametrize("fault", [_zero, _odd])
@pytest.mark.parametrize("precision", ["keep", "fp16"])
def test_deformable_attention(
    precision: str, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = IMAGES["deformable attention"].build()
    optimized = fused(original, precision)
    names = _made(optimized, lambda node: node.op_type.startswith("DeformableAttention"))
    assert names
    _plant(monkeypatch, names, fault)
    _check(original, optimized)


@pytest.mark.parametrize("family", MODELS, ids=repr)
def test_a_planted_zero_is_none_already(family: Family[Any]) -> None:
    """Otherwise the fault of a pixel in this family's model changes nothing."""
    made = _prepared(family)
    names = sorted(_made(made.optimized, _of(family)))
    feeds = working_feeds(made.original, reference(made.original, CPU, {}), 0)
    found = Runner(made.optimized, CPU).run(feeds, names)
    assert any(_rows(found[name])[ROW].any() for name in names)
