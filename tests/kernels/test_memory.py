"""Extra memory does not grow with the state, whatever its strides."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import resource, sys
import torch
from witbench.kernels.base import Shard, StateView
from witbench.kernels.digest import DigestSketch
from witbench.kernels.manifest import build_manifest, full_view
from witbench.kernels.rht import Rht

torch.set_num_threads(1)
design = {"rht": Rht(256), "digest": DigestSketch()}[sys.argv[1]]

def sketch(rows, columns):
    # One allocation alone: a second one would raise the high-water mark and hide a copy.
    values = torch.ones(columns, rows).mT if sys.argv[2] == "transposed" else torch.ones(rows, columns)
    view = full_view(build_manifest({("exp_avg_sq", "w"): values}), {("exp_avg_sq", "w"): values})
    if sys.argv[2] == "column shard":
        (whole,) = view.shards
        sizes = (rows, columns - 1)
        view = StateView(view.manifest, [Shard(whole.entry, values[:, 1:], (0, 1), sizes)])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    design.sketch(view, bytes(32))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak

sketch(64, 2048)
print(sketch(6144, 2048))
"""


@pytest.mark.parametrize(
    ("design", "layout"),
    [("rht", "contiguous"), ("rht", "transposed"), ("rht", "column shard"), ("digest", "transposed")],
)
def test_peak_memory_stays_below_32_mib(design: str, layout: str) -> None:
    """48 MiB of float32 values: a copy of them, widened or not, would show."""
    command = [sys.executable, "-c", _PROGRAM, design, layout]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 32 * 1024
