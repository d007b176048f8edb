"""Decompression of the records block of a batch, for the four codecs that Kafka names.

| codec | form                                                                                   |
|-------|----------------------------------------------------------------------------------------|
| 1     | gzip, one member                                                                       |
| 2     | snappy, raw (librdkafka, franz-go) or in xerial blocks (Java, aiokafka, kafka-python)  |
| 3     | one LZ4 frame                                                                          |
| 4     | one Zstandard frame, with its content size (librdkafka) or without (Java)              |

The input comes from the network and is trusted in nothing: the output never exceeds the caller's
limit, sizes that the input declares are checked before memory is taken for them, and what does not
declare any is unpacked in steps. Exactly one frame is accepted, whole, with nothing after it, so
that no reader can see other records in a batch than the broker saw. (Java also reads a second gzip
member or Zstandard frame; no client writes one, and refusing them keeps the work bounded by the
sizes of input and output.)

There is no compression here: stored batches keep the producer's bytes or are written uncompressed.

Layer 3; does no I/O.
"""

from collections.abc import Callable
from typing import Final

import cramjam
import lz4.frame  # type: ignore[import-untyped]
import zstandard
from isal import igzip_lib
from typing_extensions import Buffer

from appliance.errors import RequestError

GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

# What is unpacked at a time when the size is unknown, so that memory follows the batch and not the
# limit. Larger steps are no faster: gzip and Zstandard measured 1.5 times slower with 16 MiB.
STEP_MAX_BYTES: Final = 1 << 20

XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
# Magic, version, compatible version. The versions are ignored, as librdkafka and kafka-python do:
# they have always been 1, and some producers write them in the wrong byte order.
XERIAL_HEADER_SIZE: Final = 16

# Every writer fills blocks of 1 KiB and more, but for the last one. They are looked at one by one,
# so a batch that is made of tiny ones would hold up the loop.
BLOCK_MEAN_MIN_BYTES: Final = 256
BLOCK_COUNT_FREE: Final = 16

# 258 bytes of output for two bits of input.
DEFLATE_EXPANSION_MAX: Final = 1032

# An LZ4 token can ask for 255 bytes of output for each further byte of input.
LZ4_EXPANSION_MAX: Final = 255

ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
ZSTD_BLOCK_SIZE_MAX: Final = 128 << 10
ZSTD_BLOCK_RLE: Final = 1
ZSTD_BLOCK_COMPRESSED: Final = 2
# What a block is taken to unpack to at least, for each of its bytes: one of 128 KiB may have ten.
ZSTD_EXPANSION_TYPICAL: Final = 32
# What every other reader accepts, so that compression level 22 works. It is address space, not
# memory: pages of the window are touched only as output is made.
ZSTD_WINDOW_MAX_BYTES: Final = 128 << 20

# The stub declares the class as if it were an instance of it.
_IGZIP_ERROR: Final[type[Exception]] = igzip_lib.IsalError  # type: ignore[assignment]


class CodecError(RequestError):
    """The compressed data is not what its codec says (CORRUPT_MESSAGE).

    Args:
        codec_name: the codec's name.
        reason: what is wrong, after "the data is damaged:".
        unpacked_size: most bytes that were unpacked until this was found.
    """

    default_code = 2

    def __init__(self, codec_name: str, reason: str, unpacked_size: int = 0) -> None:
        super().__init__(f"the {codec_name} data of the batch is damaged: {reason}")
        self.codec_name = codec_name
        self.unpacked_size = unpacked_size


class DecompressedTooLargeError(RequestError):
    """The batch is larger than allowed once it is decompressed (MESSAGE_TOO_LARGE).

    Args:
        codec_name: the codec's name.
        size_max: the limit in bytes.
        unpacked_size: bytes that were unpacked until this was found.
    """

    default_code = 10

    def __init__(self, codec_name: str, size_max: int, unpacked_size: int = 0) -> None:
        super().__init__(
            f"the {codec_name} data of the batch is larger than {size_max} bytes when it is"
            " decompressed, the limit that limits.decompressed_size_max_bytes sets"
        )
        self.codec_name = codec_name
        self.size_max = size_max
        self.unpacked_size = unpacked_size


