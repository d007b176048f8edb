"""Reads the tables of docs/FORMAT.md, and explains bytes by them.

It knows only what the page says: bytes that the page does not explain are an error.
"""

import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

PATH: Final = Path(__file__).parents[3] / "docs" / "FORMAT.md"

INTEGERS: Final = {
    "u8": "B",
    "u16": "H",
    "u32": "I",
    "u64": "Q",
    "i16": "h",
    "i32": "i",
    "i64": "q",
}
_LINE_BYTES: Final = 16
_TEXT_NULL: Final = 0xFFFF


@dataclass(frozen=True, slots=True)
class Field:
    """A row of a table of fields; `offset` is None in tables without that column."""

    offset: int | None
    type: str
    name: str
    meaning: str

    @property
    def struct_code(self) -> str | None:
        """Its code in the struct module; None if its size is not fixed."""
        if self.type.startswith("zero "):
            return "x" * int(self.type.split()[1])
        return "16s" if self.type == "uuid" else INTEGERS.get(self.type)

    @property
    def size(self) -> int:
        assert self.struct_code is not None, f"{self.name} has no fixed size"
        return struct.calcsize(f">{self.struct_code}")


def field_tables(text: str) -> dict[str, list[Field]]:
    """Return the tables marked `<!-- fields: NAME -->`, by name."""
    tables = {}
    for name, rows in _marked_tables(text, "fields"):
        fields = []
        for row in rows:
            cells = row if len(row) == 4 else ("", *row)
            fields.append(Field(int(cells[0]) if cells[0] else None, *cells[1:]))
        tables[name] = fields
    return tables


def number_tables(text: str) -> dict[str, dict[str, int]]:
    """Return the tables marked `<!-- numbers: PREFIX -->`: number by name."""
    return {
        prefix: {row[1]: int(row[0]) for row in rows}
        for prefix, rows in _marked_tables(text, "numbers")
    }


def _marked_tables(text: str, mark: str) -> list[tuple[str, list[tuple[str, ...]]]]:
    tables = []
    for match in re.finditer(rf"^<!-- {mark}: (.+) -->\n((?:\|.*\n)+)", text, flags=re.MULTILINE):
        lines = match[2].splitlines()[2:]
        rows = [tuple(cell.strip() for cell in line[1:-1].split("|")) for line in lines]
        tables.append((match[1], rows))
    return tables


def struct_format(fields: list[Field]) -> str:
    """The leading fixed fields of a table, as a format of the struct module."""
    codes = []
    for field in fields:
        if field.struct_code is None:
            break
        codes.append(field.struct_code)
    return ">" + "".join(codes)


