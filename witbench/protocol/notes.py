"""C2SP signed notes and checkpoints: Ed25519 keys, signature lines, and the heads of a log.

Formats: https://c2sp.org/signed-note and https://c2sp.org/tlog-checkpoint. A note is text that ends in a newline, an
empty line, and one line per signature; a checkpoint's text is origin, size and base64 root, one a line.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from witbench.errors import TapeError

if TYPE_CHECKING:
    from collections.abc import Sequence

ED25519 = b"\x01"
"""Signature type of a signed note's key id and vkey."""

MAX_NOTE = 16_384
"""Longest note read, bytes."""

_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")

_P = 2**255 - 19
_Y_OF_ORDER_8 = 2707385501144840649318225287225658788936804267575313519463743609750303402022
_LOW_ORDER_Y = frozenset({0, 1, _P - 1, _Y_OF_ORDER_8, _P - _Y_OF_ORDER_8})
"""y coordinates of the points whose order divides 8: under such a key, signatures hold for any message."""


def _key_id(name: str, public: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\n" + ED25519 + public).digest()[:4]


def _check_name(name: str) -> None:
    if not name or "+" in name or any(c.isspace() or not c.isprintable() for c in name):
        raise TapeError(f"key name {name!r}: must be printable, without spaces and plus signs")


def decode_base64(text: str, what: str) -> bytes:
    """The bytes of canonical base64 text; `what` names it in the TapeError."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise TapeError(f"{what}: not base64") from None
    if base64.b64encode(data).decode() != text:
        raise TapeError(f"{what}: not canonical base64")
    return data


@dataclass(frozen=True)
class VerifyKey:
    """A public Ed25519 key with its name; `vkey` is its one-line text form."""

    name: str
    public: bytes

    @property
    def key_id(self) -> bytes:
        """Four bytes that name the key in a signature line."""
        return _key_id(self.name, self.public)

    @property
    def label(self) -> str:
        """name+hex(key id): short, to be shown to people."""
        return f"{self.name}+{self.key_id.hex()}"

    @property
    def vkey(self) -> str:
        """name+hex(key id)+base64(type, public key)."""
        return f"{self.name}+{self.key_id.hex()}+{base64.b64encode(ED25519 + self.public).decode()}"

    @classmethod
    def parse(cls, vkey: str) -> VerifyKey:
        """Read a vkey; keys of small order or in a non-canonical encoding are refused. Raises TapeError."""
        name, _, rest = vkey.partition("+")
        key_id, _, encoded = rest.partition("+")
        _check_name(name)
        data = decode_base64(encoded, f"key {name}")
        if data[:1] != ED25519 or len(data) != 33:
            raise TapeError(f"key {name}: not an Ed25519 key")
        key = cls(name, data[1:])
        if key_id != key.key_id.hex():
            raise TapeError(f"key {name}: its key id does not fit")
        y = int.from_bytes(key.public, "little") & ((1 << 255) - 1)
        if y >= _P or y in _LOW_ORDER_Y:
            raise TapeError(f"key {name}: a public key of small order or in a non-canonical encoding")
        return key

    def verify(self, message: bytes, signature: bytes) -> bool:
        """Whether the signature over the message is this key's."""
        try:
            Ed25519PublicKey.from_public_bytes(self.public).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True


class SigningKey:
    """A named Ed25519 private key.

    Args:
        name: key name, such as `witbench/broker`.
        seed: 32 secret bytes.
    """

    def __init__(self, name: str, seed: bytes) -> None:
        _check_name(name)
        self.name = name
        self._private = Ed25519PrivateKey.from_private_bytes(seed)
        self.public_key = VerifyKey(name, self._private.public_key().public_bytes_raw())

    @classmethod
    def generate(cls, name: str) -> SigningKey:
        """A new random key."""
        return cls(name, secrets.token_bytes(32))

    @classmethod
    def from_seed(cls, name: str, seed: bytes) -> SigningKey:
        """The key of a seed."""
        return cls(name, seed)

    @property
    def vkey(self) -> str:
        """The public key as text."""
        return self.public_key.vkey

    def sign(self, message: bytes) -> bytes:
        """64-byte signature of the message itself; the caller separates domains."""
        return self._private.sign(message)


@dataclass(frozen=True)
class Signature:
    """One signature line: who claims to have signed, the key's id, and the signature."""

    name: str
    key_id: bytes
    value: bytes


@dataclass(frozen=True)
class Note:
    """A parsed note: its text (with the final newline) and its signatures, none of them verified yet."""

    body: str
    signatures: tuple[Signature, ...]

    @classmethod
    def parse(cls, text: str) -> Note:
        """Read a note. Raises TapeError when it is not one."""
        if len(text.encode()) > MAX_NOTE:
            raise TapeError("signed note: too long")
        if _CONTROL.search(text):
            raise TapeError("signed note: holds control characters")
        body, separator, lines = text.rpartition("\n\n")
        if not separator or not lines.endswith("\n"):
            raise TapeError("signed note: no signature lines after an empty line")
        return cls(body + "\n", tuple(_signature(line) for line in lines[:-1].split("\n")))


def _signature(line: str) -> Signature:
    dash, _, rest = line.partition(" ")
    name, _, encoded = rest.partition(" ")
    if dash != "\u2014":
        raise TapeError("signed note: a signature line does not begin with an em dash")
    _check_name(name)
    data = decode_base64(encoded, "signed note")
    if len(data) < 5:
        raise TapeError("signed note: a signature is too short")
    return Signature(name, data[:4], data[4:])


def verify_note(text: str, keys: Sequence[VerifyKey]) -> tuple[VerifyKey, ...]:
    """The keys that signed a note, in the order of its lines. Lines of unknown keys are ignored.

    Raises:
        TapeError: not a note, or a line of a known key does not verify.
    """
    note = Note.parse(text)
    signed: list[VerifyKey] = []
    for line in note.signatures:
        # A key id has 32 bits: two keys can share it and their name, so each of them is tried.
        claimed = [key for key in keys if (key.name, key.key_id) == (line.name, line.key_id)]
        signers = [key for key in claimed if key.verify(note.body.encode(), line.value)]
        if claimed and not signers:
            raise TapeError(f"signed note: the signature of {line.name} does not verify")
        signed += signers
    return tuple(signed)


def _line(body: str, key: SigningKey) -> str:
    data = key.public_key.key_id + key.sign(body.encode())
    return f"\u2014 {key.name} {base64.b64encode(data).decode()}\n"


def sign_note(body: str, *keys: SigningKey) -> str:
    """A note over text that ends in a newline, with one line per key, in their order."""
    if not body.endswith("\n"):
        raise TapeError("signed note: its text must end in a newline")
    return body + "\n" + "".join(_line(body, key) for key in keys)


def add_signature(note: str, key: SigningKey) -> str:
    """The note with one more signature line; the text is not looked at, so look at it first."""
    return note + _line(body_of(note), key)


def body_of(note: str) -> str:
    """The signed text of a note. Raises TapeError when it is not one."""
    return Note.parse(note).body


@dataclass(frozen=True)
class Checkpoint:
    """A head of a log: its origin, size and Merkle root."""

    origin: str
    size: int
    root: bytes

    @property
    def body(self) -> str:
        """The text that is signed."""
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n"

    @classmethod
    def parse(cls, body: str) -> Checkpoint:
        """Read a checkpoint's text; only the canonical form, without extension lines, is one. Raises TapeError."""
        lines = body.split("\n")
        if len(lines) != 4 or lines[3] or not lines[0]:
            raise TapeError("checkpoint: not the three lines origin, size and root")
        origin, size, encoded = lines[:3]
        if not (size.isascii() and size.isdecimal()) or len(size) > 19 or size != str(int(size)):
            raise TapeError("checkpoint: the size is not a decimal without leading zeros")
        root = decode_base64(encoded, "checkpoint root")
        if len(root) != 32:
            raise TapeError("checkpoint: the root is not 32 bytes")
        return cls(origin, int(size), root)


def checkpoint_body(origin: str, size: int, root: bytes) -> str:
    """Text of a checkpoint, to be signed."""
    return Checkpoint(origin, size, root).body


def check_head(note: str, expected: Checkpoint, keys: Sequence[VerifyKey]) -> None:
    """Hold a signed head against the log itself: it must be over `expected` and signed by exactly `keys`, in order.

    Raises:
        TapeError: another origin, size or root, a signature that does not verify, or lines missing or left over.
    """
    parsed = Note.parse(note)
    head = Checkpoint.parse(parsed.body)
    for name in ("origin", "size", "root"):
        if getattr(head, name) != getattr(expected, name):
            raise TapeError(f"checkpoint: its {name} is not this log's")
    wanted = [(key.name, key.key_id) for key in keys]
    if [(line.name, line.key_id) for line in parsed.signatures] != wanted:
        names = " and ".join(key.name for key in keys)
        raise TapeError(f"checkpoint: must be signed by {names}, in this order and by nobody else")
    for key, line in zip(keys, parsed.signatures, strict=True):
        if not key.verify(parsed.body.encode(), line.value):
            raise TapeError(f"checkpoint: the signature of {key.name} does not verify")
