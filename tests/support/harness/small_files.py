"""Small sizes and fixed random ids that make a simulated run quick and reproducible."""

import random
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from appliance.store.log import commit_log

WATERMARK_STEP_BYTES: Final = 1 << 15
"""Half a segment of the small configuration."""


@contextmanager
def small_watermark() -> Iterator[None]:
    """Make the log raise its allocation watermark in the checkpoint every few frames."""
    whole = commit_log.WATERMARK_STEP_BYTES
    commit_log.WATERMARK_STEP_BYTES = WATERMARK_STEP_BYTES  # type: ignore[misc]
    try:
        yield
    finally:
        commit_log.WATERMARK_STEP_BYTES = whole  # type: ignore[misc]


@contextmanager
def repeatable_ids(seed: int) -> Iterator[None]:
    """Derive the ids that a broker draws from a seed, so that two runs are the same."""
    rng, whole = random.Random(seed), secrets.token_bytes

    def token_bytes(nbytes: int | None = None) -> bytes:
        return rng.randbytes(32 if nbytes is None else nbytes)

    secrets.token_bytes = token_bytes
    try:
        yield
    finally:
        secrets.token_bytes = whole
