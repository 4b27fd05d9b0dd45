"""Changes that say that results stay the same, on models of many kinds: they do, and the changed
models are valid."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx
import pytest

from onnxbolt.advice.change import SAME, Change
from onnxbolt.advice.channels import Channels
from onnxbolt.advice.draft import Draft
from onnxbolt.advice.heads import Heads
from onnxbolt.advice.stem import Stem
from onnxbolt.verify.feeds import Feeds, working_feeds
from onnxbolt.verify.session import CPU, Runner
from tests.e2e import sequence, vision
from tests.support import run

MODELS: tuple[Callable[[], onnx.ModelProto], ...] = (
    sequence.bert_embedding,
    sequence.llama,
    sequence.recurrent,
    sequence.wavenet,
    vision.attention_gates,
    vision.deeplab,
    vision.densenet,
    vision.inception,
    vision.mobilenet,
    vision.shufflenet,
    vision.style_transfer,
    vision.unet,
    vision.yolo,
)


def changes(model: onnx.ModelProto) -> Iterator[Change]:
    draft = Draft(model)
    for kind in (Channels, Heads, Stem):
        for found in kind.find(draft):
            if isinstance(found, Change) and found.results == SAME:
                yield found


def padded(feeds: Feeds, change: Change, model: onnx.ModelProto) -> Feeds:
    """The feeds of the changed model: a stem's new channels are zero."""
    if not isinstance(change, Stem):
        return feeds
    (value,) = (value for value in model.graph.input if value.name == change.name)
    x, dims = feeds[change.name], value.type.tensor_type.shape.dim
    pads = [
        (0, max(dim.dim_value - size, 0) if dim.HasField("dim_value") else 0)
        for dim, size in zip(dims, x.shape, strict=True)
    ]
    return feeds | {change.name: np.pad(x, pads)}


@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
def test_results_stay_where_a_change_says_so(build: Callable[[], onnx.ModelProto]) -> None:
    model = build()
    feeds = working_feeds(model, Runner(model, CPU), 0)
    before, found = run(model, feeds), list(changes(model))
    assert found
    for change in found:
        changed = change.applied(model)
        onnx.checker.check_model(changed, full_check=True)
        after = run(changed, padded(feeds, change, changed))
        for expected, got in zip(before, after, strict=True):
            assert got.shape == expected.shape
            np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-5)
