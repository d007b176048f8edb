"""Attacks of one unauthenticated client on a broker, beside a client that behaves.

    make bench-attacks                         # or: python -m perf.attacks
    python -m perf.attacks --only list_offsets --seconds 5

`table.py` has a row for each attack. See perf/README.md.
"""
