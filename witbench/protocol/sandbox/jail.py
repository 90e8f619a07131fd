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
from pathlib import Path, PurePath

from witbench.protocol.sandbox import linux

SCRATCH = "/scratch"
_SERVER_SCRATCH = 16 << 20
_SCRATCH_FILES = 65_536
_NOBODY = 65534
_SPARE_USERS = (61184, 65519)  # what systemd sets aside for users that exist for the life of a service
_NAMESPACES = linux.CLONE_NEWNS | linux.CLONE_NEWPID | linux.CLONE_NEWNET | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS
_SYSTEM_FOLDERS = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_MOUNT_POINTS = ("/mnt", "/media", "/srv", "/opt", "/tmp")  # the first that hides none of the sources


def library_folders(package: Path, site_folders: Iterable[str]) -> list[str]:
    """Existing folders that an interpreter with torch needs: standard library, site-packages, shared libraries.

    Args:
        package: folder of the witbench package; its siblings stay outside.
        site_folders: folders of installed packages.
    """
    folders = {str(package), *site_folders, *_SYSTEM_FOLDERS}
    folders.update(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    for prefix in (sys.prefix, sys.base_prefix):
        folders.update(os.path.join(prefix, name) for name in ("lib", "lib64"))
    return sorted(folder for folder in folders if os.path.exists(folder))


def enter(folders: Iterable[str]) -> int:
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
    _mount_private("/", scratch_bytes)


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


def probe(folders: Iterable[str]) -> str | None:
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


def _trial(folders: Iterable[str]) -> None:
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


def _build_root(folders: Iterable[str]) -> None:
    sources = sorted({*folders, *(f"/dev/{name}" for name in _DEVICES)})
    root = next(point for point in _MOUNT_POINTS if os.path.isdir(point) and not _hides(point, sources))
    linux.mount("jail", root, "tmpfs", linux.MS_NOSUID, "mode=755,size=1m")
    bound: list[str] = []
    for source in sources:
        if any(PurePath(source).is_relative_to(folder) for folder in bound):
            continue
        target = root + source
        os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
        if os.path.islink(source) and source in _SYSTEM_FOLDERS:
            os.symlink(os.readlink(source), target)
            continue
        if os.path.isdir(source):
            os.makedirs(target, mode=0o755, exist_ok=True)
        else:
            Path(target).touch()
        linux.mount(source, target, flags=linux.MS_BIND | linux.MS_REC)
        linux.make_read_only(target)
        bound.append(source)
    for name in ("/proc", SCRATCH):
        os.makedirs(root + name, mode=0o755, exist_ok=True)
    os.symlink(SCRATCH, root + "/dev/shm")
    if not os.path.exists(root + "/tmp"):  # it exists when libraries are installed below it
        os.symlink(SCRATCH, root + "/tmp")
    _mount_private(root, _SERVER_SCRATCH)
    linux.pivot_root(root)
    linux.make_read_only("/", recursive=False)


def _mount_private(root: str, scratch_bytes: int) -> None:
    flags = linux.MS_NOSUID | linux.MS_NODEV
    linux.mount("proc", root + "/proc", "proc", flags | linux.MS_NOEXEC)
    options = f"mode=1777,size={scratch_bytes},nr_inodes={_SCRATCH_FILES}"
    linux.mount("scratch", root + SCRATCH, "tmpfs", flags, options)


def _hides(point: str, sources: Iterable[str]) -> bool:
    return any(PurePath(os.path.realpath(source)).is_relative_to(point) for source in sources)
