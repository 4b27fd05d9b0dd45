"""Sessions bound to a device, the search for their best setting, and statistics of their times."""

from __future__ import annotations

import functools
import itertools
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from onnxbolt.tune import sessions
from onnxbolt.tune.sessions import Measure, Sample, Session, Setting, Source, interleave, search
from tests.support import Net


def source(net: Net, *outputs: str, label: str = "model") -> Source:
    return Source(label, net.model(*outputs).SerializeToString())


def test_a_session_answers_and_is_timed() -> None:
    net = Net({"x": (4, 8)})
    x = np.ones((4, 8), np.float32)
    session = Session(source(net, net.node("Neg", "x")), Setting(), {"x": x}, None)
    assert all(us > 0 for us in session.measure(3))
    np.testing.assert_array_equal(session.outputs()[0], -x)


def test_feeds_take_the_models_types_and_open_sizes_those_of_a_first_run() -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("NonZero", ["wide"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.BFLOAT16, ["N"])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [1, "M"])
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    session = Session(
        Source("bf16", model.SerializeToString()),
        Setting(),
        {"x": np.array([0, 1, 0, 2], np.float32)},
        None,
    )
    np.testing.assert_array_equal(session.outputs()[0], [[1, 3]])
    again = Session(
        Source("bf16", model.SerializeToString()),
        Setting(),
        {"x": np.array([1, 0], ml_dtypes.bfloat16)},
        None,
    )
    np.testing.assert_array_equal(again.outputs()[0], [[0]])


def test_no_graph_is_tried_where_data_decide_sizes() -> None:
    net = Net({"x": (4, 8)})
    counted = source(net, net.node("NonZero", "x"))
    with pytest.raises(RuntimeError, match="no CUDA graph, since the data decide the size"):
        Session(counted, Setting(graph=True), {"x": np.ones((4, 8), np.float32)}, None)
    net = Net({"x": (4, 8)})
    Session(
        source(net, net.node("Neg", "x")),
        Setting(graph=True),
        {"x": np.ones((4, 8), np.float32)},
        None,
    )


