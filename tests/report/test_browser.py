"""Pages in a real browser: every tab, search, folding, sorting, keys, paper, and hostile names."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

import onnx
import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect

from onnxbolt.pipeline import optimize
from onnxbolt.report.page import page as page_of
from tests.conftest import ZOO
from tests.report import reports
from tests.zoo.materialize import materialize

MODELS = {"ResNet-50": "resnet50.ts", "BERT": "bert_base.ts", "DETR, a detector": "detr_r50.ts"}
SIZE: ViewportSize = {"width": 1440, "height": 900}
NARROW: ViewportSize = {"width": 390, "height": 844}
Scheme = Literal["light", "dark"]
DATA = "JSON.parse(document.getElementById('data').textContent)"
SVG_AFTER = '[data-pane="after"] svg'
HEIGHT = "drawing => drawing.viewBox.baseVal.height"
PATIENCE = 600_000  # milliseconds; a busy machine does not come near
expect.set_options(timeout=PATIENCE)
COLOURS = [
    *("paper", "raised", "ink", "soft", "accent", "good", "good-soft", "bad", "bad-soft"),
    *("accent-soft", "amber-soft", "violet-soft", "grey-soft", "taken"),
]
Open = Callable[..., Page]


@cache
def html_of(name: str) -> str:
    """The page of a model of the zoo, planned for an H200."""
    model = materialize(onnx.load(ZOO / f"{MODELS[name]}.onnx", load_external_data=False))
    return optimize(model, library=False, verify=False, archs=("sm_90a",)).html()


@cache
def html_of_tuned() -> str:
    """A page with every part."""
    return page_of(reports.tuned())


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Opens a page from a file, without network. At the end of the test nothing may have been
    written to the console, asked for, or blocked."""
    said: list[str] = []
    contexts = []

    def open_page(html: str, viewport: ViewportSize = SIZE, scheme: Scheme = "light") -> Page:
        file = tmp_path / "report.html"
        file.write_text(html, encoding="utf-8")
        context = browser.new_context(viewport=viewport, color_scheme=scheme, offline=True)
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        found = context.new_page()
        found.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        found.on("pageerror", lambda error: said.append(f"error: {error}"))
        found.on("dialog", lambda dialog: said.append(f"dialog: {dialog.message}"))
        found.on("request", lambda request: said.extend(_asked(request.url, file)))
        found.goto(file.as_uri())
        return found

    yield open_page
    for context in contexts:
        context.close()
    assert said == []


def _asked(url: str, file: Path) -> list[str]:
    return [] if url == file.as_uri() else [f"asked for {url}"]


def choose_tab(page: Page, name: str) -> None:
    page.get_by_role("tab", name=name).click()


def data_of(page: Page) -> Any:
    return page.evaluate(DATA)


def blocks(page: Page, side: str) -> Any:
    return page.locator(f'[data-pane="{side}"] .block')


def details(page: Page) -> str:
    return page.locator("#details").inner_text()


# --- every part ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_tab_of_real_models_opens(name: str, scheme: Scheme, opened: Open) -> None:
    page = opened(html_of(name), scheme=scheme)
    tabs = page.get_by_role("tab")
    assert tabs.count() >= 4
    for number in range(tabs.count()):
        tabs.nth(number).click()
        panel = page.locator(f"#{tabs.nth(number).get_attribute('aria-controls')}")
        expect(panel).to_be_visible()
        assert page.locator('[role="tabpanel"]:visible').count() == 1
        assert len(panel.inner_text()) > 100


def test_every_part_of_a_report_is_shown(opened: Open) -> None:
    page = opened(html_of_tuned())
    titles = [tab.split()[0] for tab in page.get_by_role("tab").all_inner_texts()]
    assert titles == ["Overview", "Model", "Nodes", "Accuracy", "Decisions", "Tuning"]
    overview = page.locator("#overview").inner_text()
    assert "2.50×" in overview
    assert "measured on NVIDIA H200 (700 W)" in overview
    choose_tab(page, "Tuning")
    expect(page.locator(".curve .best")).to_be_visible()
    tuning = page.locator("#tuning").inner_text().replace("\N{NO-BREAK SPACE}", " ")
    assert "from 30.0 µs to 18.0 µs in 18 s" in tuning
    choose_tab(page, "Accuracy")
    assert page.locator("#accuracy tbody tr").count() == len(
        reports.tuned()["verification"]["rows"]
    )


