"""Settings under which the same update gives the same bits."""

from __future__ import annotations

import torch


def set_deterministic(threads: int) -> None:
    """Fix torch's thread count and let it use deterministic algorithms only.

    Sums are split by thread, so bitwise equality holds between runs with the same count, not across counts.
    """
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    torch.set_flush_denormal(False)
