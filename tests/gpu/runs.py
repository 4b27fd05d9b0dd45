"""How a run of the GPU tests goes (`pytest -m gpu`): tests that take long begin first, workers of
pytest-xdist take tests from each other, and a failure says why at once, since a run over many
workers may be cut off before its end."""

from __future__ import annotations

import pytest

# whole models, and other programs; they take minutes
LONG_FILES = (
    "test_norm_models",
    "test_models",
    "test_exports",
    "test_image_models",
    "test_rotary_models",
    "test_quantized_models",
    "test_profiler",
)
_LONG_TEST = "test_compute_sanitizer_finds_nothing"
_LINES = 60  # the end of a failure's text, with the reason


class GpuRun:
    """A plugin of pytest, for the process that reports and for workers."""

    def pytest_configure(self, config: pytest.Config) -> None:
        """Choose work stealing in place of the default, which hands out neighbours in fixed
        portions: a few workers would have all of the long tests."""
        self._config = config
        if config.getoption("dist", None) == "load":
            config.option.dist = "worksteal"

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: not _takes_long(item))

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if not report.failed or reporter is None or hasattr(self._config, "workerinput"):
            return
        reporter.ensure_newline()
        reporter.section(f"{report.nodeid} failed in {report.when}", sep="-")
        reporter.write_line("\n".join(report.longreprtext.splitlines()[-_LINES:]))
        reporter.flush()


def _takes_long(item: pytest.Item) -> bool:
    return item.path.stem in LONG_FILES or item.name.partition("[")[0] == _LONG_TEST
