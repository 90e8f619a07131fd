"""Signed notes, checkpoints and keys: known answers and forgeries."""

from __future__ import annotations

import base64
import hashlib

import pytest

from witbench.errors import TapeError
from witbench.protocol.notes import (
    Checkpoint,
    Note,
    SigningKey,
    VerifyKey,
    add_signature,
    body_of,
    check_head,
    checkpoint_body,
    sign_note,
    verify_note,
)

# The example of the C2SP signed-note specification.
SPEC_KEY = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
SPEC_NOTE = (
    "If you think cryptography is the answer to your problem,\n"
    "then you don't know what your problem is.\n"
    "\n"
    "\u2014 PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
)
A, B = SigningKey.from_seed("a", b"1" * 32), SigningKey.from_seed("b", b"2" * 32)


def test_the_specification_s_example() -> None:
    key = VerifyKey.parse(SPEC_KEY)
    assert key.vkey == SPEC_KEY
    assert verify_note(SPEC_NOTE, [key]) == (key,)
    assert body_of(SPEC_NOTE).endswith("problem is.\n")


@pytest.mark.parametrize(
    ("seed", "public", "message", "signature"),
    [  # RFC 8032, 7.1, tests 1 to 3
        (
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "",
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
        ),
        (
            "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
            "72",
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
        ),
        (
            "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
            "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
            "af82",
            "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
        ),
    ],
)
def test_ed25519_known_answers(seed: str, public: str, message: str, signature: str) -> None:
    key = SigningKey.from_seed("k", bytes.fromhex(seed))
    assert key.public_key.public.hex() == public
    assert key.sign(bytes.fromhex(message)).hex() == signature
    assert key.public_key.verify(bytes.fromhex(message), bytes.fromhex(signature))
    assert not key.public_key.verify(bytes.fromhex(message) + b"x", bytes.fromhex(signature))


def _low_order_encodings() -> list[str]:
    """All 14 encodings of the eight points of order 1, 2, 4 and 8, non-canonical ones included."""
    p = 2**255 - 19
    eighth = 2707385501144840649318225287225658788936804267575313519463743609750303402022
    plain = [0, 1, p - 1, eighth, p - eighth]
    ys = [*plain, p, p + 1]
    return [(y | sign << 255).to_bytes(32, "little").hex() for y in ys for sign in (0, 1)]


@pytest.mark.parametrize("public", _low_order_encodings())
def test_keys_of_small_order_are_refused(public: str) -> None:
    key = VerifyKey("k", bytes.fromhex(public))
    with pytest.raises(TapeError, match="small order"):
        VerifyKey.parse(key.vkey)


def test_low_order_points_are_what_they_are_called() -> None:
    """Eight times each of them is the neutral element, by the curve's own addition law."""
    p = 2**255 - 19
    d = -121665 * pow(121666, -1, p) % p

    def add(one: tuple[int, int], two: tuple[int, int]) -> tuple[int, int]:
        (x1, y1), (x2, y2) = one, two
        k = d * x1 * x2 * y1 * y2
        x = (x1 * y2 + x2 * y1) * pow(1 + k, -1, p)
        return x % p, (y1 * y2 + x1 * x2) * pow(1 - k, -1, p) % p

    for public in _low_order_encodings():
        y = (int(public[-2:] + "".join(reversed([public[i : i + 2] for i in range(0, 62, 2)])), 16) & (2**255 - 1)) % p
        square = (y * y - 1) * pow(d * y * y + 1, -1, p) % p
        x = pow(square, (p + 3) // 8, p)
        x = x if x * x % p == square else x * pow(2, (p - 1) // 4, p) % p
        point = (x, y)
        for _ in range(3):
            point = add(point, point)
        assert point == (0, 1)


@pytest.mark.parametrize(
    ("vkey", "reason"),
    [
        ("no plus signs", "printable"),
        ("", "printable"),
        ("k+00000000+" + base64.b64encode(b"\x01" + A.public_key.public).decode(), "key id"),
        ("a+" + A.public_key.key_id.hex() + "+AA==", "not an Ed25519 key"),
        ("a+" + A.public_key.key_id.hex() + "+????", "not base64"),
        (A.vkey.replace("a+", "a b+", 1), "printable"),
    ],
)
def test_bad_vkeys(vkey: str, reason: str) -> None:
    with pytest.raises(TapeError, match=reason):
        VerifyKey.parse(vkey)


def test_two_signers_and_strangers() -> None:
    note = add_signature(sign_note("text\n", A), B)
    assert note == sign_note("text\n", A, B)
    assert verify_note(note, [A.public_key, B.public_key]) == (A.public_key, B.public_key)
    assert verify_note(note, [B.public_key]) == (B.public_key,)


def test_a_bad_line_of_a_known_key_rejects_the_note() -> None:
    forged = sign_note("text\n", A).replace("text", "test")
    with pytest.raises(TapeError, match="does not verify"):
        verify_note(forged, [A.public_key])
    assert verify_note(forged, [B.public_key]) == ()


def test_a_key_id_collision_gives_no_second_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that shares name and id with the broker's must not sign in its place."""
    one, two = SigningKey.from_seed("same", b"1" * 32), SigningKey.from_seed("same", b"2" * 32)
    monkeypatch.setattr(VerifyKey, "key_id", b"same")
    head = Checkpoint("origin", 3, bytes(32))
    forged = sign_note(head.body, two, two)
    with pytest.raises(TapeError, match="does not verify"):
        check_head(forged, head, (one.public_key, two.public_key))
    check_head(sign_note(head.body, one, two), head, (one.public_key, two.public_key))
    assert verify_note(forged, [one.public_key, two.public_key]) == (two.public_key, two.public_key)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no signature\n",
        "text\n\n",
        "text\n\n- a AAAAAAAA\n",
        "text\n\n\u2014 a ????\n",
        "text\n\n\u2014 a AAAA\n",
        "text\n\n\u2014 a AAAAAAAA",
        "te\txt\n\n\u2014 a AAAAAAAA\n",
        "text\n\n\u2014 a AAAAAAB=\n",
        "text\n\n\u2014 a+b AAAAAAAA\n",
        "text\n\n\u2014  AAAAAAAA\n",
        sign_note("text\n", A)[:-1] + "x",
        "x" * 20_000 + sign_note("text\n", A),
    ],
)
def test_what_is_not_a_note(text: str) -> None:
    with pytest.raises(TapeError):
        Note.parse(text)


