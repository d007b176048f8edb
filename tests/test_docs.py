"""What the documents name exists: files, symbols, links, commands, invariants and pictures."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import pytest

from tests.support.docs import pictures
from tests.support.docs.regenerate import GENERATORS
from tests.support.docs.source_files import ROOT, SourceFile, package_files, project_files
from tests.test_layers import FLOORS, LAYERS

ARCHITECTURE: Final = "docs/ARCHITECTURE.md"

HISTORY: Final = ("docs/decisions/", "CHANGELOG.md")
"""Documents that say what was true when they were written."""

TREES: Final = r"(?:_core|appliance|compat|tests|perf|docs|systemd|\.ci)"


def documents() -> list[SourceFile]:
    return [
        file
        for file in project_files()
        if file.suffix == ".md" and not file.path.startswith(HISTORY)
    ]


def document(path: str) -> str:
    return (ROOT / path).read_text()


# Files and symbols


def check_places(file: SourceFile) -> Iterator[str]:
    """Each `path::symbol` names a file and a def, cdef, class or constant in it."""
    for path, symbol in re.findall(r"`([^`\s]+?)::([\w.]+)`", file.text):
        if not (ROOT / path).is_file():
            yield f"{file.path}: {path}::{symbol}: there is no such file"
        elif not has_symbol(document(path), symbol):
            yield f"{file.path}: {path}::{symbol}: the file has no such symbol"


def has_symbol(text: str, symbol: str) -> bool:
    """Say whether `text`, Python or Cython, declares `symbol`: NAME or CLASS.NAME."""
    lines = text.splitlines()
    for name in symbol.split("."):
        found = find_block(lines, name)
        if found is None:
            return False
        lines = found
    return True


def find_block(lines: list[str], name: str) -> list[str] | None:
    """Return the lines of what is declared as `name` at the lowest indentation; None if nothing is.

    The members of an enum count as declared beside it.
    """
    indents = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    indent = min(indents, default=0)
    declares = re.compile(
        rf"(?:(?:async +)?def +{name}\(|(?:cdef +)?class +{name}\b"
        rf"|cp?def +[^=(]*\b{name}\(|cdef +(?:readonly |public )?[^=(]*\b{name}\b"
        rf"|{name} *(?::[^=]+)?=)"
    )
    for index, line in enumerate(lines):
        if not line[indent:].strip() or line[indent] == " ":
            continue
        block = list(block_after(lines, index, indent))
        if declares.match(line[indent:]):
            return block
        if re.match(r"cp?def enum\b", line[indent:]) and find_block(block, name) is not None:
            return block
    return None


def block_after(lines: list[str], index: int, indent: int) -> Iterator[str]:
    for line in lines[index + 1 :]:
        # The end of a signature that is broken over lines stands as far left as its start.
        if line.strip() and len(line) - len(line.lstrip()) <= indent and line.strip()[0] != ")":
            return
        if line.strip() and len(line) - len(line.lstrip()) > indent:
            yield line


def check_paths(file: SourceFile) -> Iterator[str]:
    """Each path in a document exists; `*` is any name, NN and NAME a name to be chosen."""
    for name in re.findall(rf"(?<![\w/.])({TREES}/[\w./*-]+)", without_links(file.text)):
        path = name.rstrip("./")
        if not re.search("NN|NAME", path) and not any(ROOT.glob(path)):
            yield f"{file.path}: {path} does not exist"


def without_links(text: str) -> str:
    return re.sub(r"\]\([^)]*\)", "]", text)


def check_links(file: SourceFile) -> Iterator[str]:
    """Each relative link leads to a file, and to a heading of it."""
    for target in re.findall(r"\]\(([^)\s]+)\)", file.text):
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (ROOT / file.path).parent / path if path else ROOT / file.path
        if not found.exists():
            yield f"{file.path}: the link to {target} leads nowhere"
        elif anchor and anchor not in anchors_of(found):
            yield f"{file.path}: {path or 'the page'} has no heading #{anchor}"


def anchors_of(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", path.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}


def check_targets(file: SourceFile) -> Iterator[str]:
    """Each `make TARGET` that a document shows is a target of the Makefile."""
    targets = set(re.findall(r"^([a-z-]+):", document("Makefile"), flags=re.MULTILINE))
    for target in re.findall(r"(?:`|^    )make ([a-z][a-z-]*)", file.text, flags=re.MULTILINE):
        if target not in targets:
            yield f"{file.path}: the Makefile has no target {target}"


CHECKS: Final = (check_places, check_paths, check_links, check_targets)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_what_the_documents_name_exists(check: object) -> None:
    assert callable(check)
    problems = [problem for file in documents() for problem in check(file)]
    assert not problems, "\n" + "\n".join(problems)


@pytest.mark.parametrize(
    ("check", "text", "fact"),
    [
        (check_places, "`appliance/none.py::Config`", "no such file"),
        (check_places, "`appliance/config/config.py::Confi`", "no such symbol"),
        (check_places, "`_core/log/pointers.pyx::visible_pos`", "no such symbol"),
        (check_places, "`_core/log/pointers.pyx::Pointers.pos`", "no such symbol"),
        (check_places, "`_core/bytes/layout.pxd::KIND_NONE`", "no such symbol"),
        (check_paths, "in `appliance/store/none.py`", "does not exist"),
        (check_paths, "in tests/none/*.py", "does not exist"),
        (check_paths, "all of tests/none.", "does not exist"),
        (check_links, "[x](docs/NONE.md)", "leads nowhere"),
        (check_links, "[x](docs/ARCHITECTURE.md#none)", "no heading"),
        (check_targets, "run `make none`", "no target none"),
        (check_targets, "    make none    # it", "no target none"),
    ],
)
def test_each_check_finds_what_it_is_for(check: object, text: str, fact: str) -> None:
    assert callable(check)
    problems = list(check(SourceFile("a.md", text)))
    assert len(problems) == 1, problems
    assert fact in problems[0]


@pytest.mark.parametrize(
    ("path", "symbol"),
    [
        ("_core/log/pointers.pyx", "Pointers.visible"),
        ("_core/log/pointers.pyx", "Pointers.visible_pos"),
        ("_core/state/scan.pyx", "EPOCH_FELL"),
        ("_core/bytes/layout.pxd", "KIND_ACCEPT"),
        ("appliance/config/network.py", "NetworkSettings.listen"),
        ("appliance/metrics.py", "METRICS"),
    ],
)
def test_symbols_of_every_kind_are_found(path: str, symbol: str) -> None:
    assert has_symbol(document(path), symbol)


# The tour


def section(heading: str) -> str:
    return document(ARCHITECTURE).partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def test_ten_questions_have_one_place_each() -> None:
    rows = re.findall(r"^\| (.+\?) \| (.+) \|$", section("Ten questions of a newcomer"), re.M)
    assert len(rows) == 10
    for question, place in rows:
        assert re.fullmatch(r"`[^`\s]+::[\w.]+`", place), f"{question} has no path::symbol"


def invariants() -> list[str]:
    return re.findall(r"^\| (I\d+) \|", section("Invariants"), flags=re.MULTILINE)


def test_every_invariant_is_named_where_the_code_holds_it() -> None:
    named = names_of_invariants(package_files((".py", ".pyx", ".pxd")))
    assert invariants() == [f"I{number}" for number in range(1, len(invariants()) + 1)]
    assert sorted(named) == sorted(invariants()), "the page and the code name other invariants"


def names_of_invariants(files: list[SourceFile]) -> set[str]:
    """Return the invariants that comments after code name, in the broker."""
    text = "\n".join(file.text for file in files if file.path.startswith(("_core/", "appliance/")))
    return set(re.findall(r"\S +# (I\d+)\b", text))


def test_an_invariant_in_a_docstring_alone_is_not_enough() -> None:
    files = [SourceFile("_core/a.pyx", '" I8  "\nassert x >= 0  # I9: why\n')]
    assert names_of_invariants(files) == {"I9"}


# Pictures and generators


@pytest.mark.parametrize("name", pictures.DRAWN)
def test_pictures_are_up_to_date(name: str) -> None:
    assert (pictures.PICTURES / name).read_text() == pictures.DRAWN[name](), "run make regenerate"


def test_every_picture_is_drawn_and_shown() -> None:
    assert {path.name for path in pictures.PICTURES.iterdir()} == set(pictures.DRAWN)
    for name in pictures.DRAWN:
        assert f"](pictures/{name})" in document(ARCHITECTURE)
    assert "](docs/pictures/layers.svg)" in document("README.md")


@pytest.mark.parametrize("name", pictures.DRAWN)
def test_texts_of_a_picture_do_not_touch(name: str) -> None:
    spans: dict[float, list[tuple[float, float]]] = {}
    for element in ElementTree.fromstring(pictures.DRAWN[name]()).iter():
        if element.tag.endswith("}text"):
            size = len(element.text or "") * pictures.CHARACTER_WIDTH
            x = float(element.attrib["x"])
            start = x - size if "number" in element.attrib.get("class", "") else x
            spans.setdefault(float(element.attrib["y"]), []).append((start, start + size))
    for line in spans.values():
        ordered = sorted(line)
        assert ordered[0][0] >= 0
        assert ordered[-1][1] <= pictures.WIDTH
        assert all(a[1] < b[0] for a, b in itertools.pairwise(ordered))


def test_every_package_is_in_the_picture_of_the_layers() -> None:
    labels = set(re.findall(r">([\w. ]+)</text>", pictures.layers_picture()))
    floors = {name for each in FLOORS for name in each}
    stories = {name.rpartition(".")[0] for name in floors}
    names = {name for layer in set(LAYERS.values()) for name in pictures.packages_of(layer)}
    assert names >= {"appliance.pump", "appliance.store", "compat.kafka.network", "_core"}
    for name in (names - stories - {"compat.kafka", "compat"}) | floors:
        assert re.sub(r"^(appliance|compat\.kafka|compat)\.", "", name) in labels
    assert not labels & {"appliance", "compat"}


def test_the_table_of_layers_names_every_module() -> None:
    """As tests/test_layers.py enforces it."""
    lines = document(ARCHITECTURE).splitlines()
    rows = {int(row[2]): row for row in lines if re.match(r"\| [0-6] \| `(_core|appliance)", row)}
    for module, layer in LAYERS.items():
        name = module.removesuffix(".*").rsplit(".", 1)[-1]
        if name not in {"appliance", "compat", "kafka"}:
            assert re.search(rf"[`.]{name}`", rows[layer]), f"layer {layer} lacks {module}"


def test_make_regenerate_runs_every_generator() -> None:
    modules = (ROOT / "tests" / "support" / "docs").glob("*.py")
    generators = {path.stem for path in modules if "\ndef main(" in path.read_text()}
    assert generators - {"regenerate"} <= set(GENERATORS)
    assert generators >= {"doc_tables", "golden_frames", "pictures"}
