"""Gets the damaged parts of a slave's log from its master. Layer 5; on the event loop."""

import asyncio
from secrets import token_bytes
from typing import Final

from appliance.config.setting import Address
from appliance.errors import RemoteProtocolError
from appliance.replication import wire
from appliance.replication.facts import Facts
from appliance.replication.logs import DamagedLog
from appliance.replication.repair_session import RepairSession

READ_SIZE_BYTES: Final = 65_536


async def repair(
    address: Address, log: DamagedLog, facts: Facts, secret: bytes, *, silence_s: float
) -> None:
    """Replace the damaged parts of a log by the bytes of the master, durably.

    Args:
        address: where the master replicates.
        log: has damaged parts.
        facts: what this node says of itself.
        secret: what both nodes know.
        silence_s: each answer takes at most so long.

    Raises:
        RemoteProtocolError: the master refuses, breaks a rule, or does not know the secret.
        ReplicaError: the master cannot have what is damaged here.
        StorageError: the disk failed.
        OSError: nobody is there, or there is no answer in time.
        UnicodeError: the name cannot be a host's.
    """
    session = RepairSession(log, facts, secret, token_bytes(wire.NONCE_SIZE))
    async with asyncio.timeout(silence_s):
        reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        while not session.is_done:
            async with asyncio.timeout(silence_s):
                data = await reader.read(READ_SIZE_BYTES)
            if not data:
                raise RemoteProtocolError("it closed the connection before all was repaired")
            writer.write(session.received(data))
    finally:
        writer.transport.abort()
