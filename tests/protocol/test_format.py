"""The worked examples of docs/format.md are what the code gives, so that another implementation can rely on them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from witbench.protocol.beacon import Beacon, derive
from witbench.protocol.encoding import encode, f64
from witbench.protocol.merkle import leaf_hash, root
from witbench.protocol.notes import Checkpoint, SigningKey, sign_note
from witbench.protocol.records import BLOBS, FIRST_PREV, KINDS
from witbench.protocol.statement import pre_authentication, sign_statement
from witbench.protocol.switches import WITNESS, coin_threshold, reference_choices, threshold_to_bytes

PAGE = Path(__file__).parents[2] / "docs" / "format.md"

SEED = bytes(range(32))
BEACON = Beacon(SEED, 3)
BROKER, TRAINER = SigningKey.from_seed("witbench/broker", bytes(32)), SigningKey.from_seed("trainer", b"\x01" * 32)
RECORD = encode({"i": 1, "kind": "rewind", "prev": FIRST_PREV, "boundary": 7})
HEAD = Checkpoint("witbench/run/example", 1, root([RECORD]))
REALS = encode({"loss": f64(2.5)})

EXAMPLES: dict[str, Callable[[], str]] = {
    "first prev": lambda: FIRST_PREV.hex(),
    "record": lambda: RECORD.hex(),
    "on disk": lambda: (len(RECORD).to_bytes(2, "big") + RECORD).hex(),
    "leaf hash": lambda: leaf_hash(RECORD).hex(),
    "root of one": lambda: root([RECORD]).hex(),
    "root of three": lambda: root([b"a", b"b", b"c"]).hex(),
    "map of reals": lambda: REALS.hex(),
    "r_3": lambda: BEACON.reveal(3).hex(),
    "r_2": lambda: BEACON.reveal(2).hex(),
    "r_1": lambda: BEACON.reveal(1).hex(),
    "anchor": lambda: BEACON.anchor.hex(),
    "key": lambda: derive("key", BEACON.reveal(1), 1, HEAD.root).hex(),
    "coin": lambda: derive("coin", BEACON.reveal(2), 1, HEAD.root).hex(),
    "p = 0.1": lambda: threshold_to_bytes(coin_threshold(0.1)).hex(),
    "p = 1": lambda: threshold_to_bytes(coin_threshold(1.0)).hex(),
    "broker vkey": lambda: BROKER.vkey,
    "trainer vkey": lambda: TRAINER.vkey,
    "head": lambda: sign_note(HEAD.body, BROKER, TRAINER).rstrip("\n"),
    "pre-authentication": lambda: pre_authentication("application/vnd.in-toto+json", b"{}").decode(),
    "envelope": lambda: sign_statement(b"{}", BROKER).rstrip("\n"),
}


def examples(page: str) -> dict[str, str]:
    """Name -> text of each example: fenced blocks whose info string is `example NAME`."""
    return dict(re.findall(r"^```example ([^\n]+)\n(.*?)\n```$", page, re.MULTILINE | re.DOTALL))


def test_every_example_is_checked() -> None:
    assert examples(PAGE.read_text(encoding="utf-8")).keys() == EXAMPLES.keys()


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(name: str) -> None:
    written = examples(PAGE.read_text(encoding="utf-8"))[name]
    assert (written if "\n" in EXAMPLES[name]() else written.replace("\n", "")) == EXAMPLES[name]()


def test_examples_by_hashlib_alone() -> None:
    """The same values from the page's own words, without the package."""
    written = {name: text.replace("\n", "") for name, text in examples(PAGE.read_text(encoding="utf-8")).items()}
    raw = bytes.fromhex(written["record"])
    assert written["first prev"] == hashlib.sha256(b"witbench/tape/v0\n").hexdigest()
    assert written["leaf hash"] == hashlib.sha256(b"\x00" + raw).hexdigest() == written["root of one"]
    assert bytes.fromhex(written["on disk"]) == bytes([0, len(raw)]) + raw
    last = hashlib.sha256(b"witbench/beacon/v0\n" + SEED).digest()
    assert written["r_3"] == last.hex()
    for name in ("r_2", "r_1", "anchor"):
        last = hashlib.sha256(last).digest()
        assert written[name] == last.hex()
    head = (1).to_bytes(8, "big") + bytes.fromhex(written["root of one"])
    assert written["key"] == hashlib.sha256(b"key\n" + bytes.fromhex(written["r_1"]) + head).hexdigest()
    assert written["coin"] == hashlib.sha256(b"coin\n" + bytes.fromhex(written["r_2"]) + head).hexdigest()


def test_the_page_names_every_kind_field_and_switch() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for kind, fields in KINDS.items():
        section = re.search(rf"^### `{kind}`.*?(?=^##)", page, re.MULTILINE | re.DOTALL)
        assert section, kind
        for name in fields:
            assert f"`{name}`" in section.group(), (kind, name)
    for switch in WITNESS:
        for choice in reference_choices(switch):
            assert re.search(rf"^\| `{switch}` \|.*`{choice}`", page, re.MULTILINE), (switch, choice)
    assert all(f"`{name}`" in page for name in BLOBS)
