"""The columns of the tables in docs/performance.md and README.md, computed from each row of a
result file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.bolt import BOLT
from benchmarks.exports import SETS
from benchmarks.targets import TARGETS

Cell = Callable[[dict[str, Any]], str]  # a cell's text, from its row

# Names of PyTorch's products of fp8 have this beginning, and this end where sums are left in tensor
# cores, which keep 14 bits.
FP8_PRODUCT, FAST_SUMS = "_scaled_mm", ", fast accumulation"


@dataclass(frozen=True)
class Table:
    """How a benchmark is shown: columns by heading, whether the mean of ratios is shown, by group
    if rows have groups, and the folder of its figure, as seen from the page, if one is shown."""

    benchmark: str
    columns: Mapping[str, Cell]
    compares: bool = True
    group: Cell | None = None
    figures: str = ""
    # a row's place in tables; files keep the order of measuring
    place: Callable[[dict[str, Any]], int] = lambda row: 0


def _field(name: str, form: str = "") -> Cell:
    return lambda row: text(row[name], form)


def _value(name: str, form: str = "") -> Cell:
    return lambda row: text(row["values"].get(name), form)


def text(value: Any, form: str) -> str:
    """A value as a cell: empty if it is unknown; 'gemm 1.05, conv 1.10' if it is known by kind."""
    if value is None:
        return ""
    if isinstance(value, dict):
        return ", ".join(f"{kind} {number:{form}}" for kind, number in value.items())
    return f"{value:{form}}"


def _milliseconds(name: str) -> Cell:
    return lambda row: "" if row[name] is None else f"{row[name] / 1e3:.3f}"


def thousandth(value: float | None) -> float | None:
    return None if value is None else value / 1e3


def _by_gpus(what: str, field: str) -> Cell:
    """A value of runs with several numbers of GPUs."""

    def cell(row: dict[str, Any]) -> str:
        runs = row["values"].get(what, {})
        found = {n: run[field] for n, run in runs.items() if field in run}
        return text({f"{n} GPU{'s' * (n != '1')}": value for n, value in found.items()}, ".1f")

    return cell


def _course(side: str, field: str) -> Cell:
    """A value of a course of tuning; of a moment the trials and, in brackets, the seconds, or that
    it never came."""

    def cell(row: dict[str, Any]) -> str:
        course = row["values"].get(side, {})
        if field == "final":
            return text(course.get(field), "")
        ended = field == "trials" and field in course
        found = [course[field], course["seconds"]] if ended else course.get(field)
        return f"{found[0]} ({found[1]:.1f} s)" if found else "never"

    return cell


def _queued(name: str, row: dict[str, Any]) -> str:
    """Milliseconds of runs back to back, or of single runs where these cannot be enqueued."""
    single = ", single runs" * (name in row["values"].get("not_queued", ()))
    return text(thousandth(row["values"].get(name)), ".3f") + single


def _percent(row: dict[str, Any]) -> str:
    return "" if row["spread"] is None else f"{row['spread'] * 100:.1f}%"


def _tried(result: float | str | None) -> str:
    """Milliseconds, or the reason why there are none."""
    return f"{result / 1e3:.3f}" if isinstance(result, float) else text(result, "")


def _papers_times(row: dict[str, Any]) -> str:
    """The paper's time of a variant as a multiple of the plain one's."""
    paper = BOLT[row["name"]]
    return f"{paper.plain[1] / paper.images:.3f}"


def _papers_accuracy(row: dict[str, Any]) -> str:
    """The paper's accuracies of the plain model and of the variant."""
    paper = BOLT[row["name"]]
    return f"{paper.plain[0]:.2f} to {paper.top1:.2f}"


def _retraining(row: dict[str, Any]) -> str:
    needed = row["values"].get("needs_retraining")
    return "" if needed is None else "needed" if needed else "not needed"


def _target(row: dict[str, Any]) -> int:
    """A model's position in the tables."""
    places = [(target.model, target.batch) for target in TARGETS]
    return places.index(found) if (found := (row["name"], row["batch"])) in places else len(places)


