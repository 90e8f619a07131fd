"""How trials are run: the processes of this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass

from witbench.schema import require


@dataclass(frozen=True)
class ExecutorConfig:
    """The `local` executor: a pool of processes, one thread each.

    Attributes:
        name: `local`.
        workers: processes; null takes as many as there are cores.
        gpu_slots: processes that share one GPU; 0 leaves the GPUs alone.
    """

    name: str = "local"
    workers: int | None = None
    gpu_slots: int = 0

    def __post_init__(self) -> None:
        """Refuse pools that cannot work."""
        require(self.name == "local", "executor.name", self.name, "local")
        require(self.workers is None or self.workers >= 1, "executor.workers", self.workers, "null or at least 1")
        require(self.gpu_slots >= 0, "executor.gpu_slots", self.gpu_slots, "at least 0")

    def processes(self, pieces: int) -> int:
        """Processes for so many pieces of work."""
        return max(1, min(pieces, self.workers or os.cpu_count() or 1))

    def devices(self) -> list[str]:
        """CUDA_VISIBLE_DEVICES of each process, in turn; empty when GPUs are left alone."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
        return [device for device in visible.split(",") if device for _ in range(self.gpu_slots)]
