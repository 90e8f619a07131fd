"""statement.json: an in-toto Statement v1 about the run in a DSSE envelope signed by the broker.

Formats: https://in-toto.io/Statement/v1 and DSSE v1 (secure-systems-lab). The payload follows from the tape alone, so a
verifier builds it again and compares bytes; nothing in the envelope is believed before its signature is checked.
"""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Any

from witbench.errors import TapeError
from witbench.protocol.notes import decode_base64

if TYPE_CHECKING:
    from collections.abc import Mapping

    from witbench.protocol.notes import Checkpoint, SigningKey, VerifyKey

PAYLOAD_TYPE = "application/vnd.in-toto+json"
PREDICATE_TYPE = "urn:witbench:training-witness:v0"
WEIGHTS_NAME, TAPE_NAME = "weights.safetensors", "tape"

MAX_STATEMENT = 65_536
"""Longest envelope read, bytes."""

_BASE64 = "[A-Za-z0-9+/=]*"
_PLAIN = r'[^"\\\x00-\x1f]*'
_ENVELOPE = re.compile(
    f'{{"payload":"({_BASE64})","payloadType":"({_PLAIN})","signatures":'
    f'\\[{{"keyid":"({_PLAIN})","sig":"({_BASE64})"}}\\]}}\n'
)


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def build_statement(genesis: Mapping[str, Any], final: Mapping[str, Any], head: Checkpoint) -> bytes:
    """The payload: canonical JSON whose subjects are the published weights and the tape's head.

    Args:
        genesis: the tape's genesis record.
        final: its final record.
        head: its closing head.
    """
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": WEIGHTS_NAME, "digest": {"sha256": final["weights"].hex()}},
            {"name": TAPE_NAME, "digest": {"sha256": head.root.hex()}},
        ],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": PREDICATE_TYPE,
                "externalParameters": {"config": genesis["config"].hex()},
                "resolvedDependencies": [
                    {"name": "procedure", "digest": {"sha256": genesis["procedure"].hex()}},
                    {"name": "dataset", "digest": {"witbenchDatasetRoot": genesis["dataset"]["root"].hex()}},
                ],
            },
            "runDetails": {
                "builder": {"id": genesis["broker_key"]},
                "metadata": {"invocationId": head.origin},
                "byproducts": [{"name": TAPE_NAME, "annotations": {"records": head.size}}],
            },
            "run": {
                "parameters": final["parameters"].hex(),
                "rewinds": final["rewinds"],
                "status": final["status"],
                "units": final["units"],
                "updates": genesis["updates"],
            },
        },
    }
    return _canonical(statement).encode()


def pre_authentication(payload_type: str, payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding: what is signed, the type included."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def sign_statement(payload: bytes, key: SigningKey) -> str:
    """The envelope file around a payload."""
    signature = key.sign(pre_authentication(PAYLOAD_TYPE, payload))
    envelope = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [{"keyid": key.public_key.label, "sig": base64.b64encode(signature).decode()}],
    }
    return _canonical(envelope) + "\n"


def open_statement(text: str, key: VerifyKey) -> bytes:
    """The payload of an envelope, after its signature was verified.

    Raises:
        TapeError: not the one canonical form of an envelope, signed by another key, of another type, or forged.
    """
    match = _ENVELOPE.fullmatch(text) if len(text) <= MAX_STATEMENT else None
    if match is None:
        raise TapeError("statement.json: not a DSSE envelope in canonical JSON")
    encoded, kind, label, signature = match.groups()
    payload = decode_base64(encoded, "statement.json payload")
    if label != key.label:
        raise TapeError(f"statement.json: signed by {label}, not by {key.label}")
    if not key.verify(pre_authentication(kind, payload), decode_base64(signature, "statement.json signature")):
        raise TapeError("statement.json: the signature does not verify")
    if kind != PAYLOAD_TYPE:
        raise TapeError(f"statement.json: holds {kind}, not {PAYLOAD_TYPE}")
    return payload
