"""What a request is whose size is out of range: mostly another protocol. Layer 0: no I/O.

A Kafka request begins with four bytes of size. The first four bytes of other protocols are sizes of
hundreds of megabytes, above any limit.
"""

from libc.stdint cimport int32_t, int64_t

KINDS = {
    "HTTP": "GET HEAD POST PUT DELE OPTI PATC CONN TRAC PRI",
    "SSH": "SSH-",
    "the PROXY protocol of a load balancer": "PROX \r\n\r\n",
}

ADVICE = {
    "HTTP": "HTTP clients connect to network.admin, or to another server",
    "TLS": "this broker has none, so clients need security.protocol=PLAINTEXT",
}


cpdef str describe_size(int32_t size, int64_t size_max):
    """Say why a connection is closed whose request has a size out of range.

    Args:
        size: the first four bytes of the request.
        size_max: bytes of the largest request that is allowed.
    """
    head = (<object>size).to_bytes(4, "big", signed=True)
    kind = None
    if head[:2] == b"\x16\x03":  # a handshake record of TLS 1.0 or later
        kind = "TLS"
    for name, words in KINDS.items():
        if head.decode("latin-1").rstrip(" ") in words.split(" "):
            kind = name
    if kind is not None:
        advice = ADVICE.get(kind, "clients must speak Kafka's protocol")
        return f"it looks like {kind}, not like Kafka's protocol: {advice}"
    return (
        f"a request of {size} bytes is out of range; "
        f"network.request_size_max_bytes is {size_max}"
    )
