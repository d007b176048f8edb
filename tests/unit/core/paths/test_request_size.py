"""What is said of a connection whose first bytes are no size of a request."""

import pytest

from _core.paths.request_size import describe_size


def described(first_bytes: bytes) -> str:
    return describe_size(int.from_bytes(first_bytes[:4], "big", signed=True), 1_000)


@pytest.mark.parametrize(
    ("first_bytes", "kind"),
    [
        *((f"{method} / HTTP/1.1\r\n".encode(), "HTTP") for method in ("GET", "PUT", "OPTIONS")),
        *((f"{method} / HTTP/1.1\r\n".encode(), "HTTP") for method in ("POST", "HEAD", "DELETE")),
        (b"PRI * HTTP/2.0\r\n", "HTTP"),
        (b"CONNECT broker:9092 HTTP/1.1\r\n", "HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "TLS"),
        (b"\x16\x03\x03\x00\xf0\x01", "TLS"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "SSH"),
        (b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n", "the PROXY protocol"),
        (b"\r\n\r\n\x00\r\nQUIT\n", "the PROXY protocol"),
    ],
)
def test_another_protocol_is_called_by_its_name(first_bytes: bytes, kind: str) -> None:
    assert described(first_bytes).startswith(f"it looks like {kind}")
    assert "bytes" not in described(first_bytes)


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 7, 1_001, 0x16_04_00_00, 2**31 - 1])
def test_a_size_is_called_by_its_number_and_the_limit(size: int) -> None:
    expected = f"a request of {size} bytes is out of range; network.request_size_max_bytes is 1000"
    assert describe_size(size, 1_000) == expected
