"""Which package may import which, and what the public verifier may not import."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "witbench"

# A layer and what it may import of witbench beside itself and the common modules. Training and kernels, the lowest,
# share two modules: the vocabulary of states, and Merkle roots.
COMMON = {"errors", "registry"}
CONFIG = {"config", "schema", "groups"}
LAYERS: dict[str, set[str]] = {
    "training": {"kernels.digest"},
    "kernels": {"training.state"},
    "protocol": {"training", "kernels", *CONFIG},
    "evaluation": set(),
    "calibration": {"trials", "protocol", "training", "kernels", "evaluation", *CONFIG},
    "attacks": {"protocol", "training", "kernels", "evaluation", *CONFIG},
    "figures": {"evaluation"},
    "trials": {"attacks", "evaluation", "protocol", "training", "kernels", *CONFIG},
    "bench": {"trials", "calibration", "attacks", "evaluation", "figures", "protocol", "training", "kernels", *CONFIG},
}

FORBIDDEN_IN_VERIFIER = ("torch", "numpy", "scipy", "hydra", "omegaconf", "matplotlib")


def modules(layer: str) -> list[Path]:
    return sorted((PACKAGE / layer).rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Every module a file imports, at its top or inside functions, for types or for good."""
    found: set[str] = set()
    package = ".".join(path.relative_to(ROOT).with_suffix("").parts[:-1])
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base]).rstrip(".")
            found |= {f"{base}.{alias.name}" for alias in node.names}
    return found


def own(names: set[str]) -> set[str]:
    """Those of witbench, without the package's name."""
    return {name.removeprefix("witbench.") for name in names if name.startswith("witbench.")}


def allowed(name: str, layer: str) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in {layer, *COMMON, *LAYERS[layer]})


def test_imports_finds_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    file = tmp_path / "witbench" / "kernels" / "bad.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "import a.b\nfrom witbench import cli\ndef f():\n    from ..protocol import tape\n    from . import c\n"
    )
    assert imports(file) == {"a.b", "witbench.cli", "witbench.protocol.tape", "witbench.kernels.c"}
    assert not allowed("protocol.tape", "kernels")


@pytest.mark.parametrize("layer", LAYERS)
def test_dependencies_point_one_way(layer: str) -> None:
    assert modules(layer)
    wrong = {
        f"{path.relative_to(ROOT)} imports witbench.{name}"
        for path in modules(layer)
        for name in own(imports(path))
        if not allowed(name, layer)
    }
    assert not wrong


def test_every_package_has_a_rule() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages - {"cli"} == set(LAYERS)


@pytest.mark.parametrize("layer", ["evaluation", "figures"])
def test_results_are_read_without_torch(layer: str) -> None:
    assert not [path for path in modules(layer) for name in imports(path) if name.partition(".")[0] == "torch"]


def test_only_the_command_line_knows_the_command_line() -> None:
    assert not [
        path for layer in LAYERS for path in modules(layer) if any(n.startswith("cli") for n in own(imports(path)))
    ]


def test_hydra_stays_in_one_module() -> None:
    users = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if any(name.partition(".")[0] in ("hydra", "omegaconf") for name in imports(path))
    }
    assert users <= {"groups.py", "cli/main.py"}


def test_files_are_short() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for folder in ("witbench", "sweeps", "tests")
        for path in (ROOT / folder).rglob("*.py")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 500
    }
    assert not long


def loaded_by(code: str) -> set[str]:
    """Which of the heavy packages a fresh interpreter has loaded after some code."""
    check = f"import sys\n{code}\nprint(' '.join(name for name in {FORBIDDEN_IN_VERIFIER!r} if name in sys.modules))"
    result = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(result.stdout.splitlines()[-1].split())


def test_the_verifier_needs_no_heavy_package() -> None:
    commands = (
        "from witbench.cli.main import main\nassert main(['verify', '--help']) == 0\nassert main(['--version']) == 0"
    )
    modules = "import witbench.protocol.verifier, witbench.protocol.transcript, witbench.protocol.runlog"
    assert loaded_by(f"{modules}\n{commands}") == set()


def test_listing_needs_neither_torch_nor_numpy() -> None:
    commands = "".join(
        f"assert main({argv!r}) == 0\n" for argv in (["--help"], ["ls"], ["show", "rht"], ["train", "--help"])
    )
    assert not loaded_by(f"from witbench.cli.main import main\n{commands}") & {"torch", "numpy", "scipy"}
