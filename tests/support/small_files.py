"""Sizes and sources of chance by which a simulated run is quick, and the same again."""

import random
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from appliance.store import commit_log

REACH_STEP_BYTES: Final = 1 << 15
"""Half a segment of the small configuration."""


@contextmanager
def small_reach() -> Iterator[None]:
    """Let the log write its checkpoint every few frames, to say that it will go on."""
    whole = commit_log.REACH_STEP_BYTES
    commit_log.REACH_STEP_BYTES = REACH_STEP_BYTES  # type: ignore[misc]
    try:
        yield
    finally:
        commit_log.REACH_STEP_BYTES = whole  # type: ignore[misc]


@contextmanager
def repeatable_ids(seed: int) -> Iterator[None]:
    """Let the ids that a broker makes up follow from a seed, so that two runs are the same."""
    rng, whole = random.Random(seed), secrets.token_bytes

    def token_bytes(nbytes: int | None = None) -> bytes:
        return rng.randbytes(32 if nbytes is None else nbytes)

    secrets.token_bytes = token_bytes
    try:
        yield
    finally:
        secrets.token_bytes = whole
