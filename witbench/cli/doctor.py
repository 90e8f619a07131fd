"""`witbench doctor`: what this machine can do, and what to do about what it cannot."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from witbench.cli.command import JSON, Arguments, Command
from witbench.errors import WitbenchError
from witbench.protocol.sandbox import Sandbox


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        what: what was looked at.
        ok: whether it is as it should be.
        found: what is there.
        remedy: what to do when it is not ok; optional things say what they are for.
        needed: whether witbench cannot run without it.
    """

    what: str
    ok: bool
    found: str
    remedy: str = ""
    needed: bool = True

    def line(self) -> str:
        """The finding on one line."""
        rest = "" if self.ok or not self.remedy else f"; {self.remedy}"
        return f"{'ok' if self.ok else 'missing':<8} {self.what:<10} {self.found}{rest}"


def run(arguments: Arguments) -> int:
    """Print a line for each check; 1 when something that is needed is missing."""
    found = [check() for check in CHECKS]
    if arguments.options["json"]:
        print(json.dumps([asdict(each) for each in found], indent=2))
    else:
        print("\n".join(each.line() for each in found))
    return 1 if any(each.needed and not each.ok for each in found) else 0


def python() -> Finding:
    """The interpreter."""
    return Finding("python", sys.version_info >= (3, 11), platform.python_version(), "install Python 3.11 or newer")


def torch() -> Finding:
    """The installed torch, without importing it."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return Finding("torch", False, "not installed", "run make install, or pip install 'torch>=2.11'")
    release = tuple(int(part) for part in version.partition("+")[0].split(".")[:2])
    return Finding("torch", release >= (2, 11), version, "pip install 'torch>=2.11'")


def threads() -> Finding:
    """Processors this process may use."""
    usable = len(os.sched_getaffinity(0))
    limit = os.environ.get("OMP_NUM_THREADS")
    found = f"{usable} processors" + (f", OMP_NUM_THREADS={limit}" if limit else "")
    return Finding("threads", True, f"{found}; a run uses training.threads, whatever these are")


def isolation() -> Finding:
    """How replays can be isolated here, by starting a sandbox."""
    try:
        kind, reason = probe_sandbox()
    except (OSError, WitbenchError) as error:
        return Finding("sandbox", False, f"does not start ({error})", "replays need Linux and a working torch")
    if kind == "namespaces":
        return Finding("sandbox", True, "namespaces, a private root and a user of its own")
    remedy = "run as root or allow user namespaces; certificates will say `replay isolation: process only`"
    return Finding("sandbox", False, f"{kind} ({reason})", remedy, needed=False)


def probe_sandbox() -> tuple[str, str]:
    """Isolation of a sandbox started here, and why it is not better."""
    with Sandbox() as sandbox:
        return sandbox.isolation, sandbox.reason


def cache_folder() -> Path:
    """Where datasets are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "witbench"


def cache() -> Finding:
    """Whether datasets can be kept."""
    folder = cache_folder()
    there = next(each for each in (folder, *folder.parents) if each.exists())  # looking leaves nothing behind
    free = shutil.disk_usage(there).free / 2**30
    writable = there.is_dir() and os.access(there, os.W_OK)
    return Finding("cache", writable, f"{folder}, {free:.0f} GiB free", "set XDG_CACHE_HOME to a folder you may write")


def dataset() -> Finding:
    """Whether the default dataset is there."""
    folder = Path(sysconfig.get_path("stdlib"))
    count = sum(1 for _ in folder.glob("*.py"))
    remedy = "install Python's standard library as source, or use data=folder data.path=FOLDER"
    return Finding("dataset", count > 0, f"stdlib: {count} modules in {folder}", remedy)


def compiler() -> Finding:
    """A C compiler, which compiled kernels will need."""
    path = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    remedy = "only needed to build compiled kernels from source: install gcc"
    return Finding("compiler", path is not None, path or "no cc, gcc or clang", remedy, needed=False)


CHECKS: tuple[Callable[[], Finding], ...] = (python, torch, threads, isolation, cache, dataset, compiler)


COMMAND = Command(
    name="doctor",
    summary="Say what this machine can do, and what to do about what it cannot.",
    usage="",
    run=run,
    options=(JSON,),
    examples=(("doctor", "a line for each thing that witbench needs or can use"),),
)