# --- the drawing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_search_finds_blocks_and_brings_them_into_sight(name: str, opened: Open) -> None:
    page = opened(html_of(name))
    choose_tab(page, "Model")
    page.get_by_placeholder("Search names").fill("MatMul" if name == "BERT" else "conv")
    graphs, wanted = data_of(page)["graphs"], "matmul" if name == "BERT" else "conv"
    found = sum(
        wanted in f"{block['name']}\n{block['op']}\n{block['label']}".lower()
        for side in ("before", "after")
        for block in graphs[side]["blocks"]
    )
    assert found > 20
    expect(page.locator("#found")).to_have_text(f"{found} found")
    for number in range(1, 4):
        page.keyboard.press("Enter")
        expect(page.locator("#found")).to_have_text(f"{number} of {found}")
        expect(page.locator('[data-pane="before"] .block.chosen')).to_be_in_viewport()
    page.keyboard.press("Shift+Enter")
    expect(page.locator("#found")).to_have_text(f"2 of {found}")
    page.get_by_placeholder("Search names").fill("no such node")
    expect(page.locator("#found")).to_have_text("0 found")
    assert page.locator(".block.match").count() == 0


@pytest.mark.parametrize(
    ("name", "frame"), [("ResNet-50", "5 ×"), ("BERT", "11 ×"), ("DETR, a detector", "5 ×")]
)
def test_repeated_layers_are_folded(name: str, frame: str, opened: Open) -> None:
    page = opened(html_of(name))
    choose_tab(page, "Model")
    frames, svg = page.locator('[data-pane="after"] .frame text'), page.locator(SVG_AFTER)
    assert frame in frames.all_text_contents()
    folded = svg.evaluate(HEIGHT)
    page.get_by_label("Fold layers and shapes").uncheck()
    assert frames.count() == 0
    assert svg.evaluate(HEIGHT) > 1.2 * folded
    # in the folded drawing one block stands for those of all equal layers
    page.get_by_label("Fold layers and shapes").check()
    graph = data_of(page)["graphs"]["after"]
    first, second, *more = graph["alike"][0]
    page.get_by_role("button", name="After", exact=True).click()
    page.get_by_placeholder("Search names").fill(graph["blocks"][second]["name"])
    page.keyboard.press("Enter")
    expect(page.locator(f"#after-{first}")).to_be_in_viewport()
    assert f"The same in {2 + len(more)} equal layers" in details(page)


def test_shapes_that_were_simplified_away_are_left_out(opened: Open) -> None:
    page = opened(html_of("BERT"))
    choose_tab(page, "Model")
    graph = data_of(page)["graphs"]["before"]
    left_out = dict(graph["stand_ins"])
    assert len(left_out) > 100
    assert all(graph["blocks"][place]["kind"] == "gone" for place in left_out)
    place, stand_in = next((p, s) for p, s in left_out.items() if s not in left_out)
    page.get_by_role("button", name="Before", exact=True).click()
    page.get_by_placeholder("Search names").fill(graph["blocks"][place]["name"])
    page.keyboard.press("Enter")
    expect(page.locator('[data-pane="before"] .block.chosen')).to_be_in_viewport()
    assert "Simplified" in details(page)
    page.get_by_label("Fold layers and shapes").uncheck()
    expect(page.locator(f"#before-{place}")).to_have_class("block gone match chosen")
    assert stand_in > place


def test_a_fused_node_leads_to_its_sources_and_back(opened: Open) -> None:
    page = opened(html_of("ResNet-50"))
    choose_tab(page, "Model")
    blocks(page, "after").nth(0).click()
    node = data_of(page)["graphs"]["after"]["blocks"][0]
    told = details(page)
    assert node["op"] in told
    for word in ("Configuration", "Time on sm_90", "ONNX Runtime", "Roofline", "Source nodes"):
        assert word in told
    related = page.locator('[data-pane="before"] .block.related')
    assert related.count() == len(node["link"][2]) > 1
    expect(related.first).to_be_in_viewport()
    page.locator("#details").get_by_role("button").first.click()
    assert page.locator('[data-pane="before"] .block.chosen').count() == 1
    assert "Fused into" in details(page)


