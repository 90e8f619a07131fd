"""The bound data order: a keyed permutation of all windows for each epoch, open at any place without state.

A balanced Feistel network over the next even power of two, with cycle walking down to the number of windows (Black &
Rogaway 2002). Round functions are keyed BLAKE2b, so the order follows from the seed on every machine and version.
"""

from __future__ import annotations

import hashlib

_ROUNDS = 6


def batch_windows(windows: int, order_seed: bytes, first: int, count: int) -> list[int]:
    """Windows at places `first` to `first + count` of the order; each epoch visits every window once.

    Args:
        windows: number of windows in the dataset, at least 1.
        order_seed: 32 bytes.
        first: place, counted over all epochs.
        count: how many.
    """
    found = []
    for place in range(first, first + count):
        epoch, index = divmod(place, windows)
        found.append(_permuted(index, windows, order_seed + epoch.to_bytes(8, "big")))
    return found


def _permuted(index: int, windows: int, key: bytes) -> int:
    half = max(1, ((windows - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = index >> half, index & mask
        for number in range(_ROUNDS):
            data = number.to_bytes(1, "big") + right.to_bytes(8, "big")
            digest = hashlib.blake2b(data, key=key, digest_size=8, person=b"witbench/order").digest()
            left, right = right, left ^ (int.from_bytes(digest, "big") & mask)
        index = left << half | right
        if index < windows:
            return index
