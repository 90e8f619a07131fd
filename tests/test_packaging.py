from __future__ import annotations

import email
import email.message
import json
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from witbench.config import compose
from witbench.groups import choices, group_names

REPOSITORY = Path(__file__).resolve().parents[1]

OUTSIDE = """
import json, sys
# Not by PYTHONPATH, and without site: an editable install in this environment must not answer instead.
sys.path[:0] = [sys.argv[1]]
sys.path.append(sys.argv[2])
import witbench.sweeps
from witbench import groups
from witbench.cli.main import main
from witbench.config import compose
assert main(["ls"]) == 0 and main(["show", "rht"]) == 0
found = {group: groups.choices(group) for group in groups.group_names()}
print(json.dumps([witbench.sweeps.__file__, str(groups.config_dir()), found, compose(["sketch=gaussian"]).to_plain()]))
"""


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(each) for each in command], cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel made from the source distribution, so that both hold all they should."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, REPOSITORY, cwd=out)
    (built,) = out.glob("*.whl")
    return built


def metadata(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_the_wheel_is_pure_and_holds_the_package_alone(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    top = {name.partition("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"witbench"}
    assert {"witbench/py.typed", "witbench/sweeps/__init__.py", "witbench/configs/config.yaml"} <= set(names)
    assert not [name for name in names if name.endswith(".pyc")]
    assert [name for name in names if name.endswith("licenses/LICENSE")]


def test_requirements_have_bounds_on_both_sides(wheel: Path) -> None:
    requirements = [text for text in metadata(wheel).get_all("Requires-Dist", []) if not text.startswith("witbench[")]
    assert [text for text in requirements if text.startswith("torch<3,>=2.11")]
    for text in requirements:
        assert ">=" in text, text
        assert "<" in text, text


def test_an_installed_wheel_works_outside_the_repository(wheel: Path, tmp_path: Path) -> None:
    site, work = tmp_path / "site", tmp_path / "work"
    work.mkdir()
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", site, wheel, cwd=work)
    libraries = sysconfig.get_path("purelib")
    text = run(sys.executable, "-I", "-S", "-c", OUTSIDE, site, libraries, cwd=work)
    *_, last = text.splitlines()
    sweeps, configs, found, plain = json.loads(last)
    assert Path(sweeps).is_relative_to(site)
    assert Path(configs) == site / "witbench" / "configs"
    assert found == {group: choices(group) for group in group_names()}
    assert plain == compose(["sketch=gaussian"]).to_plain()
    assert (site / "bin" / "witbench").is_file()
    assert not list(work.iterdir())
