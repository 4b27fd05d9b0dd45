"""The command, on a model of this test in place of those of others."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import urllib.error
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxbolt.errors import InputError
from tests.support import Net
from tests.trained import __main__ as command
from tests.trained import sources, table
from tests.trained.agreement import Agreement, Answer
from tests.trained.cases import CASES, Case, Networks
from tests.trained.sources import File, Store, listed

REPOSITORY, COMMIT = "owner/name", "c" * 40


def labels(networks: Networks, data: bytes) -> Answer:
    (y,) = networks["classifier"]({"x": np.frombuffer(data, np.float32).reshape(8, 64)})
    return Answer({"label": [int(k) for k in y.argmax(axis=1)]}, masks=[y > 0.1])


NET = Case("net", {"classifier": f"{REPOSITORY}/m.onnx"}, (f"{REPOSITORY}/in put.bin",), labels)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a model and an input, which are the only case."""
    directory = tmp_path / REPOSITORY
    directory.mkdir(parents=True)
    net = Net({"x": (8, 64)})
    model = net.model(net.linear(net.node("Relu", net.linear("x", 64, 96)), 96, 32))
    onnx.save(model, directory / "m.onnx")
    drawn = np.random.default_rng(1).standard_normal((8, 64)).astype(np.float32)
    (directory / "in put.bin").write_bytes(drawn.tobytes())
    sums = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()
    }
    (tmp_path / "files.json").write_text(json.dumps({f"{REPOSITORY}@{COMMIT}": sums}))
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- begin:trained -->\nold\n<!-- end:trained -->\nb\n")
    monkeypatch.setattr(sources, "LIST", tmp_path / "files.json")
    monkeypatch.setattr(listed, "__defaults__", (tmp_path / "files.json",))
    monkeypatch.setattr(command, "CASES", (NET,))
    monkeypatch.setattr(table.table, "__defaults__", ((NET,),))
    monkeypatch.setattr(table, "PAGE", page)
    for function in (table.load, table.save):
        monkeypatch.setattr(function, "__defaults__", (tmp_path / "results.json",))
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["trained", *arguments])
    return command.main()


def test_a_right_model(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, "--from", str(files)) == 0
    results = json.loads((files / "results.json").read_text())
    assert list(results) == [f"net; {p}; function bodies on the CPU" for p in ("fp16", "keep")]
    assert {one["agreements"][0]["number"] for one in results.values()} == {8}
    assert "| 8 labels: same; 1 mask: IoU" in (files / "page.md").read_text()
    before = (files / "page.md").read_text()
    assert run(monkeypatch, "--from", str(files), "--only", "n?t", "--precision", "keep") == 0
    assert (files / "page.md").read_text() == before


@pytest.mark.parametrize("precision", ["fp16", "keep"])
def test_a_wrong_model(
    precision: str,
    files: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two results of the optimized model change places."""
    made = command._optimized

    def swapped(*arguments: Any) -> Callable[..., Any]:
        network = made(*arguments)
        return lambda inputs: [y[:, [1, 0, *range(2, 32)]] for y in network(inputs)]

    monkeypatch.setattr(command, "_optimized", swapped)
    assert run(monkeypatch, "--from", str(files), "--precision", precision) == 1
    assert "FAILED: net" in capsys.readouterr().out
    assert "off **(a fault)**" in (files / "page.md").read_text()


def test_nothing_to_compare_is_a_failure(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blind = dataclasses.replace(NET, answer=lambda *_: Answer())
    monkeypatch.setattr(command, "CASES", (blind,))
    assert run(monkeypatch, "--from", str(files)) == 1
    assert run(monkeypatch, "--from", str(files), "--only", "other") == 1


def test_models_by_name(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two = tuple(dataclasses.replace(NET, name=f"{name} net") for name in ("a", "b"))
    monkeypatch.setattr(command, "CASES", (NET, *two))
    assert (
        run(monkeypatch, "--from", str(files), "--only", "b n?t", "--only", "a", "--only", "c") == 1
    )
    assert sorted({one["case"] for one in table.load().values()}) == ["a net", "b net"]


def test_other_content_and_missing_files(files: Path) -> None:
    file = listed()[f"{REPOSITORY}/in put.bin"]
    store = Store(files)
    assert store.path(file) == files / REPOSITORY / "in put.bin"
    store.path(file).write_bytes(b"other")
    with pytest.raises(InputError, match="SHA-256"):
        store.path(file)
    (files / REPOSITORY / "in put.bin").unlink()
    with pytest.raises(InputError, match=r"is missing; it is https://raw"):
        store.path(file)


def test_files_are_fetched_once_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONNXBOLT_CACHE_DIR", str(tmp_path))
    asked: list[str] = []

    def opened(url: str, timeout: float) -> io.BytesIO:
        asked.append(url)
        if "absent" in url:
            raise urllib.error.URLError("no such file")
        return io.BytesIO(b"content")

    monkeypatch.setattr("urllib.request.urlopen", opened)
    good = File(REPOSITORY, COMMIT, "a/津 1.jpg", hashlib.sha256(b"content").hexdigest())
    path = Store().path(good)
    assert path == tmp_path / "trained" / REPOSITORY / "a/津 1.jpg"
    assert (Store().path(good), path.read_bytes()) == (path, b"content")
    prefix = f"https://raw.githubusercontent.com/{REPOSITORY}/{COMMIT}"
    assert asked == [f"{prefix}/a/%E6%B4%A5%201.jpg"]
    with pytest.raises(InputError, match="has the SHA-256"):
        Store().path(File(REPOSITORY, COMMIT, "b", good.sha256[::-1]))
    assert not (tmp_path / "trained" / REPOSITORY / "b").exists()
    with pytest.raises(InputError, match=r"cannot be fetched.*--from DIR"):
        Store().path(File(REPOSITORY, COMMIT, "absent", good.sha256))


def test_every_file_is_listed() -> None:
    files = listed()
    named = {name for case in CASES for name in (*case.networks.values(), *case.inputs)}
    assert named == files.keys()
    assert len({case.name for case in CASES}) == len(CASES)
    for file in files.values():
        assert (len(file.commit), len(file.sha256)) == (40, 64)


def test_the_page_has_the_results() -> None:
    page = table.PAGE.read_text()
    assert f"<!-- begin:{table.BLOCK} -->" in page
    assert table.rendered(page, table.load()) == page


def test_words() -> None:
    mask, alone = Agreement("mask", 6, 4, 0.98601), Agreement("mask", 6, 4, 0.9855)
    assert table.in_words([mask], [alone]) == [
        "6 masks: IoU 0.9860, 2 off (rounding alone: IoU 0.9855)"
    ]
    assert table.in_words([mask], []) == ["6 masks: IoU 0.9860, 2 off **(a fault)**"]
    boxes, texts = Agreement("box", 1, 1, 0.97999), Agreement("text", 2, 1)
    assert table.in_words([boxes, texts], [texts]) == [
        "1 box: IoU 0.9799",
        "2 texts: different, 1 off **(a fault)**",
    ]
    assert table.off([mask, boxes, texts], [alone, texts]) == [texts]
