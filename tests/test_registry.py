from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from witbench import groups
from witbench.config import compose
from witbench.errors import ConfigError
from witbench.registry import PLACEMENTS, SKETCHES, Registry, build

SOURCE = """
class Mine:
    def __init__(self, size: int, *, deep: bool = False) -> None:
        self.size, self.deep = size, deep

class Design:
    def __init__(self, rows: int = 3) -> None:
        self.rows = rows

WEAK = {"p": 0.25, "lag": 5}
"""

Install = Callable[[str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """A package whose entry points are the given text, on the path of this process."""

    def write(entry_points: str) -> None:
        (tmp_path / "wb_plugin.py").write_text(SOURCE)
        (tmp_path / "wb_broken.py").write_text("import there_is_no_such_module\n")
        info = tmp_path / "wb_plugin-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: wb-plugin\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(entry_points)
        monkeypatch.syspath_prepend(tmp_path)
        importlib.invalidate_caches()

    return write


def made(group: str | None = None) -> Registry[object]:
    entries = {"fractions": "fractions:Fraction", "one": 1}
    return Registry("thing", entries, group=group, aliases={"rational": "fractions"})


def test_entries_are_imported_when_asked_for() -> None:
    from fractions import Fraction

    registry = made()
    assert registry.names() == ["fractions", "one"]
    assert registry.get("fractions") is registry.get("rational") is Fraction
    assert registry.get("one") == 1
    assert registry.target("rational") == "fractions:Fraction"
    assert registry.target("one") is None
    assert "rational" in registry
    assert "two" not in registry


@pytest.mark.parametrize("ask", [Registry.get, Registry.target, Registry.check_name])
def test_unknown_names_get_the_list_and_the_nearest(ask: Callable[[Registry[object], str], object]) -> None:
    with pytest.raises(
        ConfigError, match=r"^thing=fraction: unknown; choose from fractions, one; did you mean fractions\?$"
    ):
        ask(made(), "fraction")
    with pytest.raises(ConfigError, match=r"^thing=zzz: unknown; choose from fractions, one$"):
        ask(made(), "zzz")


def test_register_adds_and_takes_no_name_over() -> None:
    registry = made()
    registry.register("two", 2)
    assert registry.get("two") == 2
    for taken in ("two", "one", "rational"):
        with pytest.raises(ConfigError, match="taken"):
            registry.register(taken, 3)


def test_build_names_the_parameters_that_there_are() -> None:
    assert build(SKETCHES, "rht", {"k": 64}).k == 64
    assert build(SKETCHES, "gaussian", {}).k == 64
    with pytest.raises(ConfigError, match=r"sketch\.params\.kk=1: rht has no such parameter; it takes k; did you mean"):
        build(SKETCHES, "rht", {"kk": 1})
    with pytest.raises(ConfigError, match=r"placement\.params\.units: spread needs it"):
        build(PLACEMENTS, "spread", {})
    with pytest.raises(ConfigError, match=r"takes none"):
        build(PLACEMENTS, "uniform", {"units": 2})


def test_every_built_in_entry_is_there() -> None:
    for registry in (SKETCHES, PLACEMENTS):
        assert [name for name, _ in registry.items()] == registry.names()


def test_plugins_come_by_entry_point_and_cannot_take_a_name_over(install: Install) -> None:
    install("[wb.things]\nmine = wb_plugin:Mine\none = wb_plugin:Mine\n")
    registry = made("wb.things")
    assert registry.names() == ["fractions", "mine", "one"]
    assert registry.plugins() == ["mine"]
    assert registry.get("one") == 1
    assert build(registry, "mine", {"size": 2, "deep": True}).deep


def test_a_broken_plugin_is_one_warning_and_harms_nothing_else(install: Install) -> None:
    install("[wb.things]\nbroken = wb_broken:Thing\nlost = wb_plugin:NotThere\nmine = wb_plugin:Mine\n")
    registry = made("wb.things")
    with pytest.warns(UserWarning, match="cannot be imported") as warned:
        assert [name for name, _ in registry.items()] == ["fractions", "mine", "one"]
    assert len(warned) == 2
    assert all("\n" not in str(each.message) for each in warned)
    with pytest.raises(ConfigError, match=r"thing=broken: the plug-in wb_broken:Thing .*there_is_no_such_module"):
        registry.get("broken")


def test_plugins_are_choices_of_their_config_group(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("[witbench.sketches]\nmine = wb_plugin:Design\n[witbench.protocols]\nlazy = wb_plugin:WEAK\n")
    for registry in (SKETCHES, groups.PROTOCOLS):
        monkeypatch.delitem(registry.__dict__, "_plugins", raising=False)
    assert "mine" in groups.choices("sketch")
    config = compose(["sketch=mine", "sketch.params.rows=5", "protocol=lazy", "protocol.lag=1"])
    assert (config.sketch.name, config.sketch.params) == ("mine", {"rows": 5})
    assert (config.protocol.name, config.protocol.p, config.protocol.lag) == ("lazy", 0.25, 1)
    assert config.protocol.switches == compose().protocol.switches
    with pytest.raises(ConfigError, match=r"sketch\.params\.cols=5: mine has no such parameter; it takes rows"):
        compose(["sketch=mine", "sketch.params.cols=5"])
    for registry in (SKETCHES, groups.PROTOCOLS):
        monkeypatch.delitem(registry.__dict__, "_plugins", raising=False)


def test_listing_names_imports_neither_torch_nor_numpy() -> None:
    code = (
        "import sys; from witbench.registry import SKETCHES, ATTACKS, PLACEMENTS, PROTOCOLS\n"
        "from witbench.groups import choices, compose_plain\n"
        "print([each.names() for each in (SKETCHES, ATTACKS, PLACEMENTS, PROTOCOLS)], choices('sketch'))\n"
        "compose_plain(['sketch=gaussian', 'placement=spread'])\n"
        "assert not {'torch', 'numpy'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, capture_output=True)