def test_zoom_keeps_the_middle_and_small_blocks_have_no_text(opened: Open) -> None:
    page = opened(html_of("ResNet-50"))
    choose_tab(page, "Model")
    page.get_by_role("button", name="100%").or_(page.locator("#zoom")).first.click()
    expect(page.locator("#zoom")).to_have_text("100%")
    page.locator("#in").click()
    expect(page.locator("#zoom")).to_have_text("125%")
    assert page.locator(".block text").count() > 0
    for _ in range(8):
        page.locator("#out").click()
    assert page.locator(".block text").count() == 0
    page.locator("#fit").click()
    assert page.locator(".block text").count() > 0


def test_one_model_can_fill_the_place_of_both(opened: Open) -> None:
    page = opened(html_of("ResNet-50"))
    choose_tab(page, "Model")
    for name, shown in (("Before", [True, False]), ("After", [False, True]), ("Both", [True] * 2)):
        page.get_by_role("button", name=name, exact=True).click()
        panes = [page.locator(f'[data-pane="{side}"]') for side in ("before", "after")]
        assert [pane.is_visible() for pane in panes] == shown


def test_the_keyboard_is_enough(opened: Open) -> None:
    page = opened(html_of("ResNet-50"))
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#model")).to_be_visible()
    page.keyboard.press("End")
    expect(page.locator("#decisions")).to_be_visible()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#overview")).to_be_visible()
    page.keyboard.press("ArrowRight")
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.classList.contains('canvas')"):
            break
    chosen = page.locator('[data-pane="before"] .block.chosen')
    seen = []
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowUp", "ArrowLeft"):
        page.keyboard.press(key)
        expect(chosen).to_have_count(1)
        seen.append(chosen.get_attribute("id"))
    assert len(set(seen)) >= 3
    assert seen[3] == seen[1]
    canvas = page.locator('[data-pane="before"] .canvas')
    assert canvas.get_attribute("aria-activedescendant") == seen[-1]
    page.keyboard.press("+")
    page.keyboard.press("0")
    expect(page.locator("#zoom")).to_have_text("100%")


# --- tables ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_columns_sort_both_ways(name: str, opened: Open) -> None:
    page = opened(html_of(name))
    choose_tab(page, "Nodes")
    table = data_of(page)["tables"]["nodes"]
    column = [title for title, _ in table["columns"]].index("ONNX Runtime, µs")
    head = page.locator("#nodes thead th").nth(column)
    cells = page.locator(f"#nodes tbody td:nth-child({column + 1})")
    values = sorted((row[column] for row in table["rows"]), key=lambda cell: -cell[0])
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert cells.all_inner_texts()[:50] == [text for _, text in values[:50]]
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert cells.first.inner_text() == values[-1][1]
    page.locator("#nodes thead button").first.click()
    names = [text.strip() for text in page.locator("#nodes tbody td:first-child").all_inner_texts()]
    assert names == sorted(names)
    assert head.get_attribute("aria-sort") is None


def test_long_tables_are_filtered_and_drawn_in_parts(opened: Open) -> None:
    page = opened(html_of("DETR, a detector"))
    choose_tab(page, "Nodes")
    rows, total = page.locator("#nodes tbody tr"), len(data_of(page)["tables"]["nodes"]["rows"])
    assert total > 200 == rows.count()
    page.get_by_role("button", name="Show 200 more").click()
    assert rows.count() == total
    page.locator("#nodes").get_by_placeholder("Filter rows").fill("attention")
    assert 0 < rows.count() < total
    assert all("attention" in text.lower() for text in rows.all_inner_texts())


