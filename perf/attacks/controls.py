"""Controls: they take what broker and good client share with attackers, and ask the broker nothing.

What a control costs the good client is not the broker's.
"""

import os
import socket
import subprocess
import sys
from typing import Final

from perf.attacks.arena import Arena

SINK: Final = """
import os, socket, sys
server = socket.socket(fileno=int(sys.argv[1]))
os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
try:
    os.setpriority(os.PRIO_PROCESS, 0, 0)
except PermissionError:
    pass  # it has that of the attackers
connection, _ = server.accept()
space = bytearray(1 << 16)
while connection.recv_into(space):
    pass
"""
"""A process with the priority of the broker, which receives and does nothing."""

CHUNK_BYTES: Final = 4 << 20
FILE_BYTES: Final = 256 << 20


def burn_processors(arena: Arena) -> None:
    """A process for each processor that computes and sends nothing."""
    spin = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(spin) for _ in range(os.cpu_count() or 1)]
    arena.linger()
    for process in processes:
        process.kill()
        process.wait()


def fill_network(arena: Arena) -> None:
    """Sends as fast as it can to a process beside the broker, which receives that."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [sys.executable, "-c", SINK, str(server.fileno())]
        process = subprocess.Popen(command, pass_fds=[server.fileno()])
        chunk, count = bytes(CHUNK_BYTES), 0
        with socket.create_connection(server.getsockname()) as client:
            while not arena.is_over:
                for at in range(0, CHUNK_BYTES, 65536):
                    client.sendall(memoryview(chunk)[at : at + 65536])
                count += 1
        process.wait()
    arena.notes.append(f"{count * CHUNK_BYTES / 1e6:,.0f} MB")


def sync_files(arena: Arena) -> None:
    """Writes 4 MB to another file of the same disk and syncs it, again and again."""
    place = arena.broker.stderr_path.parent / "control"
    chunk, count = os.urandom(CHUNK_BYTES), 0
    with place.open("wb", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, FILE_BYTES)
        while not arena.is_over:
            os.pwrite(file.fileno(), chunk, count * CHUNK_BYTES % FILE_BYTES)
            os.fdatasync(file.fileno())
            count += 1
    place.unlink()
    arena.notes.append(f"{count * CHUNK_BYTES / 1e6:,.0f} MB")
