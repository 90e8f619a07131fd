"""Every attack on data: caught by its named check wherever it is looked at, and a weak protocol that it beats."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.attacks.conftest import Make, Run
from witbench.attacks.base import MaliciousTrainer
from witbench.attacks.branches import Trajectory
from witbench.registry import ATTACKS, build

TOKENS = "attack.params.tokens=6"
CASES: dict[str, tuple[tuple[str, ...], str, tuple[str, ...]]] = {
    "substitution": ((TOKENS,), "replay.digest", ("unchecked",)),
    "insertion:in_batch": ((TOKENS,), "replay.digest", ("unchecked",)),
    "insertion:micro_batch": ((TOKENS,), "replay.digest", ("unchecked",)),
    "insertion:hidden": ((TOKENS,), "open.digest", ("unchecked", "parentless_chain")),
    "insertion:repeat": ((TOKENS,), "open.digest", ("unchecked", "parentless_chain")),
    "deletion:mask": ((TOKENS,), "replay.digest", ("unchecked",)),
    "deletion:zero_weight": ((TOKENS,), "replay.digest", ("unchecked",)),
    "deletion:drop": ((TOKENS,), "replay.digest", ("unchecked",)),
    "reorder": (("attack.params.span=2",), "declare.order", ("unordered",)),
    "reorder:fresh": (
        ("attack.params.span=2", "attack.params.surrogate=fresh", "attack.params.order=oscillating"),
        "declare.order",
        ("unordered",),
    ),
    "poison": (("attack.params.documents=2",), "replay.digest", ("unchecked",)),
}
"""Attack and route -> knobs, the check that catches it in a unit after the first, presets that it beats."""


def overrides(case: str) -> list[str]:
    name, _, route = case.partition(":")
    routes = name != "reorder" and route
    return [f"attack={name}", *([f"attack.params.route={route}"] if routes else []), *CASES[case][0]]


BURST = ("placement=burst", "placement.params.update=3")


@pytest.mark.parametrize("case", CASES)
def test_caught_by_its_check_when_its_unit_is_looked_at(case: str, make: Make, run: Run) -> None:
    outcome = run(make(*overrides(case), *BURST))
    assert (outcome.detected, outcome.check) == (True, CASES[case][1])


@pytest.mark.parametrize(("case", "preset"), [(case, preset) for case in CASES for preset in CASES[case][2]])
def test_a_weak_protocol_that_it_beats(case: str, preset: str, make: Make, run: Run) -> None:
    terms = [] if preset == "unchecked" else ["protocol.p=1.0"]
    config = make(f"protocol={preset}", *overrides(case), *BURST, *(terms or ["protocol.p=0.0"]))
    outcome = run(config)
    assert not outcome.detected, outcome.check
    assert outcome.payload["tokens"] >= 1, "it did something"
    assert outcome.cost_gradients >= outcome.honest_gradients


def test_a_token_hides_below_a_loose_tolerance_and_not_below_the_same_one_as_it_is(make: Make, run: Run) -> None:
    fixed = ("attack=substitution", *BURST, "tolerance=fixed", "tolerance.tau=1e-6")
    caught, hidden = run(make(*fixed)), run(make("protocol=loose_tolerance", "protocol.p=1.0", *fixed))
    assert (caught.detected, caught.check) == (True, "replay.distance")
    assert not hidden.detected, hidden.check
    assert hidden.payload["tokens"] == 1


def test_the_trojan_is_outside_the_guarantee_and_shown_as_such(make: Make, run: Run) -> None:
    config = make("attack=procedure_trojan", "training.updates=48", "training.sequences=2", "optimizer.lr=0.01")
    outcome = run(config)
    assert not outcome.detected, outcome.check
    assert not build(ATTACKS, "procedure_trojan", {}).claimed
    assert outcome.payload["documents"] == 48
    assert outcome.payload["triggered"] > 3 * outcome.payload["control"], "the trigger was learned"


@pytest.mark.parametrize("preset", ["unordered", "parentless_chain"])
def test_honest_runs_pass_the_weaker_presets(preset: str, make: Make, run: Run) -> None:
    # The nearest to honest that an attack comes: a trojan whose payload never acts within the run.
    outcome = run(make(f"protocol={preset}", "attack=procedure_trojan", "attack.params.every=100"))
    assert not outcome.detected, outcome.check


@pytest.fixture
def branch(make: Make) -> Trajectory:
    return Trajectory(make(), (3, bytes(32)), [0, 3, 7])


def positions_of(attack: MaliciousTrainer, update: int, amount: int) -> dict[int, tuple[int, ...]]:
    places = attack.places(4, 48)
    return {update: tuple(sorted(np.random.default_rng(amount).choice(places, amount, replace=False).tolist()))}


def sizes_of(case: str) -> Sequence[int]:
    return (1, 2, 4) if case == "poison" else (1,) if case.startswith("reorder") else (1, 7, 48, 192)


@pytest.mark.parametrize("case", CASES)
def test_every_size_is_seen_in_its_own_unit(case: str, make: Make, branch: Trajectory) -> None:
    config = make(*overrides(case))
    attack = build(ATTACKS, config.attack.name, config.attack.params)
    for unit in (1, 4, 8):
        for size in sizes_of(case):
            found = branch.judge(attack, unit, positions_of(attack, unit - 1, size), np.random.default_rng(size))
            assert found.detected, (unit, size)
            assert unit == 1 or found.check == CASES[case][1], "unit 1 opens no start state"
            assert found.tokens >= 1
        honest = branch.judge(attack, unit, {}, np.random.default_rng(0))
        assert not honest.detected, honest.check
        assert honest.tokens == 0


@pytest.mark.parametrize("case", [case for case in CASES if not case.startswith(("reorder", "poison"))])
def test_the_tokens_achieved_are_those_asked_for(case: str, make: Make, branch: Trajectory) -> None:
    config = make(*overrides(case))
    attack = build(ATTACKS, config.attack.name, config.attack.params)
    for size in (1, 48, 100):
        found = branch.judge(attack, 4, positions_of(attack, 3, size), np.random.default_rng(size))
        asked = 48 * -(-size // 48) if case == "deletion:drop" else size
        assert found.tokens == asked


def test_a_sorted_span_lies_in_all_of_its_updates(make: Make, branch: Trajectory) -> None:
    attack = build(ATTACKS, "reorder", {"tokens": 1, "span": 3})
    lies = attack.lies({4: (0,)}, 8)
    assert sorted(lies) == [3, 4, 5]
    assert sorted(attack.lies({7: (0,)}, 8)) == [6, 7], "the last span is what is left of the run"
    for unit in (4, 8):
        update = 4 if unit == 4 else 7
        found = branch.judge(attack, unit, {update: (0,)}, np.random.default_rng(0))
        assert (found.detected, found.check) == (True, "declare.order"), "seen in a unit that holds no touched place"