def _sums_in_fp32(row: dict[str, Any]) -> float | None:
    """Microseconds of PyTorch's fastest product of fp8 that adds up in fp32, as our kernels do."""
    forms = row["values"].get("tried", {})
    products = (form for form in forms if form.startswith(FP8_PRODUCT))
    return min((forms[form] for form in products if not form.endswith(FAST_SUMS)), default=None)


def _ratio_to_sums_in_fp32(row: dict[str, Any]) -> str:
    us = _sums_in_fp32(row)
    return "" if us is None else f"{us / row['ours_us']:.2f}"


def _epilogue(row: dict[str, Any]) -> str:
    return f"epilogue {row['values'].get('epilogue', 'unknown')}"


_MODEL: dict[str, Cell] = {"model": _field("name"), "batch": _field("batch")}
_TIMES: dict[str, Cell] = {
    "onnxbolt, ms": _milliseconds("ours_us"),
    "CUDA execution provider at its best, ms": _milliseconds("peer_us"),
    "ratio, single runs": _field("ratio", ".2f"),
    "ratio, back to back": _value("device_ratio", ".2f"),
    "onnxbolt on onnxruntime.transformers' result, ms": lambda row: text(
        thousandth(row["values"].get("transformers_us")), ".3f"
    ),
    "its ratio, single runs": _value("transformers_ratio", ".2f"),
    "PyTorch, ms": lambda row: text(thousandth(row["values"].get("pytorch_us")), ".3f"),
    "PyTorch's way": lambda row: text(row["values"].get("pytorch_way"), ""),
    "ratio to PyTorch": _value("pytorch_ratio", ".2f"),
}
_QUEUED: dict[str, Cell] = {
    "back to back, ms": partial(_queued, "device_us"),
    "the provider's, ms": partial(_queued, "peer_device_us"),
}
_PYTORCH: dict[str, Cell] = {
    **_MODEL,
    **{
        way: partial(lambda way, row: _tried(row["values"].get("pytorch", {}).get(way)), way)
        for way in (
            "eager",
            "CUDA graph",
            "torch.compile max-autotune",
            "torch.compile max-autotune, freezing",
            "torch.compile reduce-overhead",
        )
    },
}
_SERIAL: dict[str, Cell] = {
    "launches not overlapping, us": _value("serial_us", ".2f"),
    "its ratio": _value("serial_ratio", ".2f"),
}
_KERNEL: dict[str, Cell] = {
    "problem": _field("name"),
    "onnxbolt, us": _field("ours_us", ".2f"),
    "against": _field("peer"),
    "its us": _field("peer_us", ".2f"),
    "ratio": _field("ratio", ".2f"),
    **_SERIAL,
    "floor, us": _field("floor_us", ".2f"),
    "spread": _percent,
}
_EXPORTED: dict[str, Cell] = {
    **_MODEL,
    "onnxbolt, us": _field("ours_us", ".1f"),
    "CUDA execution provider at its best, us": _field("peer_us", ".1f"),
    "its form and setting": _value("peer_config"),
    "ratio, single runs": _field("ratio", ".2f"),
    "ratio, back to back": _value("device_ratio", ".2f"),
    "PyTorch, us": _value("pytorch_us", ".1f"),
    "PyTorch's way": _value("pytorch_way"),
    "ratio to PyTorch": _value("pytorch_ratio", ".2f"),
    "onnxbolt on the export of opset 23, us": _value("opset23_us", ".1f"),
    "on TorchScript's, us": _value("torchscript_us", ".1f"),
    "spread": _percent,
    "error": _field("error", ".1e"),
}
_ATTENTION: dict[str, Cell] = {
    "problem": _field("name"),
    "batch x heads x length x size": lambda row: (
        text(row["values"].get("shape"), "").removeprefix("attention ").partition(",")[0]
    ),
    "mask": _value("mask"),
    "onnxbolt, us": _field("ours_us", ".2f"),
    "against": _field("peer"),
    "its us": _field("peer_us", ".2f"),
    "ratio": _field("ratio", ".2f"),
    "flash attention without padding, us": lambda row: text(
        row["values"].get("peers_us", {}).get("flash, without padding"), ".2f"
    ),
    "spread": _percent,
    "kernel": _field("config"),
}
_NORMS: dict[str, Cell] = {
    "rows x columns, and steps": _field("name"),
    "onnxbolt, us": _field("ours_us", ".2f"),
    "against": _field("peer"),
    "its us": _field("peer_us", ".2f"),
    "ratio": _field("ratio", ".2f"),
    "ratio past L2": _value("cold_ratio", ".2f"),
    "floor, us": _field("floor_us", ".2f"),
    "spread": _percent,
    "kernel": _field("config"),
}
_EPILOGUE: dict[str, Cell] = {
    "kernel": _field("name"),
    "fused, us": _field("ours_us", ".2f"),
    "without epilogue, us": _value("bare_us", ".2f"),
    "fused / without": _value("fused_over_bare", ".3f"),
    "the library and an activation, us": _field("peer_us", ".2f"),
    "ratio": _field("ratio", ".2f"),
    **_SERIAL,
    "ours without, and an activation (estimated), us": _value("apart_us", ".2f"),
    "spread": _percent,
}
_B2B: dict[str, Cell] = {
    "layers": _field("name"),
    "rows or batch": _field("batch"),
    "one kernel, us": _field("ours_us", ".2f"),
    "one for each layer, us": _value("apart_us", ".2f"),
    "ratio": _field("ratio", ".2f"),
    "aim": _value("target", ".2f"),
    **_SERIAL,
    "the library's, bare, us": _value("bare_us", ".2f"),
    "with bias and ReLU, us": _value("full_us", ".2f"),
    "the ratio to that": _value("full_ratio", ".2f"),
    "against": _field("peer"),
    "floor, us": _field("floor_us", ".2f"),
    "spread": _percent,
}
_CHAINS: dict[str, Cell] = {
    "chain": _field("name"),
    "rows": _field("batch"),
    "covers": _value("covers"),
    "layers of each kernel": _value("measured"),
    "us": _field("ours_us", ".2f"),
    "the best cover": _value("best"),
    "its us": _field("peer_us", ".2f"),
    "by prediction": _value("predicted"),
    "its loss": _value("predicted_loss", ".1%"),
}
_PADDING: dict[str, Cell] = {
    "convolution": _field("name"),
    "unpadded, us": _value("unpadded_us", ".2f"),
    "padded, us": _value("padded_us", ".2f"),
    "padding, us": _value("padding_us", ".2f"),
    "its share": _value("padding_share", ".0%"),
    "gain": _value("gain", ".2f"),
    "against": _field("peer"),
    "its us": _field("peer_us", ".2f"),
    "ratio": _field("ratio", ".2f"),
    **_SERIAL,
    "spread": _percent,
}
_PROFILE: dict[str, Cell] = {
    "model": _value("model"),
    "kernel": _field("config"),
    "launches": _value("launches"),
    "us": _field("ours_us", ".2f"),
    "device memory, TB/s": _value("dram_tb_per_s", ".2f"),
    "of its peak": _value("dram_share", ".0%"),
    "tensor cores busy": _value("tensor_share", ".0%"),
    "shared memory": _value("shared_memory_share", ".0%"),
    "limited by": _value("limit"),
}
_TUNING: dict[str, Cell] = {
    **_MODEL,
    "cold, s": _value("seconds_cold", ".0f"),
    "again, s": _value("seconds_warm", ".1f"),
    "problems": _value("tasks"),
    "library, s": _value("seconds_linked", ".1f"),
    "compiled anew, s": _value("seconds_anew", ".1f"),
    "trials": _value("trials"),
    "kernels": _value("kernels"),
    "regret": _value("regret", ".2f"),
    "rank correlation": _value("rank_correlation", ".2f"),
    "cores": _value("cores"),
}