def decompress(codec: int, data: Buffer, size_max: int) -> bytes:
    """Decompress the records block of a batch.

    Args:
        codec: bits 0 to 2 of the batch's attributes, 1 .. 7; 0, not compressed, is the caller's.
        data: the block, contiguous.
        size_max: most bytes to return, 1 or more.

    Returns:
        The records, at most `size_max` bytes. While it runs, at most twice their size is taken,
        and a few MiB.

    Raises:
        CodecError: the codec is unknown, or the data is not exactly one whole frame of it.
        DecompressedTooLargeError: there is more than `size_max`, of which at most one byte more
            was unpacked.
    """
    assert codec > 0  # the caller has nothing to decompress
    assert size_max > 0
    if codec not in _DECOMPRESSORS:
        raise CodecError(f"codec {codec}", "Kafka has no codec of this number")
    return _DECOMPRESSORS[codec](memoryview(data).cast("B"), size_max)


def _decompress_gzip(data: memoryview, size_max: int) -> bytes:
    # The trailer tells the size, modulo 2**32: what is too large and says so takes no work at all,
    # and what says something else gets no further than that.
    told_size = int.from_bytes(data[-4:], "little")
    if told_size > DEFLATE_EXPANSION_MAX * len(data):
        raise CodecError("gzip", f"it tells of {told_size} bytes, more than it can hold")
    if told_size > size_max:
        raise DecompressedTooLargeError("gzip", size_max)
    unpacker = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
    parts: list[bytes] = []
    room = told_size
    try:
        while not unpacker.eof:
            # What a step leaves of the input, the unpacker keeps.
            part = unpacker.decompress(b"" if parts else data, min(STEP_MAX_BYTES, room + 1))
            if len(part) > room:
                raise CodecError(
                    "gzip", f"it has more than the {told_size} bytes it tells", told_size
                )
            if not part and not unpacker.eof:
                raise CodecError("gzip", "it ends too early", told_size - room)
            parts.append(part)
            room -= len(part)
    except _IGZIP_ERROR as error:
        raise CodecError("gzip", str(error), told_size - room + STEP_MAX_BYTES) from error
    if unpacker.unused_data:
        raise CodecError("gzip", "something follows it", told_size - room)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _decompress_snappy(data: memoryview, size_max: int) -> bytes:
    # No raw block begins like this: its first operation would copy from before the output.
    if bytes(data[: len(XERIAL_MAGIC)]) == XERIAL_MAGIC:
        return _decompress_xerial(data, size_max)
    if _measure_snappy_block(data) > size_max:
        raise DecompressedTooLargeError("snappy", size_max)
    return _unpack_snappy_block(data)


def _measure_snappy_block(block: memoryview) -> int:
    """Return the size that a raw block declares; it cannot unpack to more."""
    try:
        size: int = cramjam.snappy.decompress_raw_len(block)
    except cramjam.DecompressionError as error:
        raise CodecError("snappy", str(error)) from error
    return size


def _unpack_snappy_block(block: memoryview) -> bytes:
    try:
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise CodecError("snappy", str(error), _measure_snappy_block(block)) from error


def _decompress_xerial(data: memoryview, size_max: int) -> bytes:
    """Decompress blocks of which each follows its size, a big-endian int32."""
    blocks: list[memoryview] = []
    unpacked_size = 0
    pos = XERIAL_HEADER_SIZE
    if len(data) <= pos:
        raise CodecError("snappy", "it ends too early")
    while pos < len(data):
        size = int.from_bytes(data[pos : pos + 4], "big", signed=True)
        pos += 4
        if not 0 < size <= len(data) - pos:
            raise CodecError("snappy", f"a block of {size} bytes with {len(data) - pos} left")
        blocks.append(data[pos : pos + size])
        unpacked_size += _measure_snappy_block(blocks[-1])
        if unpacked_size > size_max:
            raise DecompressedTooLargeError("snappy", size_max)
        pos += size
        _check_block_count("snappy", len(blocks), pos + unpacked_size)
    try:
        return b"".join(map(_unpack_snappy_block, blocks))
    except CodecError as error:
        # The whole blocks in front of the damaged one were work as well.
        error.unpacked_size = unpacked_size
        raise


def _check_block_count(codec_name: str, count: int, size: int) -> None:
    """Raise CodecError if so many blocks are too many for `size` bytes."""
    if count > BLOCK_COUNT_FREE + size // BLOCK_MEAN_MIN_BYTES:
        raise CodecError(codec_name, f"it has {count} blocks for {size} bytes")