class Explainer:
    """Goes through a frame and writes a line for each field."""

    def __init__(self, text: str, data: bytes) -> None:
        self._tables = field_tables(text)
        self._numbers = {
            prefix: {number: name for name, number in names.items()}
            for prefix, names in number_tables(text).items()
        }
        self._data = data
        self._at = 0
        self.lines: list[str] = []

    # Lines

    def _take(self, size: int) -> bytes:
        assert self._at + size <= len(self._data), "the frame ends within a field"
        self._at += size
        return self._data[self._at - size : self._at]

    def _explain(self, size: int, meaning: str) -> bytes:
        """Write the next `size` bytes, with their meaning beside the first line."""
        start, data = self._at, self._take(size)
        for at in range(0, size, _LINE_BYTES):
            part = data[at : at + _LINE_BYTES].hex(" ")
            self.lines.append(f"{start + at:04x}  {part:<47}  {meaning}".rstrip())
            meaning = ""
        return data

    def _heading(self, text: str) -> None:
        self.lines += ["", f"{text}:"]

    # Frames

    def frame(self) -> list[str]:
        """Explain a whole frame; return the lines."""
        self._heading("header")
        header = self._table("header")
        kind = self._numbers["KIND"][header["kind"]]
        end = self._at + header["tables size"]
        if header["tables size"]:
            self._tables_of(kind, header)
            self._rest(end, "padding")
        for part in ("visible", "held"):
            if header[f"{part} size"]:
                self._batch(part, header[f"{part} size"])
        if kind != "blank":
            self._rest(header["size"], "padding")
        assert self._at == len(self._data), "bytes follow the frame"
        return self.lines[1:]

    def _rest(self, end: int, meaning: str) -> None:
        if self._at < end:
            assert end - self._at < 8, f"{end - self._at} bytes are not explained"
            assert not any(self._explain(end - self._at, meaning)), f"{meaning} is not zero"

    def _tables_of(self, kind: str, header: dict[str, int]) -> None:
        if kind == "carry" and header["flags"] & 2:
            self._carry()
        elif kind in ("accept", "carry"):
            timers = [self._entry("timer entry") for _ in range(header["timer count"])]
            cancels = [self._entry("cancel entry") for _ in range(header["cancel count"])]
            self._names(sorted(timers + cancels, key=lambda entry: entry["id pos"]))
        elif kind in ("deliver", "cancel"):
            completed = [self._entry("completed entry") for _ in range(header["timer count"])]
            timers = [self._entry("timer entry") for _ in range(header["cancel count"])]
            for entry in completed:
                if entry["id size"]:
                    self._explain(entry["id size"], "user's id")
            self._names(timers)
        else:
            self._entry(kind.replace("carried records", "carried origin"))

    def _names(self, entries: list[dict[str, int]]) -> None:
        """Explain the ids and the rules of timers and cancels, in their order."""
        for entry in entries:
            if entry["id size"]:
                assert entry["id pos"] == self._at
                self._explain(entry["id size"], "user's id")
            if entry.get("rule size"):
                assert entry["rule pos"] == self._at
                rule = self._entry("rule")
                self._explain(rule["expression size"], "cron expression")
                self._explain(rule["zone size"], "time zone")
                assert self._at == entry["rule pos"] + entry["rule size"]

    def _entry(self, name: str) -> dict[str, int]:
        self._heading(name)
        return self._table(name)

    def _carry(self) -> None:
        self._heading("carry")
        kinds = dict(self._numbers["KIND"]) | {65: "sequences", 66: "levels", 67: "ids"}
        count = self._field(self._tables["carry"][0], {})
        for _ in range(int(count or 0)):
            self._heading("carry value")
            head: dict[str, int] = {}
            for field in self._tables["carry value"][:-1]:
                self._field(field, head)
            end = self._at + head["size"]
            self._entry(kinds[head["kind"]])
            assert self._at == end, "a carried value has another size than its payload"

    # Fields

    def _table(self, name: str) -> dict[str, int]:
        values: dict[str, int] = {}
        for field in self._tables[name]:
            self._field(field, values)
        return values

    def _field(self, field: Field, values: dict[str, int]) -> int | None:
        if field.type in INTEGERS:
            return self._integer(field, values)
        if field.type.startswith("zero "):
            assert not any(self._explain(field.size, "zero")), f"zero is not zero at {self._at}"
        elif field.type == "uuid":
            value = UUID(bytes=self._data[self._at : self._at + 16])
            self._explain(16, f"{field.name} {value}")
        elif " times " in field.type:
            self._list(field, values)
        else:
            self._sized(field)
        return None

    def _integer(self, field: Field, values: dict[str, int]) -> int:
        layout = struct.Struct(f">{field.struct_code}")
        (value,) = layout.unpack_from(self._data, self._at)
        shown = str(value)
        if field.name == "crc":
            shown = f"{value:#010x}"
        if field.name == "magic" and field.type == "u16":
            shown = f'{value:#x} "LM"'
        if value == -(2**63):
            shown = "-2**63"
        if field.name == "kind" and field.offset == 3:
            shown += f" {self._numbers['KIND'][value]}"
        self._explain(layout.size, f"{field.name} {shown}")
        values[field.name] = value
        return int(value)

    def _list(self, field: Field, values: dict[str, int]) -> None:
        count_name, _, thing = field.type.partition(" times ")
        count = values[count_name]
        if thing == "byte":
            self._explain(count, field.name)
            return
        for index in range(count):
            self._heading(f"{thing} {index}")
            self._table(thing)

    def _sized(self, field: Field) -> None:
        prefix = struct.Struct(">I" if field.type == "octets" else ">H")
        (size,) = prefix.unpack_from(self._data, self._at)
        if field.type == "text?" and size == _TEXT_NULL:
            self._explain(prefix.size, f"{field.name}: none")
            return
        assert field.type in ("text", "text?", "id", "octets"), f"no such type: {field.type}"
        content = self._data[self._at + prefix.size : self._at + prefix.size + size]
        shown = content.decode() if field.type.startswith("text") else f"{size} bytes"
        self._explain(prefix.size + size, f"{field.name} {shown}".rstrip())

    # Batches

    def _batch(self, part: str, size: int) -> None:
        end = self._at + size
        self._heading(f"{part} batch")
        values = self._table("batch")
        assert values["length"] == size - 12
        if values["attributes"] & 7:
            self._explain(end - self._at, "compressed records")
            return
        for index in range(values["count"]):
            self._heading(f"record {index} of the {part} batch")
            self._record()
        assert self._at == end, "a batch has bytes after its records"

    def _varint(self, name: str) -> int:
        at, raw, shift = self._at, 0, 0
        while True:
            byte = self._data[at]
            raw |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if byte < 0x80:
                break
        value = raw >> 1 if not raw & 1 else -(raw >> 1) - 1
        self._explain(at - self._at, f"{name} {value}")
        return value

    def _bytes_of(self, size: int) -> None:
        if size > 0:
            content = self._data[self._at : self._at + size]
            self._explain(size, content.decode("ascii", "backslashreplace"))

    def _record(self) -> None:
        end = self._varint("length")
        end += self._at
        self._explain(1, "attributes 0")
        self._varint("timestamp delta")
        self._varint("offset delta")
        self._bytes_of(self._varint("key size"))
        self._bytes_of(self._varint("value size"))
        for _ in range(self._varint("header count")):
            self._bytes_of(self._varint("header key size"))
            self._bytes_of(self._varint("header value size"))
        assert self._at == end, "a record has another size than it says"


def explain(data: bytes, text: str | None = None) -> list[str]:
    """Explain a frame by the tables of docs/FORMAT.md.

    Args:
        data: the frame; of a blank one the header.
        text: the page, if not the one on the disk.

    Returns:
        Lines "place, bytes in hexadecimal, meaning", with headings between.
    """
    return Explainer(PATH.read_text() if text is None else text, data).frame()


def bytes_of(lines: list[str]) -> bytes:
    """The bytes in explained lines."""
    out = bytearray()
    for line in lines:
        match = re.match(r"([0-9a-f]{4})  ((?:[0-9a-f]{2} ?)+)", line)
        if match is not None:
            assert int(match[1], 16) == len(out), f"a line is missing before {line!r}"
            out += bytes.fromhex(match[2])
    return bytes(out)
