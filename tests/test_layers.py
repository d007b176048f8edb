"""Imports point down or within a layer, never up, never in a circle (docs/ARCHITECTURE.md)."""

import ast
import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pytest

from tests.support.docs.source_files import PACKAGES, SourceFile, package_files

LAYERS: Final[dict[str, int]] = {
    # 6: the composition root, the only place that knows every part
    "appliance.codec_preparation": 6,
    "appliance.kafka_facade": 6,
    "appliance.main": 6,
    "appliance.cli": 6,
    "appliance.pair": 6,
    "appliance.pair.*": 6,
    "appliance.commands": 6,
    "appliance.commands.*": 6,
    # 5: asyncio lives here and only here
    "appliance.coordination.coordinator": 5,
    "appliance.coordination.etcd": 5,
    "appliance.pump": 5,
    "appliance.slave_pump": 5,
    "appliance.release": 5,
    "appliance.thread_jobs": 5,
    "appliance.cold_readers": 5,
    "appliance.loop_turns": 5,
    "appliance.piece_queue": 5,
    "appliance.timer_loading": 5,
    "appliance.work_thread": 5,
    "appliance.file_maker": 5,
    "appliance.flush_thread": 5,
    "appliance.run_merging": 5,
    "appliance.admin": 5,
    "appliance.admin.*": 5,
    "appliance.replication.link": 5,
    "appliance.replication.master": 5,
    "appliance.replication.question": 5,
    "appliance.replication.repair": 5,
    "appliance.replication.slave": 5,
    "appliance.replication.transport": 5,
    "appliance.system.listening": 5,
    "appliance.system.sd_notify": 5,
    "compat.kafka.network.limits": 3,
    "compat.kafka.network.memory_budget": 3,
    "compat.kafka.network.memory_lines": 3,
    "compat.kafka.network.log_debts": 3,
    "compat.kafka.network.read_pace": 3,
    "compat.kafka.network.unsent_bounds": 3,
    "compat.kafka.network.*": 5,
    # 4: synchronous, take the broker and a clock
    "appliance.broker": 4,
    "appliance.broker_metrics": 4,
    "appliance.client_paths": 4,
    "appliance.dead_replay": 4,
    "appliance.retry_topics": 4,
    "appliance.facade": 4,
    "appliance.slave_broker": 4,
    "appliance.find": 4,
    "appliance.offline": 4,
    "appliance.offline.*": 4,
    "compat.kafka.apis.*": 4,
    "compat.kafka.dispatch": 4,
    "compat.tables": 4,
    "compat.tables.*": 4,
    # 5 as well: what a Spark process or a notebook loads
    "compat.pipeline": 5,
    "compat.pipeline.*": 5,
    "compat.spark": 5,
    "compat.spark.*": 5,
    # 3: sans-IO
    "appliance.coordination": 3,
    "appliance.coordination.*": 3,
    "appliance.cron_rules": 3,
    "appliance.early_expiry": 3,
    "appliance.offset_search": 3,
    "appliance.pending_timers": 4,
    "appliance.timer_stages": 4,
    "appliance.saved_timers": 4,
    "appliance.topic_metrics": 4,
    "appliance.producers": 3,
    "appliance.replication": 3,
    "appliance.replication.*": 3,
    "appliance.retention": 3,
    "appliance.routes": 3,
    "appliance.schedule": 3,
    "appliance.schedule.*": 3,
    "appliance.timer_moves": 4,
    "appliance.timer_reader": 4,
    "appliance.topics": 3,
    "compat": 3,
    "compat.kafka": 3,
    "compat.kafka.*": 3,
    # 2: files, through the file system alone
    "appliance.store": 2,
    "appliance.store.*": 2,
    # 1: what all share
    "appliance": 1,
    "appliance.allowance": 1,
    "appliance.client_log": 1,
    "appliance.fair_queue": 1,
    "appliance.dead_letters": 1,
    "appliance.config": 1,
    "appliance.config.*": 1,
    "appliance.errors": 1,
    "appliance.log_text": 1,
    "appliance.loop_share": 1,
    "appliance.metrics": 1,
    "appliance.model": 1,
    "appliance.system": 1,
    "appliance.system.*": 1,
    "appliance.units": 1,
    # 0: compiled; no I/O, no clock, nothing of ours
    "_core": 0,
    "_core.*": 0,
}
"""Layer by module; the first pattern that fits counts."""

FLOORS: Final[tuple[dict[str, int], ...]] = (
    {
        "_core.bytes": 0,
        "_core.log": 1,
        "_core.queue": 2,
        "_core.timers": 2,
        "_core.state": 3,
        "_core.paths": 4,
        "_core.tables": 4,
    },
    {
        "appliance.store.log": 0,
        "appliance.store.keys": 1,
        "appliance.store.queue": 1,
        "appliance.store.runs": 1,
        "appliance.store.state": 2,
        "appliance.store.recovery": 3,
    },
)
"""Packages of one layer, and which of them may import which: those below, and no neighbour."""