@pytest.mark.parametrize("name", ["", "two words", "plus+sign", "new\nline"])
def test_names_that_a_line_cannot_hold(name: str) -> None:
    with pytest.raises(TapeError, match="key name"):
        SigningKey.generate(name)


def test_text_to_be_signed_ends_in_a_newline() -> None:
    with pytest.raises(TapeError, match="must end in a newline"):
        sign_note("text", A)


def test_checkpoint_text() -> None:
    body = checkpoint_body("witbench/run/x", 7, bytes(32))
    assert body == f"witbench/run/x\n7\n{'A' * 43}=\n"
    assert Checkpoint.parse(body) == Checkpoint("witbench/run/x", 7, bytes(32))


ROOT = base64.b64encode(hashlib.sha256(b"root").digest()).decode()


@pytest.mark.parametrize(
    "body",
    [
        f"o\n07\n{ROOT}\n",
        f"o\n+7\n{ROOT}\n",
        f"o\n\u0667\n{ROOT}\n",
        f"o\n{'9' * 5000}\n{ROOT}\n",
        f"o\n7\n{ROOT}",
        f"o\n7\n{ROOT}\nextension\n",
        f"\n7\n{ROOT}\n",
        f"o\n7\n{ROOT[:-4]}\n",
        f"o\n7\n{ROOT[:-2]}B=\n",
        "o\n7\n",
    ],
)
def test_what_is_not_a_checkpoint(body: str) -> None:
    with pytest.raises(TapeError):
        Checkpoint.parse(body)


HEAD = Checkpoint("witbench/run/x", 7, hashlib.sha256(b"root").digest())
KEYS = (A.public_key, B.public_key)


@pytest.mark.parametrize(
    ("note", "reason"),
    [
        (sign_note(Checkpoint("witbench/run/y", 7, HEAD.root).body, A, B), "origin"),
        (sign_note(Checkpoint(HEAD.origin, 6, HEAD.root).body, A, B), "size"),
        (sign_note(Checkpoint(HEAD.origin, 7, bytes(32)).body, A, B), "root"),
        (sign_note(HEAD.body, A), "signed by a and b"),
        (sign_note(HEAD.body, B, A), "in this order"),
        (sign_note(HEAD.body, A, B, SigningKey.from_seed("c", b"3" * 32)), "nobody else"),
        (sign_note(HEAD.body, A, A), "signed by a and b"),
        (sign_note(HEAD.body, SigningKey.from_seed("a", b"9" * 32), B), "signed by a and b"),
    ],
)
def test_a_head_must_be_this_one_by_these_keys(note: str, reason: str) -> None:
    check_head(sign_note(HEAD.body, A, B), HEAD, KEYS)
    with pytest.raises(TapeError, match=reason):
        check_head(note, HEAD, KEYS)


@pytest.mark.parametrize("line", [0, 1])
def test_each_signature_of_a_head_counts(line: int) -> None:
    lines = sign_note(HEAD.body, A, B).splitlines(keepends=True)
    other = sign_note("other\n", A, B).splitlines(keepends=True)
    lines[-2 + line] = other[-2 + line]
    with pytest.raises(TapeError, match="does not verify"):
        check_head("".join(lines), HEAD, KEYS)