class Recorder:
    """A session of ONNX Runtime, and the stream that it runs on: whether each run waits for the
    device, and when the stream does."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.fails = False

    def run_with_iobinding(self, _: object, options: ort.RunOptions) -> None:
        if self.fails:
            raise RuntimeError("refused")
        try:
            waits = options.get_run_config_entry("disable_synchronize_execution_providers") == "0"
        except RuntimeError:  # raised if the entry is not set
            waits = True
        self.events.append("run that waits" if waits else "run")

    def synchronize(self) -> None:
        self.events.append("stream waits")


def on_a_stream(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, graph: bool = False
) -> Session:
    """A session whose runs, and whose stream, are the recorder."""
    stream: Any = recorder
    with monkeypatch.context() as patched:
        patched.setattr(sessions, "_session", lambda *_: recorder)
        patched.setattr(Session, "_bind", lambda *_: None)
        made = Session(Source("fake", b""), Setting(graph=graph), {}, stream)
    made._binding = stream
    made._run_options = made._options(-1)
    return made


@pytest.mark.parametrize("graph", [False, True])
def test_the_last_run_on_a_stream_waits_before_the_session_goes(
    graph: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    made = on_a_stream(recorder, monkeypatch, graph)
    for _ in range(2):
        made._run()
    del made
    assert recorder.events == ["run"] * 2 + ["run that waits", "stream waits"] * (not graph)


def test_a_session_whose_run_fails_on_a_stream_is_never_freed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for runs in (0, 1):  # before the failure
        recorder = Recorder()
        made = on_a_stream(recorder, monkeypatch)
        for _ in range(runs):
            made._run()
        recorder.fails = True
        before = sys.getrefcount(recorder)
        with pytest.raises(RuntimeError, match="refused"):
            made._run()
        assert sys.getrefcount(recorder) == before + 1
        del made
        assert recorder.events == ["run"] * runs


def test_a_session_whose_last_run_fails_is_never_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    made = on_a_stream(recorder, monkeypatch)
    made._run()
    recorder.fails = True
    del made
    assert sys.getrefcount(recorder) == 3  # this function's, the argument's, and one for ever


def test_settings_are_those_that_matter() -> None:
    net = Net({"x": (1, 8, 4, 4)})
    plain, conv = source(net, net.node("Relu", "x")), source(net, net.conv("x", 8, 8))
    assert len(list(plain.settings())) == 2
    everything = set(itertools.product((False, True), ("EXHAUSTIVE", "HEURISTIC"), (False, True)))
    assert {(s.nhwc, s.search, s.graph) for s in conv.settings()} == everything
    assert all(setting.graph for setting in conv.settings((True,)))
    # a fused model may leave a pooling alone to ONNX Runtime, whose NHWC kernel may be faster
    net = Net({"x": (1, 8, 4, 4)})
    pool = source(net, net.node("GlobalAveragePool", "x"))
    assert {(s.nhwc, s.search) for s in pool.settings()} == {
        (False, "EXHAUSTIVE"),
        (True, "EXHAUSTIVE"),
    }


def test_search_keeps_the_fastest_and_says_why_another_failed(tmp_path: Path) -> None:
    net = Net({"x": (64, 64)})
    small = source(net, net.node("Neg", "x"), label="small")
    y = "x"
    for _ in range(40):
        y = net.linear(y, 64, 64)
    found = search(
        [source(net, y, label="large"), small, Source("broken", b"no model")],
        {"x": np.ones((64, 64), np.float32)},
        None,
        5,
    )
    assert found.source is small
    assert {name.split(":")[0] for name in found.tried} == {"large", "small", "broken"}
    assert "failed" in str(found.tried["broken: NCHW, EXHAUSTIVE, no graph"])
    assert found.session.measure(1)[0] > 0
    path = tmp_path / "model.onnx"
    onnx.save(net.model(y), path)
    assert Source("file", path).convolves is False


def test_where_nothing_runs_the_reasons_are_told() -> None:
    with pytest.raises(RuntimeError, match=r"broken.*failed"):
        search([Source("broken", Net({"x": (1,)}).model().SerializeToString()[:-3])], {}, None, 1)


def test_sample_is_robust_against_an_outlier() -> None:
    sample = Sample((10.0,) * 99 + (1000.0,))
    assert sample.median == 10
    assert sample.spread == sample.mad == 0


def test_rounds_are_interleaved_and_their_first_runs_dropped() -> None:
    calls: list[tuple[str, int]] = []

    def measure(name: str, count: int) -> list[float]:
        calls.append((name, count))
        return [float(len(calls))] * count

    samples = interleave(
        {name: functools.partial(measure, name) for name in "ab"}, rounds=2, runs=3
    )
    forward = [("a", 1), ("a", 3), ("b", 1), ("b", 3)]
    assert calls == [*forward, ("b", 1), ("b", 3), ("a", 1), ("a", 3)]
    assert samples["a"].times == (2.0,) * 3 + (8.0,) * 3


def test_a_side_runs_by_itself_until_its_clock_is_steady(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr("time.perf_counter", lambda: float(len(calls)))  # a second for each call

    def side(name: str) -> Measure:
        def measure(count: int) -> list[float]:
            calls.append(name)
            return [1.0] * count

        return measure

    samples = interleave({name: side(name) for name in "ab"}, rounds=1, runs=3, settle=2.0)
    # the first run, two seconds that do not count, and the runs that do
    assert calls == ["a"] * 4 + ["b"] * 4
    assert len(samples["a"].times) == len(samples["b"].times) == 3


def test_every_side_has_each_place_and_each_neighbor_as_often() -> None:
    order = list[str]()

    def side(name: str) -> Measure:
        def measure(count: int) -> list[float]:
            order.extend([name] * (count - 1))
            return [1.0] * count

        return measure

    interleave({name: side(name) for name in "abc"}, rounds=6, runs=2)
    rounds = {"".join(order[at : at + 3]) for at in range(0, len(order), 3)}
    assert rounds == {"".join(turn) for turn in itertools.permutations("abc")}