LOOP_LAYER: Final = 5
LOOP_MODULES: Final = frozenset(
    [
        "aiohttp",
        "asyncio",
        "concurrent",
        "http",
        "multiprocessing",
        "select",
        "selectors",
        "signal",
        "socket",
        "socketserver",
        "ssl",
        "uvloop",
    ]
)

# The broker knows nothing of the protocols in front of it: the composition root joins them.
FACADE_IMPORTERS: Final = frozenset(
    {"appliance.kafka_facade", "appliance.main", "appliance.pair.slave_front"}
)
# Tables and the pipeline are no protocols, and their commands are a part of that root.
TABLE_IMPORTERS: Final = frozenset(
    {
        "appliance.commands.export",
        "appliance.commands.find",
        "appliance.commands.pipeline",
        "appliance.commands.table_files",
    }
)


@dataclass(frozen=True, slots=True)
class Import:
    """That one module names another, in any of its files."""

    importer: str
    imported: str
    place: str

    @property
    def top(self) -> str:
        return self.imported.split(".")[0]


def find_layer(module: str) -> int | None:
    return next(
        (layer for pattern, layer in LAYERS.items() if fnmatch.fnmatchcase(module, pattern)), None
    )


def find_imports(files: Iterable[SourceFile]) -> list[Import]:
    """Return what the files import; a name imported from a package counts as its module if it is.

    A .pxd is part of its module. Imports in functions and for type checking count as well.
    """
    files = list(files)
    modules = {file.module for file in files}
    found = []
    for file in files:
        names = python_imports(file) if file.suffix == ".py" else cython_imports(file)
        for number, module, name in names:
            inner = f"{module}.{name}"
            imported = inner if inner in modules else module
            if imported != file.module:
                found.append(Import(file.module, imported, f"{file.path}:{number}"))
    return found


def python_imports(file: SourceFile) -> Iterator[tuple[int, str, str]]:
    """Yield line, module, and name imported from it (empty if it is the module itself)."""
    package = file.module if file.path.endswith("__init__.py") else file.module.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.text)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, ""
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = [*parents, node.module] if node.level else [node.module]
            module = ".".join(part for part in base if part)
            for alias in node.names:
                yield node.lineno, module, alias.name


def cython_imports(file: SourceFile) -> Iterator[tuple[int, str, str]]:
    """As `python_imports`, of the statements that a regular expression can find."""
    # A list of names may be broken over lines by parentheses.
    text = re.sub(r"\(([^()]*)\)", lambda match: " ".join(match[1].split("\n")), file.text)
    offset_lines = file.text.splitlines()
    for line in text.splitlines():
        statement = line.split("#")[0].strip()
        if match := re.fullmatch(r"from\s+([\w.]+)\s+c?import\s+(.*)", statement):
            names = [name.split()[0] for name in match[2].split(",") if name.strip()]
            module = match[1]
        elif match := re.fullmatch(r"c?import\s+([\w.]+)(?:\s+as\s+\w+)?", statement):
            names, module = [""], match[1]
        else:
            continue
        number = next(
            (n for n, source in enumerate(offset_lines, 1) if source.startswith(line[:12])), 0
        )
        for name in names:
            yield number, module, name


def check_known(modules: Iterable[str]) -> Iterator[str]:
    for module in sorted(set(modules)):
        if find_layer(module) is None:
            yield f"{module} has no layer; say in LAYERS (tests/test_layers.py) where it belongs"


def check_rise(imports: Iterable[Import]) -> Iterator[str]:
    for each in imports:
        lower, upper = find_layer(each.importer), find_layer(each.imported)
        if each.top in PACKAGES and lower is not None and upper is not None and upper > lower:
            yield (
                f"{each.place}: {each.importer} (layer {lower}) imports {each.imported} "
                f"(layer {upper}); pass what it needs as an argument, or move the shared part down"
            )


def check_floors(imports: Iterable[Import]) -> Iterator[str]:
    for each in imports:
        importer, imported = (name.rpartition(".")[0] for name in (each.importer, each.imported))
        for floors in FLOORS:
            if importer == imported or importer not in floors or imported not in floors:
                continue
            if floors[importer] <= floors[imported]:
                yield (
                    f"{each.place}: {each.importer} imports {each.imported}, which is not below "
                    f"it; move what they share to a lower package"
                )


def check_loop(imports: Iterable[Import]) -> Iterator[str]:
    for each in imports:
        layer = find_layer(each.importer)
        if each.top in LOOP_MODULES and layer is not None and layer < LOOP_LAYER:
            yield (
                f"{each.place}: {each.importer} (layer {layer}) imports {each.imported}; what "
                f"waits for others belongs into layer {LOOP_LAYER}"
            )


def check_facade(imports: Iterable[Import]) -> Iterator[str]:
    for each in imports:
        is_broker = each.importer.split(".")[0] == "appliance"
        is_table = each.imported.startswith(("compat.pipeline", "compat.spark", "compat.tables"))
        if is_table and each.importer in TABLE_IMPORTERS:
            continue
        if is_broker and each.top == "compat" and each.importer not in FACADE_IMPORTERS:
            yield (
                f"{each.place}: {each.importer} imports {each.imported}; only "
                f"{', '.join(FACADE_IMPORTERS)} may know the facade"
            )


