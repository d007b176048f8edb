"""Decompression of the records block of a batch, for the four codecs of Kafka.

| codec | form                                                                                   |
|-------|----------------------------------------------------------------------------------------|
| 1     | gzip, one member                                                                       |
| 2     | snappy, raw (librdkafka, franz-go) or in xerial blocks (Java, aiokafka, kafka-python)  |
| 3     | one LZ4 frame                                                                          |
| 4     | Zstandard frames, each with its content size (librdkafka) or without (Java)            |

The input comes from the network and is not trusted: the output never exceeds the caller's limit, a
declared size is checked before memory is allocated for it, and input without a declared size is
unpacked in steps. The input must be exactly one whole frame (of Zstandard one or more, which
writers with threads make and every reader reads) with nothing after it, so that every reader sees
the same records in a batch as the broker. (Java also reads a second gzip member; no client writes
one.)

The broker never compresses: stored batches keep the producer's bytes or are written uncompressed.

Layer 3; does no I/O.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import cramjam
import lz4.frame  # type: ignore[import-untyped]
import zstandard
from isal import igzip_lib

from _core.bytes.pages import free_all
from appliance.errors import RequestError

if TYPE_CHECKING:
    # Loading it takes as long as a tenth of the start of a command.
    from typing_extensions import Buffer

GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

# Unpacked per step if the size is unknown, so that memory depends on the batch and not on the
# limit. Larger steps are not faster: gzip and Zstandard measured 1.5 times slower with 16 MiB.
STEP_MAX_BYTES: Final = 1 << 20

XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
# Magic, version, compatible version. The versions are ignored, as librdkafka and kafka-python do:
# they have always been 1, and some producers write them in the wrong byte order.
XERIAL_HEADER_SIZE: Final = 16

# Every writer fills blocks of 1 KiB and more, except the last one. Each block is checked by itself,
# so a batch of tiny blocks would stall the event loop.
BLOCK_MEAN_MIN_BYTES: Final = 256
BLOCK_COUNT_FREE: Final = 16

# A frame of Zstandard costs some microseconds, as much as the output of this size does. Writers
# with threads make frames of 64 KiB and more, except the last one.
FRAME_MEAN_MIN_BYTES: Final = 16 << 10
FRAME_COUNT_FREE: Final = 16

# 258 bytes of output for two bits of input.
DEFLATE_EXPANSION_MAX: Final = 1032

# An LZ4 token can produce 255 bytes of output for each further byte of input.
LZ4_EXPANSION_MAX: Final = 255

ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
ZSTD_BLOCK_SIZE_MAX: Final = 128 << 10
ZSTD_BLOCK_RLE: Final = 1
ZSTD_BLOCK_COMPRESSED: Final = 2
# The output assumed per byte of a block: a block that unpacks to 128 KiB may have ten bytes.
ZSTD_EXPANSION_TYPICAL: Final = 32
# The limit of all other readers, so that compression level 22 works. It is address space, not
# memory: pages of the window are touched only as output is produced.
ZSTD_WINDOW_MAX_BYTES: Final = 128 << 20

# Memory that an `Unpacker` keeps for the next batch. Clients send batches of 1 MiB and less.
KEPT_MAX_BYTES: Final = 8 << 20

# The stub declares the class as an instance.
_IGZIP_ERROR: Final[type[Exception]] = igzip_lib.IsalError  # type: ignore[assignment]


class CodecError(RequestError):
    """The compressed data is not valid for its codec.

    Args:
        codec_name: the codec's name.
        reason: what is wrong, to follow "the data is damaged:".
        unpacked_size: an upper bound of the bytes that were unpacked before the error.
    """

    is_too_large: Final = False

    def __init__(self, codec_name: str, reason: str, unpacked_size: int = 0) -> None:
        super().__init__(f"the {codec_name} data of the batch is damaged: {reason}")
        self.codec_name = codec_name
        self.unpacked_size = unpacked_size


class DecompressedTooLargeError(RequestError):
    """The batch is larger than allowed once it is decompressed.

    Args:
        codec_name: the codec's name.
        size_max: the limit in bytes.
        unpacked_size: bytes that were unpacked before the error.
    """

    is_too_large: Final = True

    def __init__(self, codec_name: str, size_max: int, unpacked_size: int = 0) -> None:
        super().__init__(
            f"the {codec_name} data of the batch decompresses to more than {size_max} bytes: send"
            " smaller batches, or raise limits.decompressed_size_max_bytes of the broker"
        )
        self.codec_name = codec_name
        self.size_max = size_max
        self.unpacked_size = unpacked_size


def decompress(codec: int, data: "Buffer", size_max: int) -> bytes:
    """Decompress the records block of a batch.

    Args:
        codec: bits 0 to 2 of the batch's attributes, 1 to 7; the caller handles 0, uncompressed.
        data: the block, contiguous.
        size_max: the maximum number of bytes to return, 1 or more.

    Returns:
        The records, at most `size_max` bytes. Peak memory is twice their size plus a few MiB.

    Raises:
        CodecError: the codec is unknown, or the data is not exactly one whole frame of it (of
            Zstandard: whole frames).
        DecompressedTooLargeError: the records exceed `size_max`; at most one byte more than that
            was unpacked.
    """
    assert codec > 0  # 0 means uncompressed
    assert size_max > 0
    if codec not in _DECOMPRESSORS:
        raise CodecError(f"codec {codec}", "Kafka has no codec with this number: use 1 to 4")
    return _DECOMPRESSORS[codec](memoryview(data).cast("B"), size_max)


def _joined(parts: list[bytes]) -> bytes:
    """Return the parts as one; nobody else needs them."""
    if len(parts) == 1:
        return parts[0]
    whole = b"".join(parts)
    free_all(parts)
    return whole


def _decompress_gzip(data: memoryview, size_max: int) -> bytes:
    # The trailer declares the size, modulo 2**32. Data that declares too large a size is refused
    # without work; data that declares a wrong size is unpacked up to that size only.
    declared_size = int.from_bytes(data[-4:], "little")
    if declared_size > DEFLATE_EXPANSION_MAX * len(data):
        raise CodecError("gzip", f"it declares {declared_size} bytes, more than it can hold")
    if declared_size > size_max:
        raise DecompressedTooLargeError("gzip", size_max)
    unpacker = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
    parts: list[bytes] = []
    room = declared_size
    try:
        while not unpacker.eof:
            # The unpacker keeps the input that a step does not consume.
            part = unpacker.decompress(b"" if parts else data, min(STEP_MAX_BYTES, room + 1))
            if len(part) > room:
                raise CodecError(
                    "gzip", f"it has more than the {declared_size} bytes it declares", declared_size
                )
            if not part and not unpacker.eof:
                raise CodecError("gzip", "it ends too early", declared_size - room)
            parts.append(part)
            room -= len(part)
    except _IGZIP_ERROR as error:
        raise CodecError("gzip", str(error), declared_size - room + STEP_MAX_BYTES) from error
    if unpacker.unused_data:
        raise CodecError("gzip", "bytes follow it", declared_size - room)
    return _joined(parts)


def _decompress_snappy(data: memoryview, size_max: int) -> bytes:
    # A raw block cannot begin like this: its first operation would copy from before the output.
    if bytes(data[: len(XERIAL_MAGIC)]) == XERIAL_MAGIC:
        return _decompress_xerial(data, size_max)
    if _measure_snappy_block(data) > size_max:
        raise DecompressedTooLargeError("snappy", size_max)
    return _unpack_snappy_block(data)


def _measure_snappy_block(block: memoryview) -> int:
    """Return the declared size of a raw block; it cannot unpack to more."""
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
    """Decompress blocks that each follow their size, a big-endian int32."""
    blocks: list[memoryview] = []
    unpacked_size = 0
    pos = XERIAL_HEADER_SIZE
    if len(data) <= pos:
        raise CodecError("snappy", "it ends too early")
    while pos < len(data):
        size = int.from_bytes(data[pos : pos + 4], "big", signed=True)
        pos += 4
        if not 0 < size <= len(data) - pos:
            raise CodecError(
                "snappy", f"a block declares {size} bytes, and {len(data) - pos} are left"
            )
        blocks.append(data[pos : pos + size])
        unpacked_size += _measure_snappy_block(blocks[-1])
        if unpacked_size > size_max:
            raise DecompressedTooLargeError("snappy", size_max)
        pos += size
        _check_block_count("snappy", len(blocks), pos + unpacked_size)
    try:
        return b"".join(map(_unpack_snappy_block, blocks))
    except CodecError as error:
        # The intact blocks before the damaged one were unpacked as well.
        error.unpacked_size = unpacked_size
        raise


def _check_block_count(codec_name: str, count: int, size: int) -> None:
    """Raise CodecError if there are too many blocks for `size` bytes."""
    if count > BLOCK_COUNT_FREE + size // BLOCK_MEAN_MIN_BYTES:
        raise CodecError(codec_name, f"it has {count} blocks for {size} bytes, which is too many")


def _decompress_lz4(data: memoryview, size_max: int) -> bytes:
    room = size_max
    step = 0
    try:
        info = lz4.frame.get_frame_info(data)
        if info["skippable"]:
            raise CodecError("lz4", "it is a skippable frame")
        content_size: int = info["content_size"]  # 0 if the frame does not declare it
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
        raise CodecError("lz4", "bytes follow it", size_max - room)
    return _joined(parts)


@dataclass(frozen=True, slots=True)
class _ZstdFrame:
    """One of the frames of a record section.

    Attributes:
        data: the frame.
        content_size: as declared, -1 if it declares none.
        content_size_max: the maximum content size of its blocks.
    """

    data: memoryview
    content_size: int
    content_size_max: int


class Unpacker:
    """Decompresses the records blocks of one batch after the other, for one thread.

    Zstandard is unpacked into memory that is used again. New memory for each batch, which the
    kernel clears, takes almost as long as unpacking into it.

    Args:
        size_max: the maximum number of bytes of a batch, 1 or more.
    """

    def __init__(self, size_max: int) -> None:
        assert size_max > 0
        self._size_max = size_max
        self._memory = bytearray()
        self._zstd = _zstd_unpacker()

    def unpack(self, codec: int, data: "Buffer") -> "bytes | memoryview":
        """Do as `decompress`; the records are valid until the next call.

        Peak memory is three times their size plus some MiB.
        """
        if codec != ZSTD:
            return decompress(codec, data, self._size_max)
        if len(self._memory) > KEPT_MAX_BYTES + 1:
            self._memory = bytearray()
        size = 0
        try:
            for frame in _measure_zstd_frames(memoryview(data).cast("B"), self._size_max):
                size = self._unpack_zstd(frame, size)
        except zstandard.ZstdError as error:
            raise CodecError("zstd", str(error), len(self._memory)) from error
        return memoryview(self._memory)[:size]

    def _unpack_zstd(self, frame: "_ZstdFrame", pos: int) -> int:
        """Unpack a frame to a place in the memory; return its end."""
        end = pos + (frame.content_size if frame.content_size >= 0 else frame.content_size_max)
        self._make_room(pos, end)
        reader = self._zstd.stream_reader(frame.data)
        # Read until the output ends, even if all of it is here: the checksum is compared last.
        while size := reader.readinto(memoryview(self._memory)[pos : self._size_max + 1]):
            pos += size
            if pos > self._size_max:
                raise DecompressedTooLargeError("zstd", self._size_max, self._size_max)
            if pos == len(self._memory):
                self._make_room(pos, end)
        return pos

    def _make_room(self, pos: int, end: int) -> None:
        """Make room from `pos` to `end`, or for a part of that, and for one byte that is too many.

        What a frame may hold at most is believed up to what others have held.
        """
        size = max(pos, min(end, pos + max(pos, KEPT_MAX_BYTES))) + 1
        if size > len(self._memory):
            grown = bytearray(size)
            grown[:pos] = memoryview(self._memory)[:pos]
            self._memory = grown


def _zstd_unpacker() -> zstandard.ZstdDecompressor:
    return zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_MAX_BYTES)


def _decompress_zstd(data: memoryview, size_max: int) -> bytes:
    room = size_max
    step = 0
    parts: list[bytes] = []
    try:
        unpacker = _zstd_unpacker()
        for frame in _measure_zstd_frames(data, size_max):
            # With room for the whole output, a frame of known size is unpacked without a window.
            step = frame.content_size
            if step <= 0:
                step = min(STEP_MAX_BYTES, frame.content_size_max)
            reader = unpacker.stream_reader(frame.data)
            # Read until the output ends, even if all of it is here: the checksum is compared last.
            while part := reader.read(max(1, min(step, room + 1))):
                if len(part) > room:
                    raise DecompressedTooLargeError("zstd", size_max, size_max)
                parts.append(part)
                room -= len(part)
    except zstandard.ZstdError as error:
        raise CodecError("zstd", str(error), size_max - room + step) from error
    return _joined(parts)


def _measure_zstd_frames(data: memoryview, size_max: int) -> list[_ZstdFrame]:
    """Return the frames of the data, at least one.

    Walks the blocks without unpacking them. The library's reader accepts a truncated frame and
    ignores bytes after a frame, so this function compares the ends. Too many frames for what they
    hold are refused as too many blocks are, and frames that declare more than the limit.
    """
    frames: list[_ZstdFrame] = []
    start = typical_size = block_count = 0
    while start < len(data) or not frames:
        rest = data[start:]
        if bytes(rest[: len(ZSTD_MAGIC)]) != ZSTD_MAGIC:
            raise CodecError("zstd", "bytes follow it" if frames else "it has no frame magic")
        parameters = zstandard.get_frame_parameters(rest)
        pos = start + zstandard.frame_header_size(rest)
        content_size_max = 0
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
            # So that a small limit bounds the walk as well. Blocks that hold less are refused.
            if block_count > BLOCK_COUNT_FREE + size_max // BLOCK_MEAN_MIN_BYTES:
                raise DecompressedTooLargeError("zstd", size_max)
        pos += 4 if parameters.has_checksum else 0
        if pos > len(data):
            raise CodecError("zstd", "it ends too early")
        content_size = zstandard.frame_content_size(rest)
        frames.append(_ZstdFrame(data[start:pos], content_size, content_size_max))
        size = pos + typical_size
        if len(frames) > FRAME_COUNT_FREE + size // FRAME_MEAN_MIN_BYTES:
            raise CodecError("zstd", f"it has {len(frames)} frames for {size} bytes: too many")
        start = pos
    if sum(max(0, frame.content_size) for frame in frames) > size_max:
        raise DecompressedTooLargeError("zstd", size_max)
    return frames


_DECOMPRESSORS: Final[dict[int, Callable[[memoryview, int], bytes]]] = {
    GZIP: _decompress_gzip,
    SNAPPY: _decompress_snappy,
    LZ4: _decompress_lz4,
    ZSTD: _decompress_zstd,
}