def test_a_row_leads_to_its_block(opened: Open) -> None:
    page = opened(html_of("BERT"))
    choose_tab(page, "Nodes")
    link = page.locator("#nodes tbody button.link").nth(60)
    name = link.inner_text()
    link.click()
    expect(page.locator("#model")).to_be_visible()
    expect(page.locator('[data-pane="after"] .block.chosen')).to_be_in_viewport()
    assert name in details(page)


# --- forms of the page ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ResNet-50", "DETR, a detector"])
def test_a_narrow_window_needs_no_sideways_scrolling(name: str, opened: Open) -> None:
    page = opened(html_of(name), NARROW)
    tabs = page.get_by_role("tab")
    for number in range(tabs.count()):
        tabs.nth(number).click()
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_a_narrow_window_shows_all_times_and_readable_letters(opened: Open) -> None:
    page = opened(html_of_tuned(), NARROW)
    for cell in page.locator(".bars tbody td:last-child").all():
        box = cell.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= NARROW["width"]
    choose_tab(page, "Tuning")
    for text in page.locator(".curve text").all():
        box = text.bounding_box()
        assert box is not None
        assert box["height"] > 9


def test_a_long_name_leaves_room_for_other_rows(opened: Open) -> None:
    report = reports.tuned()
    for node in report["kept"]:
        node["node"] = "name" * 2000
    page = opened(page_of(report))
    choose_tab(page, "Decisions")
    for row in page.locator("#decisions tbody tr").all():
        box = row.bounding_box()
        assert box is not None
        assert box["height"] < 200
    name = page.locator("#decisions tbody td:first-child span").first
    assert len(name.get_attribute("title") or "") == 8000


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_from_what_is_behind_them(scheme: Scheme, opened: Open) -> None:
    page = opened(html_of_tuned(), scheme=scheme)
    colours = page.evaluate(
        """(names) => Object.fromEntries(names.map((name) => {
            const probe = document.body.appendChild(document.createElement("i"));
            probe.style.color = `var(--${name})`;
            const found = getComputedStyle(probe).color.match(/\\d+/g).slice(0, 3).map(Number);
            probe.remove();
            return [name, found];
          }))""",
        COLOURS,
    )
    pairs = [("ink", behind) for behind in colours if behind.endswith(("paper", "raised", "soft"))]
    pairs = [pair for pair in pairs if pair[1] != "soft"]
    pairs += [("soft", "paper"), ("soft", "raised"), ("soft", "accent-soft"), ("ink", "taken")]
    pairs += [("accent", "raised"), ("good", "good-soft"), ("bad", "bad-soft"), ("bad", "raised")]
    for text, behind in pairs:
        assert contrast(colours[text], colours[behind]) >= 4.5, (text, behind)


def contrast(one: list[int], other: list[int]) -> float:
    """The contrast ratio of two colours (WCAG 2)."""
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: list[int]) -> float:
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in (value / 255 for value in colour)
    ]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_paper_has_every_part(opened: Open, tmp_path: Path) -> None:
    page = opened(html_of_tuned())
    paper = page.pdf(prefer_css_page_size=True)
    assert paper.startswith(b"%PDF")
    # printing has filled all parts
    choose_tab(page, "Nodes")
    assert page.locator("#nodes tbody tr").count() > 0
    page.emulate_media(media="print")
    assert page.locator('[role="tabpanel"]:visible').count() == 6
    expect(page.locator(".tabs")).to_be_hidden()
    # a heading and the words behind it stay with their table
    for kind in ("h2", "#tuning p", ".key"):
        style = page.locator(kind).first.evaluate("e => getComputedStyle(e).breakAfter")
        assert style == "avoid", kind
    background = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(background) == "rgb(255, 255, 255)"


# --- hostile names --------------------------------------------------------------------------------