def check_circles(imports: Iterable[Import]) -> Iterator[str]:
    graph: dict[str, list[str]] = {}
    for each in imports:
        if each.top in PACKAGES:
            graph.setdefault(each.importer, []).append(each.imported)
    done: set[str] = set()
    for module in sorted(graph):
        circle = find_circle(graph, module, [], done)
        if circle:
            yield f"{' imports '.join(circle)}; move what they share into a module of its own"


def find_circle(
    graph: Mapping[str, list[str]], module: str, path: list[str], done: set[str]
) -> list[str]:
    """Return a circle that can be reached from `module`, [] if there is none not yet `done`."""
    if module in path:
        return [*path[path.index(module) :], module]
    if module in done:
        return []
    done.add(module)
    for imported in graph.get(module, []):
        circle = find_circle(graph, imported, [*path, module], done)
        if circle:
            return circle
    return []


def all_problems(files: list[SourceFile]) -> list[str]:
    imports = find_imports(files)
    return [
        *check_known(file.module for file in files),
        *check_rise(imports),
        *check_floors(imports),
        *check_loop(imports),
        *check_facade(imports),
        *check_circles(imports),
    ]


def test_imports_never_rise_and_never_run_in_circles() -> None:
    problems = all_problems(package_files((".py", ".pyx", ".pxd")))
    assert not problems, "\n" + "\n".join(problems)


def test_the_imports_of_the_project_are_seen() -> None:
    found = {(i.importer, i.imported) for i in find_imports(package_files((".py", ".pyx", ".pxd")))}
    assert ("appliance.cli", "appliance.config.config") in found
    assert ("appliance.admin.server", "aiohttp") in found
    assert any(importer.startswith("_core.") for importer, _ in found)


@pytest.mark.parametrize(
    ("files", "fact"),
    [
        ({"appliance/stray.py": ""}, "appliance.stray has no layer"),
        ({"appliance/store/a.py": "import appliance.broker\n"}, "(layer 2) imports"),
        ({"appliance/store/a.py": "from appliance import broker\n"}, "appliance.broker (layer 4)"),
        ({"appliance/system/files.py": "from ..store import log\n"}, "appliance.store (layer 2)"),
        ({"appliance/store/a.py": "def f():\n    import appliance.broker\n"}, "a.py:2"),
        ({"_core/a.pyx": "from appliance.units import KIB\n"}, "_core.a (layer 0) imports"),
        ({"_core/a.pxd": "cimport appliance.units\n"}, "_core.a (layer 0) imports"),
        (
            {"_core/log/a.pyx": "from _core.queue.b cimport B\n", "_core/queue/b.pxd": ""},
            "not below",
        ),
        (
            {"_core/timers/a.pyx": "from _core.queue.b cimport B\n", "_core/queue/b.pxd": ""},
            "not below",
        ),
        (
            {
                "appliance/store/state/a.py": "from appliance.store.recovery import b\n",
                "appliance/store/recovery/b.py": "",
            },
            "not below",
        ),
        ({"appliance/broker.py": "import asyncio\n"}, "layer 5"),
        ({"compat/kafka/protocol/wire.py": "from socket import socket\n"}, "layer 5"),
        ({"_core/a.pyx": "cimport numpy\nimport socket\n"}, "a.pyx:2"),
        ({"appliance/pump.py": "import compat.kafka.protocol.wire\n"}, "may know the facade"),
        (
            {
                "_core/a.pyx": "from _core.b cimport (\n    B,\n    C,\n)\n",
                "_core/b.pxd": "from _core cimport a as other\n",
            },
            "_core.a imports _core.b imports _core.a",
        ),
        (
            {
                "appliance/store/a.py": "from appliance.store import b\n",
                "appliance/store/b.py": "from . import c\n",
                "appliance/store/c.py": "from .a import f\n",
            },
            "imports appliance.store.c imports appliance.store.a",
        ),
    ],
)
def test_each_check_finds_what_it_is_for(files: dict[str, str], fact: str) -> None:
    # What is imported has to exist for `from package import module` to be distinguished from a
    # name.
    known = {"appliance/broker.py": ""} | files
    problems = all_problems([SourceFile(path, text) for path, text in known.items()])
    assert len(problems) == 1, problems
    assert fact in problems[0]


def test_imports_that_point_down_are_fine() -> None:
    files = {
        "_core/a.pyx": "from libc.stdint cimport int64_t\nfrom _core.b cimport B\nimport cython\n",
        "_core/a.pxd": "from _core.b cimport B\n",
        "_core/b.pyx": "x = 1\n",
        "appliance/store/a.py": "import _core.a\nfrom appliance.units import KIB\n",
        "appliance/main.py": "import asyncio\nimport compat.kafka.network.server\n",
        "compat/kafka/network/server.py": "import appliance.broker\nimport asyncio\n",
        "appliance/broker.py": "from appliance.store.a import x\n",
        "appliance/units.py": "",
    }
    assert all_problems([SourceFile(path, text) for path, text in files.items()]) == []
