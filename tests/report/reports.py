"""Reports to test with: of a small model, and made up for sizes and names that no model of the zoo
has."""

from __future__ import annotations

import copy
import json
from functools import cache
from typing import Any

from onnxbolt.pipeline import optimize
from tests.support import Net

HOSTILE = (
    "</script><script>document.title='broken'</script>",
    "<!--<script>",
    "\u2028\u2029",
    "<img src=x onerror=\"document.title='broken'\">",
    "{{ 7 * 7 }}",
    "&lt;b&gt; \"quoted\" 'apostrophe' \\ \x00\x1b[31m",
    "__proto__",
    "ü \U0001f600 \u202e reversed",
)


def small() -> dict[str, Any]:
    """The report of two equal convolutions and a product, verified, as its JSON has it."""
    return copy.deepcopy(_small())


@cache
def _small() -> Any:
    net = Net({"x": (2, 16, 8, 8)})
    y = "x"
    for _ in range(3):
        y = net.node("Relu", net.conv(y, 16, 16, 3, pads=[1, 1, 1, 1]))
    y = net.node("Exp", net.linear(net.node("Flatten", y), 1024, 8))
    found = optimize(net.model(y), fuse="all", library=False, archs=("sm_80", "sm_90a"))
    return json.loads(found.json())


def tuned() -> dict[str, Any]:
    """The small report with measured times and a tuning run."""
    report = small()
    report["machine"] = {
        "gpu": "NVIDIA H200",
        "arch": 90,
        "power_limit": 700,
        "cuda": "13.0.88",
        "cutlass": "4.2.0",
        "templates": "0" * 64,
    }
    for node in report["fused"]:
        for found in node["predicted"]:
            if found["arch"] == 90:
                found["measured_us"] = 1.25
    report["tuning"] = {
        "tasks": [
            {
                "name": f"gemm {number}",
                "kind": "gemm",
                "occurrences": 2,
                "tried": 24,
                "failed": 1,
                "first_us": 4.0 + number,
                "best_us": 3.0,
                "best_tflops": 100.0,
                "config": "sm_90 gemm_sm90",
            }
            for number in range(3)
        ],
        "quality": [{"kind": "gemm", "tasks": 3, "regret": 1.2, "rank_correlation": None}],
        "seconds": 20.0,
        "trials": 72,
        "kernels": 30,
        "ended_by": "done",
        "whole": {"ours_us": 10.0, "ort_us": 25.0, "dropped": []},
        "notes": [],
        "history": [
            {"seconds": 0.5, "trials": 3, "us": 30.0},
            {"seconds": 4.0, "trials": 20, "us": 21.0},
            {"seconds": 18.0, "trials": 70, "us": 18.0},
        ],
    }
    return report


def large(layers: int, width: int = 5) -> dict[str, Any]:
    """The small report with `layers` times `width` nodes before and after, no two layers alike."""
    report = small()
    blocks = [
        {
            "name": f"/layers.{layer}/branch.{lane}/a_long_name_as_exporters_write_them/MatMul",
            "op": "MatMul",
            "domain": "",
            "inputs": [width * (layer - 1) + other for other in range(lane, width, 3)]
            if layer
            else [],
            "shape": [8, 128 + layer, 768],
            "element": "float16",
            "us": [],
            "sources": [],
            "body": "",
        }
        for layer in range(layers)
        for lane in range(width)
    ]
    node = report["fused"][0]
    report["before"]["blocks"] = blocks
    report["after"]["blocks"] = [
        {**block, "domain": "com.onnxbolt", "op": node["op"], "name": f"{block['name']}/fused"}
        for block in blocks
    ]
    row = report["verification"]["rows"][0]
    report["fused"] = [
        {**node, "name": f"{b['name']}/fused", "tensor": b["name"], "source_nodes": [b["name"]]}
        for b in blocks
    ]
    report["verification"]["rows"] = [
        {**row, "name": b["name"], "node": f"{b['name']}/fused", "level": "node"} for b in blocks
    ]
    return report


def renamed(report: dict[str, Any], names: tuple[str, ...] = HOSTILE) -> dict[str, Any]:
    """The report with hostile texts wherever a model, or a path, gives the text."""
    count = 0

    def hostile(text: str) -> str:
        nonlocal count
        count += 1
        return f"{names[count % len(names)]} {text}"

    known: dict[str, str] = {}
    for side in ("before", "after"):
        for block in report[side]["blocks"]:
            block["name"] = known.setdefault(block["name"], hostile(block["name"]))
            block["op"] = hostile(block["op"])
            block["shape"] = [hostile("size"), *block["shape"]]
    for node in report["fused"]:
        node["name"] = known[node["name"]]
        node["source_nodes"] = [known.get(name, hostile(name)) for name in node["source_nodes"]]
        node["tensor"], node["rule"] = hostile(node["tensor"]), hostile(node["rule"])
        node["configs"] = [hostile(config) for config in node["configs"]]
        node["kernels"] = [hostile("kernel") for _ in node["configs"]]
    for row in report["verification"]["rows"]:
        row["name"], row["node"] = hostile(row["name"]), known.get(row["node"], hostile("node"))
        row["unjudged"] = hostile("why")
    for entry in (*report["refusals"], *report["kept"]):
        entry["node"] = known.get(entry["node"], hostile(entry["node"]))
        entry["reason"] = hostile(entry["reason"])
    report["changes"] = [hostile("change")]
    report["verification"]["notes"] = [hostile("note")]
    report["original"], report["optimized"] = hostile("in.onnx"), hostile("out.onnx")
    return report
