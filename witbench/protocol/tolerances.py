"""The tolerance tau of every group: none for `exact`, one value for `fixed`, a file for `calibrated`."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

from witbench.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from witbench.config import ToleranceConfig


def tolerances(config: ToleranceConfig, groups: Sequence[str]) -> tuple[dict[str, float], bytes | None]:
    """tau of every group, and the SHA-256 of the calibration behind them.

    A calibration is a JSON file whose `tau` maps each group to a number.

    Raises:
        ConfigError: a tolerance that needs a number or a file has none, or the file does not fit.
    """
    if config.name == "exact":
        return {}, None
    if config.name == "fixed":
        if config.tau is None:
            raise ConfigError("tolerance.tau: tolerance=fixed needs a number, as in tolerance.tau=1e-5")
        return dict.fromkeys(groups, float(config.tau)), None
    if config.calibration is None:
        raise ConfigError(
            "tolerance.calibration: tolerance=calibrated needs a calibration file; "
            "give its path, or take tolerance=exact on one machine with one thread count"
        )
    return _calibrated(Path(config.calibration), groups)


def _calibrated(path: Path, groups: Sequence[str]) -> tuple[dict[str, float], bytes]:
    try:
        data = path.read_bytes()
        tau = json.loads(data)["tau"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"tolerance.calibration={path}: not a calibration file: {error}") from None
    if not isinstance(tau, dict) or set(tau) != set(groups):
        raise ConfigError(f"tolerance.calibration={path}: made for other groups than this run's {len(groups)}")
    values = {group: tau[group] for group in groups}
    if not all(isinstance(v, int | float) and math.isfinite(v) and v >= 0 for v in values.values()):
        raise ConfigError(f"tolerance.calibration={path}: a tau is not a finite number of at least 0")
    return {group: float(value) for group, value in values.items()}, hashlib.sha256(data).digest()