def test_a_model_s_names_are_texts_and_nothing_else(opened: Open) -> None:
    report = reports.renamed(reports.tuned())
    page = opened(page_of(report))
    title = page.title()
    tags = page.evaluate("[...new Set([...document.querySelectorAll('*')].map(e => e.localName))]")
    assert not {"img", "b", "iframe"} & set(tags)
    tabs = page.get_by_role("tab")
    for number in range(tabs.count()):
        tabs.nth(number).click()
    choose_tab(page, "Model")
    for side in ("before", "after"):
        for number, block in enumerate(data_of(page)["graphs"][side]["blocks"]):
            if page.locator(f"#{side}-{number}").count():
                page.locator(f"#{side}-{number}").click()
                assert (
                    page.locator("#details .name").evaluate("e => e.textContent") == block["name"]
                )
    page.get_by_placeholder("Search names").fill("</script>")
    assert int(page.locator("#found").inner_text().split()[0]) > 0
    assert page.title() == title
    assert (
        page.evaluate(
            "document.querySelectorAll('img, b, script:not([id]):not(:last-child)').length"
        )
        == 0
    )
    assert page.evaluate("({}).polluted === undefined")
    assert "{{ 7 * 7 }}" in page.content()


ODD = {
    "no nodes": "g (float[2] x) => (float[2] x) { }",
    "one node": "g (float[0,4] x) => (float[0,4] y) { y = Relu(x) }",
    "a sequence": "g (float[2,8] x) => (seq(float[2,8]) s) { s = SequenceConstruct(x, x) }",
    "branches": """g (float[2,8] x, bool c) => (float[2,8] y) { y = If (c) <
        then_branch = t () => (float[2,8] p) { q = Exp(x) p = Neg(q) },
        else_branch = e () => (float[2,8] r) { r = Abs(x) }> }""",
    "symbols": "g (float[B,4] x, float[4,N] w) => (float[B,N] y) { a = MatMul(x, w) y = Relu(a) }",
}


@pytest.mark.parametrize("name", ODD)
def test_odd_models(name: str, opened: Open) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {ODD[name]}')
    for node in model.graph.node:
        node.name = f"{'long ' * 2000}{node.op_type}"
    found = optimize(model, library=False, verify=False, archs=("sm_80", "sm_90a"))
    for viewport in (SIZE, NARROW):
        page = opened(found.html(), viewport)
        tabs = page.get_by_role("tab")
        for number in range(tabs.count()):
            tabs.nth(number).click()
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        if page.locator("#tab-model").count():
            choose_tab(page, "Model")
            blocks(page, "after").first.click()
            assert "Output" in details(page)
    if name == "branches":
        assert "then_branch of If" in page.locator('[data-pane="after"] .frame').first.inner_html()


def test_the_policy_stops_what_is_not_of_the_page(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    hole = "<script>document.title = 'broken'</script><img src='data:image/png;base64,AAAA'>"
    file.write_text(html_of_tuned().replace("<main>", f"<main>{hole}"), encoding="utf-8")
    context = browser.new_context()
    page = context.new_page()
    blocked: list[str] = []
    page.on("console", lambda message: blocked.append(message.text))
    page.goto(file.as_uri())
    assert page.title() != "broken"
    assert len(blocked) == 2
    assert all("Content Security Policy" in text for text in blocked)
    context.close()


# --- large models ---------------------------------------------------------------------------------


def test_two_thousand_nodes(opened: Open, record_property: Callable[[str, object], None]) -> None:
    """Elements are counted, not seconds, which a busy machine would lengthen; the seconds are
    printed."""
    started = time.process_time()
    html = page_of(reports.large(400))
    made = time.process_time() - started
    assert len(html.encode()) < 5e6
    page = opened(html)
    assert page.evaluate("document.querySelectorAll('*').length") < 1000
    choose_tab(page, "Model")
    assert page.evaluate(f"{DATA}.graphs.after.blocks.length") == 2000
    assert 20 < page.locator(".block").count() < 400
    assert page.evaluate("document.querySelectorAll('*').length") < 3000
    loaded = page.evaluate("performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd")
    drawn = page.evaluate(
        """() => {
          const start = performance.now();
          document.getElementById("fit").click();
          document.body.getBoundingClientRect();
          return performance.now() - start;
        }"""
    )
    choose_tab(page, "Nodes")
    assert page.locator("#nodes tbody tr").count() == 200
    seconds = {"made": made, "loaded": loaded / 1000, "drawn": drawn / 1000}
    for name, value in seconds.items():
        record_property(name, round(value, 3))
    print(seconds)
