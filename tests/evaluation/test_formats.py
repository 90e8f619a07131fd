"""Reports in every format: what they show, and that programs read back every field."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from typing import Any

import pytest

from tests.evaluation.samples import row
from witbench.errors import ConfigError
from witbench.evaluation.formats import FORMATS, exact, render, sequence
from witbench.evaluation.rates import binomial_rate, clopper_pearson
from witbench.evaluation.sequences import confidence_sequence
from witbench.evaluation.summary import Summary, summarise
from witbench.evaluation.table import plain_table

CONDITIONAL: dict[str, Any] = {"estimator": "conditional", "detected": None, "probability": 0.19}


@pytest.fixture
def summaries() -> list[Summary]:
    """A cell of whole runs, a conditional one, one whose trials all failed, one of a plug-in with an odd name."""
    rows = [row(seed, detected=seed < 3, clusters={"run": str(seed)}, placement="burst") for seed in range(10)]
    rows += [row(seed, **CONDITIONAL, units=(3, 4), v=(1.0, 1.0)) for seed in range(20, 24)]
    rows += [row(30, attack="procedure_trojan", detected=None, check=None, error="crashed")]
    rows += [row(40, attack="50%_of|all", placement="theirs:1")]
    return summarise(rows)


def test_text_is_the_table(summaries: list[Summary]) -> None:
    assert render(summaries) == render(summaries, "text") == plain_table(summaries)


def test_markdown_is_a_table_that_no_name_breaks(summaries: list[Summary]) -> None:
    lines = render(summaries, "markdown").splitlines()
    assert len(lines) == 2 + len(summaries)
    cells = [[cell.strip() for cell in line.replace(r"\|", "¦").strip("|").split("|")] for line in lines]
    assert len({len(each) for each in cells}) == 1
    header, rule, *body = cells
    assert header[4:9] == ["tokens", "estimate", "k/n", "runs", "rate"]
    assert header[9:] == ["10-90%", "theory", "first failing check", "seconds", "errors"]
    assert rule[0].startswith(":")
    assert rule[4].endswith(":")
    found = {each[0]: dict(zip(header, each, strict=True)) for each in body}
    assert found["50%_of¦all"]["k/n"] == "1/1"
    assert (found["procedure_trojan"]["k/n"], found["procedure_trojan"]["errors"]) == ("0/0", "1")
    whole = next(each for each in body if each[5] == "raw" and each[2] == "burst")
    rate = binomial_rate(3, 10)
    assert whole[6:10] == ["3/10", "10", "0.300", f"{rate.low:.3f}-{rate.high:.3f}"]


@pytest.mark.parametrize("form", ["markdown", "latex"])
def test_digits_stay_as_they_were_set(form: str) -> None:
    changes: dict[str, Any] = {"placement": "burst", "amount": 1024, "updates": 12_800}
    rows = [row(seed, **changes, detected=seed == 0, clusters={"run": str(seed)}) for seed in range(10)]
    words = render(summarise(rows), form).split()
    assert {"1,024", "1/10", "0.100", "0.0"} <= set(words), "also where a whole column looks like numbers"


def test_latex_is_booktabs_with_its_characters_escaped(summaries: list[Summary]) -> None:
    text = render(summaries, "latex")
    assert text.startswith("% needs \\usepackage{booktabs}\n\\begin{tabular}{lll")
    assert r"procedure\_trojan" in text
    assert r"50\%\_of|all" in text
    assert r"10-90\%" in text
    assert text.index(r"\toprule") < text.index(r"\midrule") < text.index("3/10") < text.index(r"\bottomrule")
    assert text.endswith("\\end{tabular}\n")


def test_csv_has_every_field_in_full(summaries: list[Summary]) -> None:
    text = render(summaries, "csv")
    assert "\r" not in text
    lines = list(csv.DictReader(io.StringIO(text)))
    for line, summary in zip(lines, summaries, strict=True):
        expected = dataclasses.asdict(summary)
        flat = {**expected.pop("cell"), **(expected.pop("rate") or {}), **expected}
        for name, value in flat.items():
            assert line[name] == ("" if value is None else str(value))
        if summary.rate is not None:
            assert float(line["low"]) == summary.rate.low, "every bit"


def test_json_is_typed_and_has_every_field(summaries: list[Summary]) -> None:
    plain = json.loads(render(summaries, "json"))
    for got, summary in zip(plain, summaries, strict=True):
        bounds, any_n = got.pop("clopper_pearson"), got.pop("sequence")
        assert got == dataclasses.asdict(summary)
        assert bounds == exact(summary)
        assert any_n == sequence(summary)


def test_clopper_pearson_is_given_where_trials_are_independent_whole_runs(summaries: list[Summary]) -> None:
    found = {(each.cell.attack, each.cell.estimator): exact(each) for each in summaries}
    bounds = found["substitution", "raw"]
    assert bounds is not None
    assert (bounds["low95"], bounds["high95"]) == clopper_pearson(3, 10)
    assert bounds["at_least95"] == clopper_pearson(3, 10, side="lower")[0]
    assert bounds["at_most95"] == clopper_pearson(3, 10, side="upper")[1]
    assert found["substitution", "conditional"] is None
    assert found["procedure_trojan", "raw"] is None
    at_any_n = next(sequence(each) for each in summaries if exact(each) == bounds)
    assert at_any_n is not None
    assert (at_any_n["low95"], at_any_n["high95"]) == confidence_sequence(3, 10)
    assert at_any_n["low95"] < bounds["low95"], "the price of looking at any n"
    assert at_any_n["high95"] > bounds["high95"]
    (shared,) = summarise([row(seed, clusters={"run": "a"}) for seed in range(10)])
    assert exact(shared) is None
    lines = list(csv.DictReader(io.StringIO(render([shared, *summaries], "csv"))))
    given = [line["attack"] for line in lines if line["clopper_pearson_at_most95"]]
    assert sorted(given) == ["50%_of|all", "substitution"]


def test_unknown_formats_are_refused(summaries: list[Summary]) -> None:
    with pytest.raises(ConfigError, match="format=html: allowed are text, markdown, latex, csv, json"):
        render(summaries, "html")


@pytest.mark.parametrize("form", FORMATS)
def test_the_same_rows_give_the_same_text_in_any_order(form: str) -> None:
    rows = [row(seed, detected=seed % 3 == 0, p=0.1 * (1 + seed % 2)) for seed in range(20)]
    assert render(summarise(rows), form) == render(summarise(reversed(rows)), form)
