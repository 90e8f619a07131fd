"""The few Linux system calls that isolation needs and Python 3.11 does not wrap."""

from __future__ import annotations

import ctypes
import fcntl
import os
from pathlib import Path

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000

_MNT_DETACH = 2
_SYS_MOUNT_SETATTR = 442  # the same on every architecture
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR_RDONLY = 0x1
_MOUNT_ATTR_NOSUID = 0x2

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4

_CAPABILITY_VERSION_3 = 0x20080522
_CAPABILITY_BITS = 64
_CAP_SETPCAP = 8
_CAP_SYS_ADMIN = 21

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE

_libc = ctypes.CDLL(None, use_errno=True)


class _MountAttributes(ctypes.Structure):
    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns", ctypes.c_uint64),
    )


def _check(what: str, result: int) -> None:
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def unshare(flags: int) -> None:
    """Move this process into new namespaces (`CLONE_NEW*`); the pid namespace takes effect for its children."""
    _check("unshare", _libc.unshare(flags))


def mount(source: str, target: str, kind: str | None = None, flags: int = 0, options: str = "") -> None:
    """Put a file system or a bind at `target`; the arguments are those of the system call."""
    arguments = (source.encode(), target.encode(), kind.encode() if kind else None, ctypes.c_ulong(flags))
    _check(f"mount {target}", _libc.mount(*arguments, options.encode() or None))


def make_read_only(target: str, *, recursive: bool = True) -> None:
    """Forbid writing, and set-uid programs, on a mount (by default with every mount below it)."""
    attributes = _MountAttributes(set=_MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID)
    flags = _AT_RECURSIVE if recursive else 0
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    arguments = (_AT_FDCWD, target.encode(), flags, ctypes.byref(attributes), size)
    _check(f"mount_setattr {target}", _libc.syscall(_SYS_MOUNT_SETATTR, *arguments))


def pivot_root(new_root: str) -> None:
    """Make `new_root` the root directory and let go of the old one."""
    os.chdir(new_root)
    _check("pivot_root", _libc.pivot_root(b".", b"."))
    _check("umount old root", _libc.umount2(b".", _MNT_DETACH))
    os.chdir("/")


def _prctl(option: int, *arguments: int) -> None:
    padded = [ctypes.c_ulong(x) for x in (*arguments, 0, 0, 0, 0)[:4]]
    _check(f"prctl {option}", _libc.prctl(option, *padded))


def die_with_parent(signal: int) -> None:
    """Have the kernel send this process `signal` when its parent ends; credential changes clear it."""
    _prctl(_PR_SET_PDEATHSIG, signal)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_dumpable() -> None:
    """Own /proc/self again after a change of user, which makes the kernel hide it."""
    _prctl(_PR_SET_DUMPABLE, 1)


def forbid_new_privileges() -> None:
    """No program that this process executes may gain privileges."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def drop_bounding_capabilities() -> None:
    """Bar this process and its children from ever regaining a capability, as far as it may."""
    if not capabilities() >> _CAP_SETPCAP & 1:
        return
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    for capability in range(last + 1):
        _prctl(_PR_CAPBSET_DROP, capability)


def drop_capabilities() -> None:
    """Give up every capability: ambient, effective, permitted and inheritable."""
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * (3 * _CAPABILITY_BITS // 32))()
    _check("capset", _libc.capset(ctypes.byref(header), ctypes.byref(nothing)))


def may_administer() -> bool:
    """Whether this process may make namespaces without a user namespace around them."""
    return bool(capabilities() >> _CAP_SYS_ADMIN & 1)


def capabilities() -> int:
    """Bit set of the capabilities that this process has in effect."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))


def children() -> set[int]:
    """Pids of the children of this single-threaded process, adopted ones included."""
    return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


def memfd(name: str) -> int:
    """A new anonymous file that can be sealed."""
    return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def seal(fd: int) -> None:
    """Make an anonymous file immutable; OSError when somebody still maps it for writing."""
    if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write all of `data`; one write(2) moves at most 2 GiB."""
    view = memoryview(data).cast("B")
    while view:
        view = view[os.write(fd, view) :]