def _tuning(row: dict[str, Any]) -> str:
    """The seconds of a tuning, and what ended it."""
    told = row["values"].get("tuning")
    return f"{told['seconds']:.0f} s, {told['ended_by']}" if told else ""


def _planned(name: str) -> Cell:
    """A number of plan/choose.py's Totals."""
    return lambda row: text(row["values"].get("planning", {}).get(name), "")


def _planned_ratio(row: dict[str, Any]) -> str:
    """The greedy plan's time over that of dynamic programming, by sums of the times of kernels."""
    totals = row["values"].get("planning")
    return f"{totals['greedy_us'] / totals['dynamic_us']:.3f}" if totals else ""


def _kind_of_size(row: dict[str, Any]) -> str:
    """A new size or a revisited one."""
    return str(row["name"]).rpartition(", ")[2]


def _side(*parts: str) -> Cell:
    """The milliseconds of the fastest side of benchmarks/varying.py with these parts in its label;
    of a side that did not run at all sizes, those of the first ones."""

    def shown(row: dict[str, Any]) -> str:
        every = {**row["values"].get("ms_of_first_sizes", {}), **row["values"].get("ms", {})}
        found = (ms for name, ms in every.items() if all(part in name for part in parts))
        return text(min(found, default=None), ".2f")

    return shown


