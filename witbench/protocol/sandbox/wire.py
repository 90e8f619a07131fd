"""Messages between the client, the server and the supervisor of a job: one JSON object each, descriptors beside it."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass
from typing import Any

from witbench.protocol.sandbox.job import Limits

_LARGEST = 65_536
_MOST_DESCRIPTORS = 4

PROCESS_ONLY = "process only"
NAMESPACES = "namespaces"


@dataclass(frozen=True)
class Setup:
    """What the server is told on its command line.

    Attributes:
        control: descriptor of its end of the control socket.
        threads: torch threads of every job.
        package: folder of the witbench package.
        site_folders: folders of installed packages.
        isolation: `auto`, `namespaces` or `process`.
    """

    control: int
    threads: int
    package: str
    site_folders: tuple[str, ...]
    isolation: str

    def to_text(self) -> str:
        """One command-line argument."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Setup:
        """The inverse of `to_text`."""
        fields = json.loads(text)
        return cls(**{**fields, "site_folders": tuple(fields["site_folders"])})


@dataclass(frozen=True)
class Descriptors:
    """The open files of one job.

    Attributes:
        reply: socket on which the supervisor answers; its end of file at the other side cancels the job.
        payload: the packed job.
        result: empty anonymous file for the result.
        dataset: token file, when the job has one.
    """

    reply: int
    payload: int
    result: int
    dataset: int | None = None

    def all(self) -> list[int]:
        """Every descriptor, in the order in which they travel."""
        return [fd for fd in (self.reply, self.payload, self.result, self.dataset) if fd is not None]

    def close(self) -> None:
        """Close this process's copies."""
        for fd in self.all():
            os.close(fd)


@dataclass(frozen=True)
class Watch:
    """What a supervisor needs to know about its job.

    Attributes:
        number: counts the jobs of a server.
        limits: what the job may use.
        files: its open files.
        threads: torch threads.
        jailed: whether this process is inside a jail.
    """

    number: int
    limits: Limits
    files: Descriptors
    threads: int
    jailed: bool


def send(channel: socket.socket, message: dict[str, Any]) -> None:
    """Send one message without descriptors."""
    channel.send(json.dumps(message).encode())


def receive(channel: socket.socket) -> dict[str, Any] | None:
    """The next message, or None when the other side is gone."""
    try:
        data = channel.recv(_LARGEST)
    except ConnectionResetError:
        return None
    return json.loads(data) if data else None


def send_job(channel: socket.socket, limits: Limits, files: Descriptors) -> None:
    """Ask the server for one job."""
    socket.send_fds(channel, [json.dumps(asdict(limits)).encode()], files.all())


def receive_job(channel: socket.socket) -> tuple[Limits, Descriptors] | None:
    """The next job asked for, or None when the client is gone."""
    data, fds, _, _ = socket.recv_fds(channel, _LARGEST, _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
    return (Limits(**json.loads(data)), Descriptors(*fds)) if data else None
