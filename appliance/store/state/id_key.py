"""The key by which users' ids of timers are hashed. Layer 2; does no I/O."""

import hashlib
from typing import Final
from uuid import UUID

KEY_BYTES: Final = 16
_PERSON: Final = b"latermq ids"


def id_key(cluster: UUID, salt: int) -> bytes:
    """Return the key of a log: docs/FORMAT.md, carried ids.

    It follows from the log, so that a replay of the log alone hashes as the broker did that carried
    the ids. Clients never see the salt, so they cannot choose ids with one hash.

    Args:
        cluster: of the log.
        salt: of its frames.
    """
    seed = cluster.bytes + salt.to_bytes(4, "big")
    return hashlib.blake2b(seed, digest_size=KEY_BYTES, person=_PERSON).digest()
