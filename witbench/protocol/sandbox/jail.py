"""The private world of a job: namespaces, a root directory of read-only library folders, and no privileges.

The server moves itself into a jail once (`enter`), before it imports anything large; each job then only adds its own
namespaces, scratch directory and /proc (`separate`, `settle`) and gives up what the server still had
(`renounce`). Nothing else of the machine's file system is reachable: run folders, tapes, openings, home directories.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from witbench.protocol.sandbox import linux

SCRATCH = "/scratch"
_SERVER_SCRATCH = 16 << 20
_SCRATCH_FILES = 65_536
_NOBODY = 65534
_SPARE_USERS = (61184, 65519)  # what systemd sets aside for users that exist for the life of a service
_NAMESPACES = linux.CLONE_NEWNS | linux.CLONE_NEWPID | linux.CLONE_NEWNET | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS
_SYSTEM_FOLDERS = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_MOUNT_POINTS = ("/mnt", "/media", "/srv", "/opt", "/run", "/var")  # the first that hides none of the sources
_OTHER_SCRATCH = ("tmp", "dev/shm")


def library_folders(package: Path, site_folders: Iterable[str]) -> list[Path]:
    """Existing folders that an interpreter with torch needs: standard library, site-packages, shared libraries.

    Args:
        package: folder of the witbench package; its siblings stay outside.
        site_folders: folders of installed packages.
    """
    names: list[str | Path] = [package, *site_folders, *_SYSTEM_FOLDERS]
    names += [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    names += [Path(prefix, name) for prefix in (sys.prefix, sys.base_prefix) for name in ("lib", "lib64")]
    return sorted({Path(name) for name in names if Path(name).exists()})


def enter(folders: Iterable[Path]) -> int:
    """Fork a child that lives in a jail of its own; returns 0 in it and its pid in the caller, like fork.

    The caller joins the new namespaces but keeps its file system. OSError where the system forbids any of it.
    """
    _unshare()
    pid = os.fork()
    if pid == 0:
        _build_root(folders)
    return pid


def separate() -> None:
    """Give this process's future children namespaces of their own, apart from those of other jobs."""
    _unshare()


def settle(scratch_bytes: int) -> None:
    """First thing in the first process of a separated job: its own /proc and scratch directory."""
    _mount_private(Path("/"), scratch_bytes)


def renounce(job_number: int) -> None:
    """Become an ordinary user without capabilities, for good.

    Args:
        job_number: picks the user id, so that neither process limits nor keyrings are shared between jobs. Without
            root the process keeps its user, known as nobody inside its user namespace.
    """
    linux.drop_bounding_capabilities()
    if os.geteuid() == 0:
        first, last = _SPARE_USERS
        user = first + job_number % (last + 1 - first)
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    linux.drop_capabilities()
    linux.forbid_new_privileges()
    linux.set_dumpable()


def probe(folders: Iterable[Path]) -> str | None:
    """Try a whole jail with a job in it, in processes of its own. None when it works, else why it does not."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        reason = "the trial jail crashed"
        try:
            _trial(folders)
            reason = ""
        except OSError as error:
            reason = error.strerror or str(error)
        finally:
            os.write(writing, reason.encode() + b"\n")
            os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    with os.fdopen(reading, "rb") as pipe:
        reasons = [line for line in pipe.read().decode().split("\n") if line]
    return reasons[0] if reasons else None


def _trial(folders: Iterable[Path]) -> None:
    pid = enter(folders)
    if pid:
        os.waitpid(pid, 0)
        return
    separate()
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    settle(1 << 20)
    renounce(0)
    if linux.capabilities() or os.geteuid() == 0:
        raise OSError("privileges could not be dropped")


def _unshare() -> None:
    user, group = os.geteuid(), os.getegid()
    if user == 0 and linux.may_administer():
        linux.unshare(_NAMESPACES)
    else:
        linux.unshare(_NAMESPACES | linux.CLONE_NEWUSER)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{_NOBODY} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{_NOBODY} {group} 1")
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)


def _build_root(folders: Iterable[Path]) -> None:
    sources = sorted({*folders, *(Path("/dev", name) for name in _DEVICES)})
    root = next(point for point in map(Path, _MOUNT_POINTS) if point.is_dir() and not _hides(point, sources))
    linux.mount("jail", str(root), "tmpfs", linux.MS_NOSUID, "mode=755,size=1m")
    bound: list[Path] = []
    for source in sources:
        if any(source.is_relative_to(folder) for folder in bound):
            continue
        target = _inside(root, source)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink() and str(source) in _SYSTEM_FOLDERS:
            target.symlink_to(source.readlink())
            continue
        if source.is_dir():
            target.mkdir(exist_ok=True)
        else:
            target.touch()
        linux.mount(str(source), str(target), flags=linux.MS_BIND | linux.MS_REC)
        linux.make_read_only(str(target))
        bound.append(source)
    for name in ("/proc", SCRATCH):
        _inside(root, Path(name)).mkdir()
    for name in _OTHER_SCRATCH:
        if not (root / name).exists():  # it does when libraries are installed below it
            (root / name).symlink_to(SCRATCH)
    _mount_private(root, _SERVER_SCRATCH)
    linux.pivot_root(str(root))
    linux.make_read_only("/", recursive=False)


def _mount_private(root: Path, scratch_bytes: int) -> None:
    flags = linux.MS_NOSUID | linux.MS_NODEV
    linux.mount("proc", str(_inside(root, Path("/proc"))), "proc", flags | linux.MS_NOEXEC)
    options = f"mode=1777,size={scratch_bytes},nr_inodes={_SCRATCH_FILES}"
    linux.mount("scratch", str(_inside(root, Path(SCRATCH))), "tmpfs", flags, options)


def _inside(root: Path, path: Path) -> Path:
    return root / path.relative_to("/")


def _hides(point: Path, sources: Iterable[Path]) -> bool:
    return any(source.resolve().is_relative_to(point) for source in sources)