def _first_and_last(name: str) -> Cell:
    """MiB that were taken after the first and the last part of the runs of
    benchmarks/serving_memory.py: '1,204 to 1,205'."""

    def shown(row: dict[str, Any]) -> str:
        taken = row["values"].get(name)
        return f"{taken[0]:,.0f} to {taken[-1]:,.0f}" if taken else ""

    return shown


_VARYING: Mapping[str, Cell] = {
    "model, size": _field("name"),
    "onnxbolt, ms": _milliseconds("ours_us"),
    "ONNX Runtime at its best, ms": _milliseconds("peer_us"),
    "ratio": _field("ratio", ".2f"),
    "its way": _field("peer"),
    "EXHAUSTIVE, ms": _side("ONNX Runtime", "EXHAUSTIVE"),
    "HEURISTIC, ms": _side("ONNX Runtime", "HEURISTIC"),
    "DEFAULT, ms": _side("ONNX Runtime", "DEFAULT"),
    "PyTorch eager, ms": _side("PyTorch eager"),
    "torch.compile(dynamic=True), ms": _side("torch.compile"),
    "onnxbolt, keep, ms": _side("onnxbolt keep"),
    "largest step": _value("largest_step", ".2f"),
    "error": _field("error", ".1e"),
}

_VARYING_SUMMARY = {
    name: _VARYING[name]
    for name in (
        "model, size",
        "onnxbolt, ms",
        "ONNX Runtime at its best, ms",
        "ratio",
        "PyTorch eager, ms",
        "torch.compile(dynamic=True), ms",
    )
}

