"""`ls`, `show` and `validate`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from tests.cli.conftest import Result
from witbench import registry
from witbench.cli import catalogue
from witbench.groups import choices, group_names

Run = Callable[..., Result]


def test_ls_lists_every_choice_with_a_summary(witbench: Run) -> None:
    listing = json.loads(witbench("ls", "json=true").out)
    assert {group: sorted(found) for group, found in listing.items()} == {g: choices(g) for g in group_names()}
    silent = [f"{group}={name}" for group, found in listing.items() for name, doc in found.items() if not doc]
    assert silent == []
    assert not [doc for found in listing.values() for doc in found.values() if doc.startswith("@")]
    assert listing["study"]["bench"].startswith("The main job")


def test_ls_takes_groups_in_the_plural(witbench: Run) -> None:
    out = witbench("ls", "sketches", "attacks").out
    assert out.startswith("sketch\n")
    assert "\nattack\n" in out
    assert "rht " in out
    assert "gpt_3m" not in out


def test_show_gives_docstring_knobs_and_config(witbench: Run) -> None:
    out = witbench("show", "rht").out
    assert "Randomized Hadamard" in out
    assert "sketch.params.k  default 256" in out
    assert "\n    k: 256" in out
    assert witbench("show", "sketch", "rht").out == out


def test_show_says_which_knob_must_be_given(witbench: Run) -> None:
    assert "placement.params.units  must be given" in witbench("show", "placement", "spread").out


def test_knobs_are_those_of_the_class() -> None:
    for group, known in (("sketch", registry.SKETCHES), ("placement", registry.PLACEMENTS)):
        for name in known.names():
            item = catalogue.item(group, name)
            registry.check_params("x", name, known.get(name), dict.fromkeys(item.knobs))


def test_show_finds_one_name_in_several_groups(witbench: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "choices", lambda group: ["none"] if group in ("attack", "sketch") else [])
    assert [each["group"] for each in json.loads(witbench("show", "none", "json=true").out)] == ["attack", "sketch"]


PLUGIN = '''raise SystemExit
class Theirs:
    """Their own sketch."""
    def __init__(self, *, width: int = 3): ...
'''


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str | None) -> None:
    """Pretend that a package with the sketch `theirs` is installed."""
    if source is not None:
        (folder / "their_sketches.py").write_text(source)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "their_sketches", raising=False)
    point = metadata.EntryPoint("theirs", "their_sketches:Theirs", "witbench.sketches")
    monkeypatch.setattr(registry.SKETCHES, "_plugins", {"theirs": point})


def test_a_plugin_is_listed_without_being_imported(
    tmp_path: Path, witbench: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        'raise SystemExit\nclass Theirs:\n    """Their own sketch."""\n    def __init__(self, *, width: int = 3): ...\n'
    )
    install(tmp_path, monkeypatch, source)
    assert "theirs    Their own sketch." in witbench("ls", "sketch").out
    assert "sketch.params.width  default 3" in witbench("show", "theirs").out


@pytest.mark.parametrize("source", [None, "class Theirs(:\n"])
def test_a_broken_plugin_is_one_warning_line(
    source: str | None, tmp_path: Path, witbench: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, source)
    result = witbench("ls", "sketch")
    assert result.status == 0
    assert "rht" in result.out
    assert result.err.startswith("warning: sketch theirs: its source their_sketches:Theirs cannot be read (")
    assert result.err.count("\n") == 1


def test_validate_accepts_refuses_and_prints(witbench: Run) -> None:
    assert witbench("validate", "sketch.params.k=512").out == "ok\n"
    refused = witbench("validate", "sketch.params.k=100")
    assert refused.status == 2
    assert "k=100" in refused.err
    assert json.loads(witbench("validate", "seed=7", "json=true").out)["seed"] == 7


def test_validate_tries_every_choice_and_says_what_is_needed(witbench: Run) -> None:
    result = witbench("validate", "tolerance", "data", "json=true")
    assert result.status == 0
    verdicts = json.loads(result.out)
    assert verdicts["tolerance=exact"] == verdicts["data=stdlib"] == "ok"
    assert verdicts["tolerance=calibrated"] == "needs tolerance.calibration=VALUE"
    assert verdicts["data=folder"] == "needs data.path=VALUE"


def test_validate_says_no_to_a_broken_choice(witbench: Run) -> None:
    result = witbench("validate", "placement", "placement.params.units=2")
    assert result.status == 1
    assert "broken: placement" in result.out


@pytest.mark.slow
def test_every_shipped_choice_is_valid(witbench: Run) -> None:
    result = witbench("validate")
    assert result.status == 0, result.out
