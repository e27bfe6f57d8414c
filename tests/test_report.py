"""The report: its contents, and how a browser shows it."""

import re
import shutil
from pathlib import Path

import pytest
from fabricated import write_run

from offline_gntd.analysis import FIGURES, render, report
from offline_gntd.analysis.table import Cell, Table, html_table
from offline_gntd.experiments.definitions import Experiment, Protocol, store

REPOSITORY = Path(__file__).parents[1]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PHONE, DESK = 400, 1280  # pixels across


def study(name="study", seeds=2, **changes):
    experiment = Experiment(name, ("cartpole-replay",), ("td", "dqn"), 2, Protocol(20, 10, 1))
    store(experiment)
    for seed in range(seeds):
        write_run(experiment, "td", seed, [10, 20 + seed], [5, 7])
        metrics = {"td_error_abs_target": [1, 0.6]}
        write_run(experiment, "dqn", seed, [100, 200 + seed], [1, 2], metrics=metrics, **changes)


@pytest.fixture
def few_figures(monkeypatch):
    """One figure per experiment: drawing all takes seconds."""
    monkeypatch.setattr(report, "FIGURES", {"profiles": FIGURES["profiles"]})


def test_contents(few_figures):
    study()
    study("unfinished", seeds=1, status="diverged", commit="decaf-changed")
    html = render.report().read_text()
    for words in (
        "Aggregates over datasets",
        "Probability of improvement",
        "Published numbers",
        "1 dataset × 2 algorithms × 2 seeds, 20 updates",
        "highest mean score: DQN",
        "data:image/png;base64,",
        "sha256 of its rows",
        "c0ffee",
        "abacus",
        "INCOMPLETE: 2 runs are missing",
        "1 runs diverged",
        "uncommitted changes",
        "FEW SEEDS (2)",
        "Tarasov",
    ):
        assert words in html
    assert html.count("<section") == 3  # two experiments and the sources
    assert not re.findall(r"(?:src|href)=\"(?!data:|#)", html)  # nothing from anywhere else


def test_refused_experiments_are_named(few_figures, home):
    study()
    study("odd", env_id="CartPole-v0")
    html = render.report().read_text()
    assert "odd is not shown: the runs on cartpole-replay differ in environment" in html
    assert html.count('-section"><h2>') == 1


def test_names_are_escaped():
    table = Table("<b>", ("<i>",), ((Cell("<script>"),),), None)
    html = html_table(table)
    assert not re.search(r"<(b|i|script)>", html)


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="make test-all installs playwright")
    with playwright.sync_playwright() as started:
        own = next(filter(None, map(shutil.which, BROWSERS)), None)
        browser = started.chromium.launch(executable_path=own, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.mark.slow
def test_report_of_exported_results_in_a_browser(browser, home):
    (home / "results").mkdir()
    for path in (REPOSITORY / "results").glob("*.*"):
        shutil.copy(path, home / "results")
    page = render.report()
    for width in (PHONE, DESK):
        tab = browser.new_page(viewport={"width": width, "height": 800})
        wrong, asked_for = [], []
        tab.on("pageerror", lambda error, wrong=wrong: wrong.append(str(error)))
        tab.on("console", lambda message, wrong=wrong: wrong.append(message.text))
        tab.on("request", lambda request, asked_for=asked_for: asked_for.append(request.url))
        tab.goto(page.as_uri())
        assert not wrong
        assert {url.partition(":")[0] for url in asked_for} <= {"file", "data"}
        assert tab.evaluate("document.documentElement.scrollWidth") == width  # nothing sticks out
        assert tab.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
        text = float(tab.evaluate("parseFloat(getComputedStyle(document.querySelector('td')).fontSize)"))
        assert text >= 12
        tab.close()


@pytest.mark.slow
def test_tables_sort_in_a_browser(browser, tmp_path):
    texts = [
        ("b", "−5.0 ± 1.0"),
        ("a", "—"),
        ("c", "12.5"),
        ("d", "missing"),
        ("e", "3.00e+05"),
        ("f", "+2.1"),
    ]
    rows = tuple((Cell(name), Cell(value)) for name, value in texts)
    table = Table("a caption", ("name", "value"), rows, None, foot=((Cell("total"), Cell("9")),))
    path = tmp_path / "page.html"
    path.write_text(table.text("html"), encoding="utf-8")
    tab = browser.new_page()
    tab.goto(path.as_uri())

    def order():
        return "".join(tab.locator("tbody tr td:first-child").all_text_contents())

    assert order() == "bacdef"
    tab.get_by_role("button", name="value").click()
    assert order() == "bfcead"  # what has no value stays last …
    tab.get_by_role("button", name="value").click()
    assert order() == "ecfbad"  # … either way
    assert tab.locator("th").nth(1).get_attribute("aria-sort") == "descending"
    tab.get_by_role("button", name="name").click()
    assert order() == "abcdef"
    assert tab.locator("tfoot").inner_text().split() == ["total", "9"]