TABLES = {
    "summary": Table("end_to_end", {**_MODEL, **_TIMES}, place=_target),
    "end_to_end": Table(
        "end_to_end",
        {
            **_MODEL,
            "configurations": _value("configurations"),
            **_TIMES,
            **_QUEUED,
            "floor, ms": _milliseconds("floor_us"),
            "spread": _percent,
            "error": _field("error", ".1e"),
            "settings": _field("config"),
        },
        place=_target,
        figures="figures",
    ),
    "pytorch": Table("end_to_end", _PYTORCH, compares=False, place=_target),
    "gemm": Table(
        "gemm",
        {
            **_KERNEL,
            "TFLOP/s": _value("tflops", ".0f"),
            "candidates": _value("candidates"),
            "regret": _value("regret", ".2f"),
        },
        group=_epilogue,
        figures="figures",
    ),
    "conv": Table(
        "conv",
        {
            **_KERNEL,
            "PyTorch, each step a kernel, us": _value("unfused_us", ".2f"),
            "TFLOP/s": _value("tflops", ".0f"),
            "in ResNet-50": _value("occurrences"),
            "kernel": _field("config"),
        },
        figures="figures",
    ),
    "conv_transpose": Table(
        "conv_transpose",
        {
            **_KERNEL,
            "pixels of phases, us": _value("pixels of phases", ".2f"),
            "rows, us": _value("rows", ".2f"),
            "cuDNN, NHWC, us": _value("channels last", ".2f"),
            "cuDNN, NCHW, us": _value("channels first", ".2f"),
            "kernel": _field("config"),
        },
    ),
    "nnunet": Table(
        "nnunet",
        {
            "block": _field("name"),
            **_TIMES,
            "floor, ms": _milliseconds("floor_us"),
            "spread": _percent,
            "error": _field("error", ".1e"),
        },
    ),
    "conv3d": Table(
        "conv3d",
        {
            **_KERNEL,
            "cuDNN, NDHWC, us": _value("channels last", ".2f"),
            "cuDNN, NCDHW, us": _value("channels first", ".2f"),
            "kernel": _field("config"),
        },
    ),
    "quantized": Table(
        "quantized",
        {
            **_KERNEL,
            "int8, us": _value("int8_us", ".2f"),
            "its ratio": _value("int8_ratio", ".2f"),
            "torch._scaled_mm, us": _value("fp8_library_us", ".2f"),
            "ratio to it": _value("fp8_library_ratio", ".2f"),
            "with sums in fp32, us": lambda row: text(_sums_in_fp32(row), ".2f"),
            "ratio to that": _ratio_to_sums_in_fp32,
            "torch._int_mm, us": _value("int8_library_us", ".2f"),
            "TFLOP/s": _value("tflops", ".0f"),
            "in ResNet-50": _value("occurrences"),
            "kernel": _field("config"),
        },
        group=_field("dtype"),
    ),
    "quantized_models": Table(
        "quantized_models",
        {
            **_MODEL,
            "8 bits": _field("dtype"),
            "us": _field("ours_us", ".1f"),
            "our fp16, us": _field("peer_us", ".1f"),
            "ratio": _field("ratio", ".3f"),
            "ratio, back to back": _value("device_ratio", ".3f"),
            "ONNX Runtime on floats, us": _value("onnxruntime_us", ".1f"),
            "ratio to it": _value("onnxruntime_ratio", ".2f"),
            "ONNX Runtime on the quantized file, us": _value("onnxruntime_quantized_us", ".1f"),
            "its ratio": _value("onnxruntime_quantized_ratio", ".2f"),
            "spread": _percent,
            "error": _field("error", ".1e"),
        },
    ),
    "epilogue": Table("epilogue", _EPILOGUE, figures="figures"),
    "padding": Table("padding", _PADDING),
    "kernels": Table("profile", _PROFILE, compares=False),
    "tuning": Table("tuning", _TUNING, compares=False, place=_target),
    "symbolic": Table(
        "symbolic",
        {
            **_MODEL,
            "onnxbolt, one session, us": _field("ours_us", ".1f"),
            "CUDA execution provider at its best at that batch, us": _field("peer_us", ".1f"),
            "ratio": _field("ratio", ".2f"),
            "spread": _percent,
            "error": _field("error", ".1e"),
        },
    ),
    "varying": Table("varying", _VARYING, group=_kind_of_size, figures="figures"),
    "varying_summary": Table(
        "varying", _VARYING_SUMMARY, group=_kind_of_size, figures="docs/figures"
    ),
    "fixed_sizes": Table(
        "fixed_sizes",
        {
            "model, shape": _field("name"),
            "onnxbolt, ms": _milliseconds("ours_us"),
            "CUDA execution provider at its best, ms": _milliseconds("peer_us"),
            "its form and setting": _value("peer_config"),
            "ratio, single runs": _field("ratio", ".2f"),
            "ratio, back to back": _value("device_ratio", ".2f"),
            "PyTorch, ms": lambda row: text(thousandth(row["values"].get("pytorch_us")), ".3f"),
            "PyTorch's way": _value("pytorch_way"),
            "ratio to PyTorch": _value("pytorch_ratio", ".2f"),
            "spread": _percent,
            "error": _field("error", ".1e"),
        },
    ),
    "several_gpus": Table(
        "several_gpus",
        {
            **_MODEL,
            "all compiled, s": _by_gpus("compiled", "seconds"),
            "of which measuring, s": _by_gpus("compiled", "measuring"),
            "empty caches, s": _by_gpus("cold", "seconds"),
            "kernels of the result, us": _by_gpus("compiled", "us"),
            "the same plan": lambda row: text(row["values"].get("again", {}).get("same"), ""),
            "cores": _value("cores"),
        },
        compares=False,
    ),
    "learning": Table(
        "learning",
        {
            **_MODEL,
            **{
                f"{title}: {side}": _course(side, field)
                for title, field in (
                    ("within 1%, trials", "reached"),
                    ("formulas' result, trials", "formulas"),
                    ("end, trials", "trials"),
                    ("end", "final"),
                )
                for side in ("chance", "formula", "learned")
            },
        },
        compares=False,
        figures="figures",
    ),
    "predictions": Table(
        "predictions",
        {
            "problems of": _field("name"),
            "batch": lambda row: str(row["batch"] or ""),
            "held out": _value("problems"),
            "kernels": _value("kernels"),
            "feasible": _value("feasible"),
            "regret": _value("regret", ".3f"),
            "worst": _value("worst", ".2f"),
            "rank correlation": _value("rank", ".2f"),
            "whole model": _value("together", ".3f"),
        },
        compares=False,
    ),
    "untuned": Table(
        "untuned",
        {
            **_MODEL,
            "tuned, us": _field("ours_us", ".1f"),
            "planned by the learned model, us": _field("peer_us", ".1f"),
            "ratio": _field("ratio", ".3f"),
            "back to back": _value("device_ratio", ".3f"),
            "planned by the formulas, us": _value("formula_us", ".1f"),
            "its ratio": _value("formula_ratio", ".3f"),
            "its back to back": _value("formula_device_ratio", ".3f"),
            "fused nodes": _value("nodes"),
            "other nodes": _value("other_nodes"),
            "decisions": _value("decisions"),
            "wrong by 5%": _value("wrong_decisions"),
            "problems left out": _value("left_out"),
            "tuning": _tuning,
            "spread": _percent,
        },
    ),
    "regret": Table(
        "regret",
        {
            "model": _field("name"),
            "sizes": _value("sizes"),
            "of them beyond the points": _value("beyond"),
            "nodes": _value("nodes"),
            "kernels": _value("kernels"),
            "regret": _value("regret", ".3f"),
            "of the worst size": _value("worst_size", ".3f"),
            "of the worst node": _value("worst_node", ".3f"),
        },
        compares=False,
    ),
    "serving_memory": Table(
        "serving_memory",
        {
            "model": _field("name"),
            "runs": _value("runs", ","),
            "sizes": _value("sizes", ","),
            "host, MiB": _first_and_last("host_mib"),
            "its growth": _value("host_growth", ".2%"),
            "device, MiB": _first_and_last("device_mib"),
            "growth there": _value("device_growth", ".2%"),
            "median of runs, ms": _milliseconds("ours_us"),
        },
        compares=False,
    ),
    "plans": Table(
        "plans",
        {
            **_MODEL,
            "dynamic programming, us": _field("ours_us", ".1f"),
            "greedy plan, us": _field("peer_us", ".1f"),
            "ratio": _field("ratio", ".3f"),
            "the first is": _value("difference"),
            "ratio, back to back": _value("device_ratio", ".3f"),
            "parts planned otherwise": _planned("otherwise"),
            "of": _planned("scopes"),
            "ratio by the kernels' times": _planned_ratio,
            "spread": _percent,
            "error": _field("error", ".1e"),
        },
    ),
    "chains": Table("chains", _CHAINS, compares=False),
    **{name: Table(name, _B2B) for name in ("b2b_gemm", "b2b_conv")},
    "variants": Table(
        "variants",
        {
            **_MODEL,
            "configurations": _value("configurations"),
            "us": _field("ours_us", ".1f"),
            "plain one, us": _field("peer_us", ".1f"),
            "times the plain one": _value("times_plain", ".3f"),
            "as planned": _value("planned_times_plain", ".3f"),
            "Bolt, T4": _papers_times,
            "Bolt's top-1, %": _papers_accuracy,
            "spread": _percent,
            "error": _field("error", ".1e"),
        },
        compares=False,
    ),
    "advice": Table(
        "advice",
        {
            "model, advice": _field("name"),
            "batch": _field("batch"),
            "configurations": _value("configurations"),
            "as it is, us": _field("peer_us", ".1f"),
            "as planned, us": _value("planned_before_us", ".1f"),
            "changed, us": _field("ours_us", ".1f"),
            "planned, us": _value("planned_us", ".1f"),
            "times as fast": _field("ratio", ".3f"),
            "predicted": _value("predicted_ratio", ".3f"),
            "retraining": _retraining,
            "spread": _percent,
        },
        compares=False,
    ),
    "attention": Table("attention", _ATTENTION),
    "norms": Table("norms", _NORMS),
    **{name: Table(name, _EXPORTED) for name in SETS},
}
