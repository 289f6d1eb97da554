"""The report: one file, readable by itself, that hides nothing."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tokendance_bench import run_report, verdict
from tokendance_bench.report import write_report
from tokendance_bench.results import write_results


class Page(HTMLParser):
    """Text, and every address that the page would load."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text = ""
        self.loads: list[str] = []
        self.open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)
        self.loads += [
            value or "" for name, value in attributes if name == "src" or (tag == "link" and name == "href")
        ]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def written(folder: Path) -> Page:
    page = Page(write_report(folder, folder / "report.html").read_text(encoding="utf-8"))
    assert page.open == []
    page.text = " ".join(page.text.split())
    return page


@pytest.fixture
def results(tmp_path: Path) -> Path:
    rows = [
        {"system": "vllm", "round": 4, "seconds": 9.0},
        {"system": "tokendance-fast", "round": 4, "seconds": 3.0},
    ]
    headline: dict[str, Any] = {"speedup_vs_vllm_fast_n10": 3.0, "speedup_vs_shared_first_balanced_n10": 0.8}
    write_results(tmp_path / "prefill", headline, rows, {"cpu": "a <cpu>", "complete": True})
    write_results(
        tmp_path / "overhead", {"slowdown": 1.002}, [{"kind": "short", "ratio": 1.0}], {"complete": False}
    )
    return tmp_path


def test_the_page_holds_its_pictures_and_loads_nothing(results: Path) -> None:
    page = written(results)
    assert len(page.loads) == 2
    assert all(re.match(r"data:image/png;base64,[A-Za-z0-9+/=]{1000}", load) for load in page.loads)
    assert (results / "prefill" / "prefill.png").exists()


def test_losing_numbers_come_before_everything_measured(results: Path) -> None:
    text = written(results).text
    losing = "0.8 times as fast as vLLM with shared blocks first"
    assert text.index(losing) < text.index("How long does a round's prefill take")
    assert "speedup_vs_vllm_fast_n10: " not in text[: text.index("What is missing")]


def test_missing_benchmarks_are_named_with_their_question(results: Path) -> None:
    text = written(results).text
    assert (
        "fidelity (How far are answers from full prefill, in one round and over many?): not measured" in text
    )


def test_an_interrupted_run_says_so(results: Path) -> None:
    assert "This run was interrupted or failed" in written(results).text


def test_rows_that_cannot_be_drawn_are_still_shown(results: Path) -> None:
    write_results(results / "pareto", {}, [{"backend": "odd one"}], {})
    text = written(results).text
    assert "not drawn" in text
    assert "odd one" in text


def test_a_broken_file_is_reported_and_the_rest_shown(results: Path) -> None:
    (results / "judge").mkdir()
    (results / "judge" / "results.json").write_text("{")
    text = written(results).text
    assert "cannot read" in text
    assert "How long does a round's prefill take" in text


def test_the_paper_stands_beside_with_what_differs(results: Path) -> None:
    text = written(results).text
    assert "The paper: Up to 1.9x over per-request CacheBlend" in text
    assert "What differs here:" in text


def test_results_as_the_documentation_keeps_them_are_read(tmp_path: Path) -> None:
    path = write_results(tmp_path, {"kl_fast": 0.1}, [], {})
    path.rename(tmp_path / "fidelity.json")
    assert "kl_fast" in written(tmp_path).text


def test_a_folder_that_is_not_there_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run_report.main([str(tmp_path / "no")])
    assert ended.value.code == 2
    assert "no folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("key", "value", "loses"),
    [
        ("speedup_vs_vllm_fast_n10", 0.99, True),
        ("speedup_vs_vllm_fast_n10", 1.01, False),
        ("round_latency_vs_vllm_n10", 1.2, True),
        ("slowdown", 1.02, True),
        ("slowdown_upper95", 9.0, False),
        ("outputs_identical", False, True),
        ("drift_balanced", 2.0, True),
        ("kl_fast", 100.0, False),
        ("workload", "x", False),
    ],
)
def test_what_loses(key: str, value: Any, loses: bool) -> None:
    assert verdict.loses(key, value) is loses
