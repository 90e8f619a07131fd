"""Runs a trainer's procedure where it can see its own arguments and nothing else."""

from witbench.protocol.sandbox.client import Sandbox, SandboxError
from witbench.protocol.sandbox.job import Job, Limits, SandboxFailure, read_values

__all__ = ["Job", "Limits", "Sandbox", "SandboxError", "SandboxFailure", "read_values"]
