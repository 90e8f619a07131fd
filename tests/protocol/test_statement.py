"""DSSE envelopes and the in-toto statement."""

from __future__ import annotations

import base64
import hashlib
import json

import pytest

from tests.protocol.synthetic import BROKER, TRAINER, WEIGHTS, Synthetic
from witbench.errors import TapeError
from witbench.protocol.statement import (
    PAYLOAD_TYPE,
    open_statement,
    pre_authentication,
    sign_statement,
)

PAYLOAD = b'{"a":1}'
KEY = BROKER.public_key


def test_pre_authentication_known_answer() -> None:
    """The example of the DSSE specification."""
    encoded = pre_authentication("http://example.com/HelloWorld", b"hello world")
    assert encoded == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    assert pre_authentication("\u00e9", b"") == b"DSSEv1 2 \xc3\xa9 0 "


def test_round_trip() -> None:
    assert open_statement(sign_statement(PAYLOAD, BROKER), KEY) == PAYLOAD


def test_subjects_are_the_weights_and_the_tape_head() -> None:
    certificate = Synthetic().build()
    statement = json.loads(open_statement(certificate.statement or "", KEY))
    digests = {subject["name"]: subject["digest"]["sha256"] for subject in statement["subject"]}
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert digests["weights.safetensors"] == hashlib.sha256(WEIGHTS).hexdigest()
    assert base64.b64encode(bytes.fromhex(digests["tape"])).decode() in (certificate.checkpoint or "")


def _envelope(**changes: object) -> str:
    envelope = {**json.loads(sign_statement(PAYLOAD, BROKER)), **changes}
    return json.dumps(envelope, sort_keys=True, separators=(",", ":")) + "\n"


def _swapped_type() -> str:
    """Another type, honestly signed: a payload meant for something else."""
    other = "application/vnd.other+json"
    signature = base64.b64encode(BROKER.sign(pre_authentication(other, PAYLOAD))).decode()
    return _envelope(payloadType=other, signatures=[{"keyid": KEY.label, "sig": signature}])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (_envelope(payloadType="application/json"), "signature does not verify"),
        (_swapped_type(), "holds application/vnd.other"),
        (_envelope(payload=base64.b64encode(b'{"a":2}').decode()), "signature does not verify"),
        (sign_statement(PAYLOAD, TRAINER), "signed by trainer"),
        (_envelope(signatures=[]), "canonical JSON"),
        (_envelope(extra=1), "canonical JSON"),
        (_envelope(payload="eyJhIjoxfR=="), "not canonical base64"),
        (_envelope(payload="eyJ"), "not base64"),
        (sign_statement(PAYLOAD, BROKER)[:-1], "canonical JSON"),
        (sign_statement(PAYLOAD, BROKER).replace(",", ", "), "canonical JSON"),
        (sign_statement(PAYLOAD, BROKER) + "\n", "canonical JSON"),
        ("[" * 60_000, "canonical JSON"),
        ("x" * 100_000, "canonical JSON"),
    ],
)
def test_refused_envelopes(text: str, reason: str) -> None:
    with pytest.raises(TapeError, match=reason):
        open_statement(text, KEY)


def test_the_payload_type_is_what_in_toto_says() -> None:
    assert PAYLOAD_TYPE == "application/vnd.in-toto+json"
