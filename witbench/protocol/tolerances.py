"""Where tau comes from: nothing for `exact`, one value by hand for `fixed`, a calibration file for `calibrated`.

A calibration is measured on one configuration and holds for that one alone: whatever honest noise depends on is named
in its identity, and a run of another identity is refused. Nothing here imports torch.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from witbench.errors import ConfigError
from witbench.kernels.manifest import group_names, manifest_to_bytes
from witbench.protocol.tau import AFTER, WARMUP, Tau, warmup_units

if TYPE_CHECKING:
    from collections.abc import Iterable

    from witbench.config import RunConfig
    from witbench.kernels.base import Manifest

FORMAT = 0
"""Version of the calibration file."""

_RUN_KEYS = ("updates", "sequences", "micro_batches", "loss_scale_bits")
"""What the identity holds of `training`: the run's length, which fixes schedule and warm-up, and its batches."""

_DIFFERENCES_SHOWN = 3


def tolerances(config: RunConfig, manifest: Manifest) -> tuple[Tau, bytes | None]:
    """The tolerances of a run, and the SHA-256 of the calibration file behind them.

    Args:
        config: the run's configuration.
        manifest: the prover's own manifest of its states.

    Raises:
        ConfigError: a tolerance that needs a number or a file has none, or the file does not fit.
    """
    tolerance, groups = config.tolerance, group_names(manifest)
    if tolerance.name == "exact":
        return Tau(), None
    if tolerance.name == "fixed":
        if tolerance.tau is None:
            raise ConfigError("tolerance.tau: tolerance=fixed needs a number, as in tolerance.tau=1e-5")
        return Tau(dict.fromkeys(groups, float(tolerance.tau))).scaled(config.protocol.tau_scale), None
    if tolerance.calibration is None:
        raise ConfigError(
            "tolerance.calibration: tolerance=calibrated needs a calibration file; `witbench calibrate` makes one, "
            "or take tolerance=exact on one machine with one thread count"
        )
    path = Path(tolerance.calibration)
    try:
        calibration, digest = read_calibration(path)
        return _tau(calibration, config, manifest).scaled(config.protocol.tau_scale), digest
    except ConfigError as error:
        raise ConfigError(f"tolerance.calibration={path}: {error}") from None


def read_calibration(path: Path) -> tuple[dict[str, Any], bytes]:
    """A calibration file, and the SHA-256 of its bytes. Raises ConfigError when it is none."""
    try:
        data = path.read_bytes()
        fields = json.loads(data)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot be read as a calibration ({error}); `witbench calibrate` makes one") from None
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise ConfigError(f"not a calibration of format {FORMAT}; `witbench calibrate` makes one")
    return fields, hashlib.sha256(data).digest()


def identity(config: RunConfig, manifest: Manifest) -> dict[str, Any]:
    """What a calibration is for, as dotted keys and JSON scalars.

    Seeds, data, threads, p, lag and the other terms of a run are left out: honest noise under other seeds is what is
    measured, and thread counts are among what is varied.
    """
    plain = config.to_plain()
    model = {key: value for key, value in plain["model"].items() if key != "name"}
    training = {key: plain["training"][key] for key in _RUN_KEYS}
    return {
        "manifest": hashlib.sha256(manifest_to_bytes(manifest)).hexdigest(),
        **_dotted("sketch", plain["sketch"]),
        "protocol.unit": config.protocol.unit,
        **_dotted("optimizer", plain["optimizer"]),
        **_dotted("model", model),
        **_dotted("training", training),
    }


def identity_digest(fields: Mapping[str, Any]) -> str:
    """SHA-256 of an identity as canonical JSON, hexadecimal."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def check_identity(calibration: Mapping[str, Any], config: RunConfig, manifest: Manifest) -> None:
    """Refuse a calibration that was made for another configuration. Raises ConfigError naming what differs."""
    made, own = calibration.get("identity"), identity(config, manifest)
    if not isinstance(made, Mapping) or calibration.get("identity_sha256") != identity_digest(made):
        raise ConfigError("its identity is not the one its hash names; run `witbench calibrate` again")
    differing = [key for key in {**own, **made} if made.get(key) != own.get(key)]
    # The digest of the manifest says nothing that a key beside it does not say in words.
    named = [key for key in differing if key != "manifest"] or differing
    if named:
        shown = ", ".join(f"{key}={_shown(made.get(key))}" for key in named[:_DIFFERENCES_SHOWN])
        here = ", ".join(_shown(own.get(key)) for key in named[:_DIFFERENCES_SHOWN])
        more = f" and {len(named) - _DIFFERENCES_SHOWN} more" if len(named) > _DIFFERENCES_SHOWN else ""
        raise ConfigError(f"made for another run: {shown}{more}, where this run has {here}; run `witbench calibrate`")


def _tau(calibration: Mapping[str, Any], config: RunConfig, manifest: Manifest) -> Tau:
    check_identity(calibration, config, manifest)
    by_phase = calibration.get("tau")
    if not isinstance(by_phase, Mapping) or set(by_phase) != {WARMUP, AFTER}:
        raise ConfigError(f"its tau must have the phases {WARMUP} and {AFTER}")
    groups = group_names(manifest)
    warmup, after = (_numbers(by_phase[phase], f"tau.{phase}", groups) for phase in (WARMUP, AFTER))
    evaluation = _numbers(calibration.get("evaluation_tau"), "evaluation_tau")
    return Tau(after, warmup, warmup_units(config.training.updates, config.protocol.unit), evaluation)


def _numbers(values: object, key: str, names: Iterable[str] | None = None) -> dict[str, float]:
    if not isinstance(values, Mapping) or (names is not None and set(values) != set(names)):
        raise ConfigError(f"its {key} does not have exactly the groups of this run")
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < math.inf:
            raise ConfigError(f"its {key} of {name} is {value}: not a finite number of at least 0")
    return {name: float(values[name]) for name in names or values}


def _dotted(where: str, plain: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in plain.items():
        flat |= _dotted(f"{where}.{key}", value) if isinstance(value, Mapping) else {f"{where}.{key}": value}
    return flat


def _shown(value: object) -> str:
    return str(value)[:24]