def _decompress_lz4(data: memoryview, size_max: int) -> bytes:
    room = size_max
    step = 0
    try:
        info = lz4.frame.get_frame_info(data)
        if info["skippable"]:
            raise CodecError("lz4", "the frame is one to skip")
        content_size: int = info["content_size"]  # 0 if the frame does not tell
        if content_size > size_max:
            raise DecompressedTooLargeError("lz4", size_max)
        step = content_size or min(STEP_MAX_BYTES, LZ4_EXPANSION_MAX * len(data))
        context = lz4.frame.create_decompression_context()
        parts: list[bytes] = []
        pos = 0
        is_end = False
        while not is_end:
            part, used, is_end = lz4.frame.decompress_chunk(
                context, data[pos:], max_length=min(step, room + 1)
            )
            if len(part) > room:
                raise DecompressedTooLargeError("lz4", size_max, size_max)
            if not part and not is_end:
                raise CodecError("lz4", "it ends too early", size_max - room)
            parts.append(part)
            room -= len(part)
            pos += used
    except RuntimeError as error:
        raise CodecError("lz4", str(error), size_max - room + step) from error
    if pos != len(data):
        raise CodecError("lz4", "something follows it", size_max - room)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _decompress_zstd(data: memoryview, size_max: int) -> bytes:
    room = size_max
    step = 0
    try:
        content_size, content_size_max = _measure_zstd_frame(data)
        if content_size > size_max:
            raise DecompressedTooLargeError("zstd", size_max)
        # With room for all of it, a frame of known size is unpacked without a window.
        step = content_size if content_size > 0 else min(STEP_MAX_BYTES, content_size_max)
        unpacker = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_MAX_BYTES)
        reader = unpacker.stream_reader(data)
        parts: list[bytes] = []
        # Until nothing comes, even if all must be there: only then the checksum has been compared.
        while part := reader.read(max(1, min(step, room + 1))):
            if len(part) > room:
                raise DecompressedTooLargeError("zstd", size_max, size_max)
            parts.append(part)
            room -= len(part)
    except zstandard.ZstdError as error:
        raise CodecError("zstd", str(error), size_max - room + step) from error
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _measure_zstd_frame(data: memoryview) -> tuple[int, int]:
    """Walk the blocks of a frame without unpacking them.

    The library's reader takes a frame that is cut short for the end of the data, and ignores what
    follows a frame; so the ends are compared here.

    Returns:
        The content size that the frame declares, -1 if none, and the most that its blocks can hold.

    Raises:
        CodecError: the data is not exactly one frame.
        zstandard.ZstdError: the frame's header is damaged or cut short.
    """
    if bytes(data[: len(ZSTD_MAGIC)]) != ZSTD_MAGIC:
        raise CodecError("zstd", "it does not begin like a frame")
    parameters = zstandard.get_frame_parameters(data)
    content_size = zstandard.frame_content_size(data)
    pos = zstandard.frame_header_size(data)
    content_size_max = typical_size = block_count = 0
    is_last = False
    while not is_last:
        header = int.from_bytes(data[pos : pos + 3], "little")
        is_last = bool(header & 1)
        kind = header >> 1 & 3
        size = header >> 3
        is_compressed = kind == ZSTD_BLOCK_COMPRESSED
        content_size_max += ZSTD_BLOCK_SIZE_MAX if is_compressed else size
        typical_size += ZSTD_EXPANSION_TYPICAL * size if is_compressed else size
        pos += 3 + (1 if kind == ZSTD_BLOCK_RLE else size)
        if pos > len(data):
            raise CodecError("zstd", "it ends too early")
        block_count += 1
        _check_block_count("zstd", block_count, pos + typical_size)
    pos += 4 if parameters.has_checksum else 0
    if pos != len(data):
        reason = "it ends too early" if pos > len(data) else "something follows it"
        raise CodecError("zstd", reason)
    return content_size, content_size_max


_DECOMPRESSORS: Final[dict[int, Callable[[memoryview, int], bytes]]] = {
    GZIP: _decompress_gzip,
    SNAPPY: _decompress_snappy,
    LZ4: _decompress_lz4,
    ZSTD: _decompress_zstd,
}
