"""Compressed batches are unpacked as the clients packed them, and nothing else comes out alive.

What real clients write is taken from them: aiokafka and kafka-python through their batch builders,
Java as bytes recorded from kafka-clients 3.9.1. Those of librdkafka come from its clients in
tests/system/clients/suites.
"""

import functools
import gzip
import random
import re
import struct
import tracemalloc
import types
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import cramjam
import lz4.frame
import pytest
import zstandard
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from typing_extensions import Buffer

from appliance.errors import RequestError
from compat.kafka.protocol import codecs
from compat.kafka.protocol.codecs import (
    GZIP,
    LZ4,
    SNAPPY,
    ZSTD,
    CodecError,
    DecompressedTooLargeError,
    Unpacker,
    decompress,
)

KIB = 1 << 10
MIB = 1 << 20
CODECS = {"gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
BATCH_HEADER_SIZE = 61


@functools.cache
def text_of(size: int) -> bytes:
    """Bytes that compress, but not to nothing."""
    rng = random.Random(size)
    words = [rng.randbytes(6).hex().encode() for _ in range(200)]
    return b" ".join(rng.choice(words) for _ in range(size // 12 + 1))[:size]


def xerial(payload: bytes, block_size: int = 32 * KIB) -> bytes:
    parts = [b"\x82SNAPPY\x00", struct.pack(">ii", 1, 1)]
    for start in range(0, len(payload), block_size):
        block = bytes(cramjam.snappy.compress_raw(payload[start : start + block_size]))
        parts += [struct.pack(">i", len(block)), block]
    return b"".join(parts)


def lz4_frame(payload: bytes, **options: object) -> bytes:
    return lz4.frame.compress(payload, **options)


def zstd_frame(payload: bytes, **options: bool) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(payload)


FORMS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "gzip": (GZIP, gzip.compress),
    "gzip stored": (GZIP, lambda payload: gzip.compress(payload, compresslevel=0)),
    "snappy raw": (SNAPPY, lambda payload: bytes(cramjam.snappy.compress_raw(payload))),
    "snappy xerial": (SNAPPY, xerial),
    "snappy xerial, small blocks": (SNAPPY, lambda payload: xerial(payload, 700)),
    "lz4 without size": (LZ4, lambda payload: lz4_frame(payload, store_size=False)),
    "lz4 with size": (LZ4, lz4_frame),
    "lz4 linked, checksums, 4 MiB blocks": (
        LZ4,
        lambda payload: lz4_frame(
            payload,
            block_linked=True,
            content_checksum=True,
            block_checksum=True,
            block_size=lz4.frame.BLOCKSIZE_MAX4MB,
        ),
    ),
    "lz4 linked, small blocks, no size": (
        LZ4,
        lambda payload: lz4_frame(
            payload, block_linked=True, block_size=lz4.frame.BLOCKSIZE_MAX64KB, store_size=False
        ),
    ),
    "zstd with size": (ZSTD, zstd_frame),
    "zstd with checksum": (ZSTD, lambda payload: zstd_frame(payload, write_checksum=True)),
    "zstd without size": (ZSTD, lambda payload: zstd_frame(payload, write_content_size=False)),
    "zstd without size, with checksum": (
        ZSTD,
        lambda payload: zstd_frame(payload, write_content_size=False, write_checksum=True),
    ),
}
every_form = pytest.mark.parametrize("form", FORMS)


@every_form
def test_every_form_is_unpacked_at_every_size(form: str) -> None:
    """What was packed comes back, from any kind of buffer, also at exactly the limit."""
    codec, pack = FORMS[form]
    for size in (1, 100, 16 * KIB, 128 * KIB, MIB - 1, MIB, MIB + 1, 2 * MIB, 3 * MIB):
        payload = text_of(size)
        packed = pack(payload)
        assert decompress(codec, packed, 64 * MIB) == payload
        window = memoryview(bytearray(b"before" + packed + b"behind"))[6:-6]
        assert decompress(codec, window, len(payload)) == payload


@every_form
def test_one_byte_more_than_the_limit_is_refused(form: str) -> None:
    """The limit is exact, and the refusal names it."""
    codec, pack = FORMS[form]
    for size in (2, 16 * KIB, 3 * MIB):
        with pytest.raises(DecompressedTooLargeError, match=f"to more than {size - 1} bytes") as it:
            decompress(codec, pack(text_of(size)), size - 1)
        assert "limits.decompressed_size_max_bytes" in str(it.value)


# What clients write

JAVA = {
    GZIP: (
        "1f8b08000000000000ff7dd0b90d80301045c19c2ab604fe72b74017c66091204b2b44fd24a4bc78b28923d7"
        "d8ad6dad164bb6a53b9f56a25eb6a62735f1b1989db963ee9907e69179629e991764f19a784dbc265e13af89"
        "d7c46be235f19a78cd79cd79cd79cd7fd65ec0edf686e8020000"
    ),
    SNAPPY: (
        "82534e4150505900000000010000000100000097e805787265636f7264203030206f66206120626174636820"
        "66726f6d204a6176610a111f0031761f000032761f000033761f000034761f000035761f000036761f000037"
        "761f000038761f000039721f0000317636010031763601003176360100317636010031763601003176360100"
        "3176360100317636010031763601003176360100327636010032763601003276360100325a3601"
    ),
    LZ4: (
        "04224d186040829b000000f4107265636f7264203030206f6620612062617463682066726f6d204a6176610a"
        "1f001f311f000b1f321f000b1f331f000b1f341f000b1f351f000b1f361f000b1f371f000b1f381f000b1f39"
        "1f000a1f3136010b1f3136010b1f3136010b1f3136010b1f3136010b1f3136010b1f3136010b1f3136010b1f"
        "3136010b1f3136010b1f3236010b1f3236010b1f3236010b1e323601504a6176610a00000000"
    ),
    ZSTD: (
        "28b52ffd005864030084037265636f7264203030206f6620612062617463682066726f6d204a6176610a3132"
        "333435363738393130313233343536373839323031323318004011201e1019101bb805880744064401e20191"
        "015180784064406ce016201e10191005880744064401e201c116afca03010000"
    ),
}


@pytest.mark.parametrize("codec", JAVA)
def test_java_client(codec: int) -> None:
    """Bytes that kafka-clients 3.9.1 wrote; its Zstandard frame ends with an empty block."""
    payload = b"".join(b"record %02d of a batch from Java\n" % i for i in range(24))
    assert decompress(codec, bytes.fromhex(JAVA[codec]), len(payload)) == payload


class BatchBuilder(Protocol):
    """What aiokafka's and kafka-python's builders have in common."""

    def append(
        self, offset: int, timestamp: int, key: bytes, value: bytes, headers: list[object]
    ) -> object: ...
    def build(self) -> bytearray: ...


def records_of(builder: BatchBuilder) -> bytes:
    """The records block of a batch of 500 records in `builder`."""
    for i in range(500):
        value = b'{"number": %d, "text": "%s"}' % (i, text_of(100))
        builder.append(i, 1_767_225_600_000 + i, b"key %d" % i, value, [("name", b"x" * i)])
    return bytes(builder.build())[BATCH_HEADER_SIZE:]


def aiokafka_builder(codec: int) -> BatchBuilder:
    return AiokafkaBuilder(2, codec, False, -1, -1, -1, MIB)


def kafka_python_builder(codec: int) -> BatchBuilder:
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

    return KafkaPythonBuilder(2, codec, False, -1, -1, -1, MIB)


@pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated")  # in kafka-python
@pytest.mark.parametrize("build", [aiokafka_builder, kafka_python_builder])
@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_python_clients(
    build: Callable[[int], BatchBuilder], codec: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batches of aiokafka and kafka-python unpack to the records of their plain batches."""
    # kafka-python frames snappy itself and takes the blocks from any library that has `compress`.
    library = types.SimpleNamespace(compress=lambda b: bytes(cramjam.snappy.compress_raw(b)))
    monkeypatch.setattr("kafka.codec.snappy", library)
    packed, plain = records_of(build(codec)), records_of(build(0))
    assert len(packed) < len(plain)
    assert decompress(codec, packed, MIB) == plain
    assert (codec == SNAPPY) == packed.startswith(b"\x82SNAPPY\x00")


# Bombs


def gzip_bomb(size_mib: int) -> bytes:
    """Zeros; after a full flush each MiB compresses to the same bytes."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    piece = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    trailer = struct.pack("<II", 0, size_mib * MIB)  # a wrong sum: nobody gets to the end
    return b"\x1f\x8b\x08" + bytes(7) + piece * size_mib + packer.flush() + trailer


def lz4_bomb(size_mib: int, **options: object) -> bytes:
    """Zeros in blocks of 4 MiB, which do not depend on one another."""
    options |= {"block_size": lz4.frame.BLOCKSIZE_MAX4MB, "block_linked": False}
    frame = lz4_frame(bytes(4 * MIB), store_size=False, **options)
    return frame[:7] + frame[7:-4] * (size_mib // 4) + frame[-4:]


def zstd_bomb(size_mib: int) -> bytes:
    """Zeros in RLE blocks of 128 KiB, without a content size."""
    block = struct.pack("<I", 1 << 1 | 128 * KIB << 3)[:3] + b"\x00"
    end = b"\x01\x00\x00"
    return b"\x28\xb5\x2f\xfd\x00\x58" + block * (8 * size_mib) + end


def snappy_bomb(size_mib: int) -> bytes:
    return bytes(cramjam.snappy.compress_raw(bytes(size_mib * MIB)))


def test_the_bombs_are_valid() -> None:
    """Each unpacks to zeros under a limit that allows it, so that only the limit refuses it."""
    zeros = bytes(8 * MIB)
    gzip_sum = struct.pack("<II", zlib.crc32(zeros), len(zeros))
    assert decompress(GZIP, gzip_bomb(8)[:-8] + gzip_sum, 8 * MIB) == zeros
    assert decompress(LZ4, lz4_bomb(8), 8 * MIB) == zeros
    assert decompress(ZSTD, zstd_bomb(8), 8 * MIB) == zeros
    assert decompress(SNAPPY, snappy_bomb(8), 8 * MIB) == zeros


def status_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * KIB
    raise LookupError(name)


def peaks_of(call: Callable[[], object]) -> tuple[int, int]:
    """Run `call`; return by how much memory grew at its peak: the process's, and Python's."""
    tracemalloc.start()
    Path("/proc/self/clear_refs").write_text("5")  # sets the peak back to what is resident now
    before = status_bytes("VmRSS")
    try:
        call()
        return status_bytes("VmHWM") - before, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


GIB_BOMBS: dict[str, tuple[int, Callable[[], bytes]]] = {
    "gzip": (GZIP, lambda: gzip_bomb(1024)),
    "lz4": (LZ4, lambda: lz4_bomb(1024)),
    "zstd": (ZSTD, lambda: zstd_bomb(1024)),
    # These declare 1 GiB.
    "lz4 with size": (LZ4, lambda: with_lz4_size(lz4_bomb(1024), 1 << 30)),
    "zstd with size": (
        ZSTD,
        lambda: b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", 1 << 30) + zstd_bomb(1024)[6:],
    ),
    "snappy": (SNAPPY, lambda: b"\x80\x80\x80\x80\x04" + snappy_bomb(10)[4:] * 100),
    "snappy xerial": (
        SNAPPY,
        lambda: xerial(b"x" * 32 * KIB)[:16] + xerial(b"x" * 32 * KIB)[16:] * (32 * 1024),
    ),
}


def with_lz4_size(frame: bytes, size: int) -> bytes:
    """An LZ4 frame with its header replaced by one that declares a content size."""
    model = lz4_frame(
        b"x" * 100, block_size=lz4.frame.BLOCKSIZE_MAX4MB, block_linked=False, store_size=True
    )
    declared = model[4:6] + struct.pack("<Q", size)
    for check in range(256):  # a byte of xxHash; found by trying rather than by one more library
        header = model[:4] + declared + bytes([check])
        try:
            lz4.frame.get_frame_info(header + frame[7:])
        except RuntimeError:
            continue
        return header + frame[7:]
    raise AssertionError("no check byte fits")


@pytest.mark.parametrize("bomb", GIB_BOMBS)
def test_a_gibibyte_from_little_is_refused_with_little_memory(bomb: str) -> None:
    """Refused at the limit: memory grows by about the limit, not by what the bomb would fill."""
    codec, make = GIB_BOMBS[bomb]
    packed = make()

    def run() -> None:
        with pytest.raises(DecompressedTooLargeError):
            decompress(codec, packed, MIB)

    resident, traced = peaks_of(run)
    assert traced < 2 * MIB + 256 * KIB  # the limit, a step
    # The libraries' own buffers come on top, for LZ4 as much as two blocks of 4 MiB.
    assert resident < 14 * MIB


@every_form
def test_memory_follows_the_batch_and_not_the_limit(form: str) -> None:
    """A generous limit costs a usual batch nothing."""
    codec, pack = FORMS[form]
    packed = pack(text_of(100 * KIB))
    resident, traced = peaks_of(lambda: decompress(codec, packed, 1 << 30))
    assert traced < 3 * MIB
    assert resident < 14 * MIB


def zstd_with_window(exponent: int, payload: bytes) -> bytes:
    """A frame without a content size that asks for a window of 2**exponent bytes."""
    block = struct.pack("<I", 1 | len(payload) << 3)[:3] + payload
    return b"\x28\xb5\x2f\xfd\x00" + bytes([exponent - 10 << 3]) + block


def test_a_zstd_window_costs_no_memory_until_it_is_used() -> None:
    """Level 22 asks for 128 MiB whatever the batch: accepted, and not filled. More is refused."""
    results = []
    resident, _ = peaks_of(
        lambda: results.append(decompress(ZSTD, zstd_with_window(27, b"hello"), MIB))
    )
    assert results == [b"hello"]
    assert resident < 8 * MIB
    with pytest.raises(CodecError):
        decompress(ZSTD, zstd_with_window(28, b"hello"), MIB)


# Damage


def unpack_or_refuse(codec: int, data: Buffer, size_max: int) -> bytes | RequestError:
    try:
        return decompress(codec, data, size_max)
    except RequestError as refusal:
        return refusal


def is_bounded(found: bytes | RequestError, size_max: int) -> bool:
    """Whether there are bytes, which are checked to be no more than allowed; else the refusal."""
    if isinstance(found, RequestError):
        assert isinstance(found, CodecError | DecompressedTooLargeError)
        return False
    assert len(found) <= size_max
    return True


@every_form
def test_cut_short_at_any_byte_is_refused(form: str) -> None:
    """No prefix of a batch passes for the batch."""
    codec, pack = FORMS[form]
    payload = text_of(2_000)
    packed = pack(payload)
    for size in range(len(packed)):
        found = unpack_or_refuse(codec, packed[:size], MIB)
        if isinstance(found, RequestError):
            assert isinstance(found, CodecError)
        else:
            # Blocks of the xerial form have no end mark: the batch's record count ends them.
            assert form == "snappy xerial, small blocks"
            assert found in (payload[:700], payload[:1400])


@every_form
def test_anything_after_the_data_is_refused(form: str) -> None:
    """Not one byte may follow, nor a second whole frame, unless it is of Zstandard."""
    codec, pack = FORMS[form]
    packed = pack(b"records " * 100)
    behinds = [b"\x00", b"x", b"garbage", b"\x50\x2a\x4d\x18\x00\x00\x00\x00"]
    behinds += [packed] if codec != ZSTD else [packed[:-1], packed + b"\x00"]
    for behind in behinds:
        with pytest.raises(CodecError):
            decompress(codec, packed + behind, MIB)


ZSTD_FORMS = [form for form, (codec, _) in FORMS.items() if codec == ZSTD]


@pytest.mark.parametrize("first", ZSTD_FORMS)
@pytest.mark.parametrize("second", ZSTD_FORMS)
def test_zstandard_may_have_several_frames(first: str, second: str) -> None:
    """Writers with threads make them, and every reader reads them."""
    parts = [text_of(3 * MIB), b"", text_of(700)]
    packs = [FORMS[form][1] for form in (first, second, first)]
    packed = b"".join(pack(part) for pack, part in zip(packs, parts, strict=True))
    payload = b"".join(parts)
    assert decompress(ZSTD, packed, len(payload)) == payload
    with pytest.raises(DecompressedTooLargeError):
        decompress(ZSTD, packed, len(payload) - 1)


def test_many_frames_of_nothing_are_refused() -> None:
    """Each costs a call, and they would count as no work."""
    empty = zstd_frame(b"")
    assert decompress(ZSTD, empty * 8, MIB) == b""
    with pytest.raises(CodecError, match="which is too many"):
        decompress(ZSTD, empty * 100_000, MIB)


def rle_frame(size: int) -> bytes:
    """A frame of 11 bytes that declares its size and repeats one byte, 256 to 65,791 times."""
    header = b"\x28\xb5\x2f\xfd\x60" + struct.pack("<H", size - 256)
    return header + struct.pack("<I", 1 | 1 << 1 | size << 3)[:3] + b"a"


@pytest.mark.parametrize("size", [256, 8 * KIB])
def test_many_small_frames_are_refused_after_a_few(size: int) -> None:
    """Each costs as much as 16 KiB of output: 80,000 fit into a batch, and took over a second."""
    packed = rle_frame(size) * 80_000
    with pytest.raises(CodecError, match=r"it has (\d+) frames for \d+ bytes: too many") as found:
        decompress(ZSTD, packed, 1 << 30)
    match = re.search(r"it has (\d+) frames", str(found.value))
    assert match is not None
    assert int(match[1]) <= 40
    assert found.value.unpacked_size == 0


def test_a_small_limit_bounds_the_walk_over_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop unpacks up to a limit, and passes larger batches to a thread."""
    count = 200_000
    header = b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", 256 * count)
    block = struct.pack("<I", 1 << 1 | 256 << 3)[:3] + b"a"
    packed = header + block * (count - 1) + struct.pack("<I", 1 | 1 << 1 | 256 << 3)[:3] + b"a"
    seen: list[int] = []
    monkeypatch.setattr(codecs, "_check_block_count", lambda _, number, __: seen.append(number))
    with pytest.raises(DecompressedTooLargeError):
        decompress(ZSTD, packed, MIB)
    assert len(seen) <= 5_000
    assert decompress(ZSTD, packed, 64 * MIB) == b"a" * 256 * count


def test_frames_as_writers_with_threads_make_them_are_unpacked() -> None:
    """Of 64 KiB each, as many as fit."""
    assert decompress(ZSTD, rle_frame(64 * KIB) * 512, 32 * MIB) == b"a" * 32 * MIB
    part = text_of(64 * KIB)
    assert (
        decompress(ZSTD, zstd_frame(part) * 100 + zstd_frame(b"end"), 8 * MIB)
        == part * 100 + b"end"
    )


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 6, 2**31 - 1])
def test_a_xerial_block_of_impossible_size_is_refused(size: int) -> None:
    """A block's size is compared with what is left before anything is made of it."""
    packed = xerial(b"records")[:16] + struct.pack(">i", size) + b"\x01\x00aaa"
    with pytest.raises(CodecError, match=f"a block declares {size} bytes, and 5 are left"):
        decompress(SNAPPY, packed, MIB)


@every_form
def test_a_flipped_bit_gives_a_declared_error_or_bounded_bytes(form: str) -> None:
    """Every bit: a declared error or at most the limit, nothing else (the batch has its CRC)."""
    codec, pack = FORMS[form]
    payload = text_of(700)
    packed = pack(payload)
    harmless = 0
    for bit in range(len(packed) * 8):
        damaged = bytearray(packed)
        damaged[bit // 8] ^= 1 << bit % 8
        harmless += is_bounded(unpack_or_refuse(codec, damaged, 8 * KIB), 8 * KIB)
    assert harmless < len(packed) * 8


def test_random_bytes_give_a_declared_error_or_bounded_bytes() -> None:
    """Bytes without structure, bare and after each form's first bytes."""
    seed = 20260102
    print(f"seed {seed}")  # noqa: T201 - shown only if the test fails
    rng = random.Random(seed)
    starts = [(codec, pack(text_of(300))) for codec, pack in FORMS.values()]
    for _ in range(20_000):
        codec, packed = rng.choice(starts)
        data = packed[: rng.randrange(24)] + rng.randbytes(rng.randrange(200))
        is_bounded(unpack_or_refuse(codec, data, 8 * KIB), 8 * KIB)


def test_empty_data_parts_to_skip_and_unknown_codecs_are_refused() -> None:
    """No batch is empty or a frame that LZ4 and Zstandard skip; Kafka has no codecs 5, 6 and 7."""
    for codec in CODECS.values():
        for data in (b"", b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"):
            with pytest.raises(CodecError):
                decompress(codec, data, MIB)
    for codec in (5, 6, 7):
        with pytest.raises(CodecError, match=f"codec {codec}"):
            decompress(codec, b"anything", MIB)


# Memory that is used again


def test_an_unpacker_gives_what_decompress_gives_batch_after_batch() -> None:
    """Of any form, in any order of sizes, also at exactly the limit, and after damage."""
    seed = 20260104
    print(f"seed {seed}")  # noqa: T201 - shown only if the test fails
    rng = random.Random(seed)
    sizes = (1, 100, 16 * KIB, MIB - 1, MIB, MIB + 1, 3 * MIB)
    cases = [(form, size) for form in FORMS for size in sizes]
    rng.shuffle(cases)
    unpacker = Unpacker(3 * MIB)
    for form, size in cases:
        codec, pack = FORMS[form]
        payload = text_of(size)
        packed = pack(payload)
        with pytest.raises(CodecError):
            unpacker.unpack(codec, packed[: len(packed) // 2])
        assert bytes(unpacker.unpack(codec, packed)) == payload
        if size > 1:
            with pytest.raises(DecompressedTooLargeError):
                Unpacker(size - 1).unpack(codec, packed)


@pytest.mark.parametrize("form", ZSTD_FORMS)
def test_an_unpacker_grows_with_the_batch_and_gives_its_memory_back(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch with far more than is kept, of several frames, between small ones."""
    monkeypatch.setattr(codecs, "KEPT_MAX_BYTES", 64 * KIB)
    pack = FORMS[form][1]
    parts = [text_of(size) for size in (MIB, 1, 700, 3 * MIB)]
    unpacker = Unpacker(1 << 30)
    for _ in range(2):
        assert bytes(unpacker.unpack(ZSTD, b"".join(map(pack, parts)))) == b"".join(parts)
        assert bytes(unpacker.unpack(ZSTD, pack(b"small"))) == b"small"
    resident, traced = peaks_of(lambda: unpacker.unpack(ZSTD, pack(b"small")))
    assert traced < 2 * MIB
    assert resident < 14 * MIB


@pytest.mark.parametrize("payload", [text_of(700), random.Random(1).randbytes(300)])
def test_an_unpacker_sees_a_wrong_checksum_and_a_flipped_bit(payload: bytes) -> None:
    """As `decompress`: the same bytes, or a refusal. The second payload is stored as it is."""
    packed = zstd_frame(payload, write_content_size=False, write_checksum=True)
    unpacker = Unpacker(8 * KIB)
    for bit in range(len(packed) * 8):
        damaged = bytearray(packed)
        damaged[bit // 8] ^= 1 << bit % 8
        expected = unpack_or_refuse(ZSTD, damaged, 8 * KIB)
        for each in (unpacker, Unpacker(8 * KIB)):  # with memory of others, and without
            if isinstance(expected, RequestError):
                with pytest.raises(type(expected)):
                    each.unpack(ZSTD, damaged)
            else:
                assert each.unpack(ZSTD, damaged) == expected
    assert unpacker.unpack(ZSTD, packed) == payload


@pytest.mark.parametrize("bomb", ["zstd", "zstd with size"])
def test_an_unpacker_refuses_a_gibibyte_with_little_memory(bomb: str) -> None:
    codec, make = GIB_BOMBS[bomb]
    packed = make()

    def run() -> None:
        with pytest.raises(DecompressedTooLargeError):
            Unpacker(MIB).unpack(codec, packed)

    resident, traced = peaks_of(run)
    assert traced < 2 * codecs.KEPT_MAX_BYTES
    assert resident < 2 * codecs.KEPT_MAX_BYTES
