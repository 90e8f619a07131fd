"""`witbench calibrate`: tau from honest runs, and how often it rejects honest ones."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from witbench.cli.command import JSON, Arguments, Command, Option, read_path
from witbench.cli.progress import progress
from witbench.errors import ConfigError
from witbench.registry import unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from witbench.calibration.run import Calibrated

NEGATIVE = 1


def run(arguments: Arguments) -> int:
    """Measure and write a calibration; 0 when it is written. With `check`, see `_check`."""
    if arguments.words:
        return _check(arguments)
    from witbench.calibration.plot import draw
    from witbench.calibration.run import Settings, bare, calibrate
    from witbench.calibration.variations import VARIATIONS, read_names
    from witbench.config import compose
    from witbench.protocol.certify import run_key

    options = arguments.options
    config = compose(arguments.overrides)
    names = read_names(options["variations"]) if options["variations"] else tuple(VARIATIONS)
    settings = Settings(options["distances"], options["factor"], options["runs"], names, options["workers"])
    path = options["out"] or Path("runs/calibrate") / run_key(bare(config)) / "calibration.json"
    if path.suffix != ".json":
        raise ConfigError(f"out={path}: must be a file whose name ends in .json; pictures go beside it")
    with progress("training runs") as show:
        calibrated = calibrate(config, settings, path, show)
    figure = draw(calibrated)
    if options["json"]:
        print(json.dumps({"path": str(path), **calibrated.fields}, indent=2))
    else:
        _say(calibrated)
        print(f"figure       {figure.png} (and .pdf, .csv)")
        print(f"calibration  {path}")
        print(f"use it       witbench train tolerance=calibrated tolerance.calibration={path}")
        print(f"check it     witbench calibrate check {path}")
    return 0


def _say(calibrated: Calibrated) -> None:
    fields = calibrated.fields
    for phase, part in fields["phases"].items():
        counts = ", ".join(f"{name} {count}" for name, count in part["by_variation"].items())
        print(f"{phase}: {part['distances']} honest distances of {part['units']} units ({counts or 'no unit'})")
        print(f"  {'group':<26} {'tau':>9} {'largest':>9} {'one token':>9}  least token / tau")
        for group, found in part["groups"].items() if part["distances"] else ():
            tau, token = fields["tau"][phase][group], found["one_token"]
            print(f"  {group:<26} {tau:9.2e} {found['largest']:9.2e} {token['median']:9.2e}  {token['min'] / tau:.3g}")
    for phase, part in fields["phases"].items():
        policy = part["within_policy"]
        if policy["met"] < policy["of"]:
            print(
                f"{phase}: in {policy['of'] - policy['met']} of {policy['of']} units no group's tau is a tenth of one"
            )
            print(
                "  token's distance or less, so verifiers refuse such runs (policy.tau); take tolerance=exact for them"
            )
    for name, reason in fields["variations_left_out"].items():
        print(f"left out: {name}: {reason}")
    short = [phase for phase, part in fields["phases"].items() if 0 < part["distances"] < 300]
    if short:
        print(f"fewer than 300 distances in: {', '.join(short)}; more runs= or distances= give more")
    so_far = fields["false_rejects"]
    print(f"false rejects so far ({so_far['how']}): {_bound(so_far['rejected'], so_far['of'], so_far)}")


def _check(arguments: Arguments) -> int:
    """Judge honest units on other seeds; 1 when one was rejected, or a changed token was missed after warm-up."""
    verb, *paths = arguments.words
    if verb != "check":
        raise unknown("calibrate", verb, ("check",))
    if len(paths) != 1:
        raise ConfigError("calibrate check: give one calibration; usage: witbench calibrate check CALIBRATION")
    if arguments.overrides:
        raise ConfigError(f"{arguments.overrides[0]}: a check has the configuration of its calibration")
    from witbench.calibration.check import check, passed, sidecar

    options, path = arguments.options, Path(paths[0])
    with progress("training runs") as show:
        result = check(path, options["units"], options["first"], options["rate"], options["workers"], show)
    if options["json"]:
        print(json.dumps(result, indent=2))
    else:
        _say_check(result)
        print(f"written      {sidecar(path)}")
    return 0 if passed(result) else NEGATIVE


def _say_check(result: Mapping[str, Any]) -> None:
    print(f"honest replays rejected: {_bound(result['rejected'], result['replays'], result)}")
    print(f"  {result['units']} units of {result['runs']} training runs; seeds {_range(result['seeds'])}")
    print(f"  {'first units':<24} {result['first_units']['rejected']} of {result['first_units']['replays']}")
    for name, found in result["numerics"].items():
        print(f"  {name:<24} {found['rejected']} of {found['replays']}")
    for reject in result["rejects"][:10]:
        print(f"  rejected: seed {reject['seed']} unit {reject['unit']} {reject['numerics']}: {reject['failed']}")
    claim = f"a rate below {result['rate']:g}"
    if result["extrapolated"]:
        print(f"{claim}: extrapolated, {result['replays_for_rate']} replays without a reject would show it")
    else:
        print(f"{claim}: shown")
    for phase, found in result["one_token"].items():
        if not found["of"]:
            continue
        print(f"one changed token, {phase}: caught in {found['caught']} of {found['of']} units,")
        print(f"  tau within the policy's 1/10 of it in {found['meets_policy']}; by group:")
        print("  " + ", ".join(f"{group} {count}" for group, count in found["groups"].items()))


def _bound(rejected: int, of: int, found: Mapping[str, Any]) -> str:
    return f"{rejected} of {of}, at most {found['at_most']:.2g} at {found['confidence']:.0%} (one-sided)"


def _range(seeds: list[int]) -> str:
    return f"{seeds[0]} to {seeds[-1]}"


def _whole(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise ValueError(f"a whole number of at least {least}")
        return int(text)

    return read


def _number(least: float, most: float, allowed: str) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least < value < most:
            raise ValueError(allowed)
        return value

    return read


COMMAND = Command(
    name="calibrate",
    summary="Measure how far honest replays lie apart, and write the tolerances that follow.",
    usage="[check CALIBRATION]",
    run=run,
    doc="A calibration holds for one configuration: model, sketch, unit, optimizer, batches and length of the run.",
    options=(
        Option("out", read_path, "FILE", "the calibration; default runs/calibrate/<key>/calibration.json"),
        JSON,
        Option("distances", _whole(1), "N", "honest distances a phase, as far as units allow", default=300),
        Option("factor", _number(0.0, math.inf, "a positive number"), "X", "tau over the largest one", default=10.0),
        Option("runs", _whole(1), "N", "whole training runs; as many as needed, 8 to 32, unless given"),
        Option("variations", str, "A,B", "threads, micro_batches, order, compile; all unless given"),
        Option("workers", _whole(1), "N", "processes of one thread each", default=2),
        Option("units", _whole(1), "N", "of `check`: honest replays to judge", default=3000),
        Option("first", _whole(0), "SEED", "of `check`: first seed; the one after the calibration's unless given"),
        Option("rate", _number(0.0, 1.0, "in (0, 1)"), "X", "of `check`: false-reject rate to claim", default=1e-3),
    ),
    examples=(
        ("calibrate out=tau.json", "a few minutes on two cores; tau.png shows what was measured"),
        ("train tolerance=calibrated tolerance.calibration=tau.json", "a run under these tolerances"),
        ("calibrate check tau.json units=3000", "honest replays on other seeds: the false-reject rate with its bound"),
        ("calibrate protocol.unit=8 optimizer=sgd", "for units of eight updates under SGD"),
    ),
    words=(0, 2),
    composes=True,
    resume="nothing was written; run the command again",
)
