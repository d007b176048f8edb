"""What of docs/STYLE.md can be counted. Each message says what to do instead."""

import ast
import re
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from tests.support.docs.source_files import (
    CODE_SUFFIXES,
    PACKAGES,
    ROOT,
    SourceFile,
    package_files,
    project_files,
)

COLUMN_COUNT_MAX: Final = 100
FUNCTION_LINE_COUNT_MAX: Final = 70
FILE_LINE_COUNT_MAX: Final = 600
"""A file has one subject. At 500, ten files were squeezed to fit; h11 has one of 659."""

LONG_FUNCTIONS: Final[dict[str, int]] = {}
"""`path:function` -> lines, for those above the maximum. May only shrink: nothing is added here."""

LONG_FILES: Final[dict[str, str]] = {}
"""`path` -> the reason why it is better not split."""

CLOCK_INSTEAD: Final = "ask the Clock that was passed in (appliance/system/clock.py)"
FILES_INSTEAD: Final = "use the FileSystem that was passed in (appliance/system/files.py)"

OS_MODULES: Final = {
    "time": CLOCK_INSTEAD,
    "sched": CLOCK_INSTEAD,
    "os": FILES_INSTEAD,
    "posix": FILES_INSTEAD,
    "io": FILES_INSTEAD,
    "mmap": FILES_INSTEAD,
    "fcntl": FILES_INSTEAD,
    "shutil": FILES_INSTEAD,
    "tempfile": FILES_INSTEAD,
    "glob": FILES_INSTEAD,
    "libc.time": CLOCK_INSTEAD,
    "libc.stdio": FILES_INSTEAD,
    "cpython.time": CLOCK_INSTEAD,
}
OS_CALLS: Final = {
    "open": FILES_INSTEAD,
    **dict.fromkeys(("now", "utcnow", "today"), CLOCK_INSTEAD),
    **dict.fromkeys(("read_text", "write_text", "read_bytes", "write_bytes"), FILES_INSTEAD),
    **dict.fromkeys(("iterdir", "touch", "rmdir", "expanduser", "cwd"), FILES_INSTEAD),
}
"""Functions, and methods of datetime and Path. `open` is meant as the function alone."""

OS_ALLOWED: Final = {
    "appliance/system/clock.py": "it is the clock",
    "appliance/system/files.py": "it is the file system",
    "appliance/system/file_lock.py": "it is a part of the file system",
    "appliance/system/process.py": "the system schedules the process",
    "appliance/system/realtime.py": "the system schedules its threads",
    "appliance/system/receive_thread.py": "it receives from sockets",
    "appliance/system/sync_thread.py": "it is a part of the file system",
    "appliance/system/sd_notify.py": "systemd speaks through the environment",
    "compat/spark/needs.py": "Spark takes its Java and Python from the environment",
}


def check_columns(file: SourceFile) -> Iterator[str]:
    # A row of a table, an address and a command of a unit cannot be broken.
    is_exempt = re.compile(r"\||.*https?://|ExecStart=").match
    for number, line in file.lines():
        if len(line) > COLUMN_COUNT_MAX and not is_exempt(line):
            yield f"{file.path}:{number}: {len(line)} columns; break the line at {COLUMN_COUNT_MAX}"


def check_white_space(file: SourceFile) -> Iterator[str]:
    for number, line in file.lines():
        if line != line.rstrip():
            yield f"{file.path}:{number}: ends with white space; remove it"
        if "\t" in line and file.path != "Makefile":
            yield f"{file.path}:{number}: has a tab; use spaces"
    if file.text and not file.text.endswith("\n"):
        yield f"{file.path}: the last line does not end; add a line break"


def check_file_length(file: SourceFile) -> Iterator[str]:
    count = len(file.text.splitlines())
    if file.suffix in CODE_SUFFIXES and count > FILE_LINE_COUNT_MAX and file.path not in LONG_FILES:
        yield (
            f"{file.path}: {count} lines; split it at {FILE_LINE_COUNT_MAX}, or give the reason in "
            "LONG_FILES"
        )


def check_function_length(file: SourceFile) -> Iterator[str]:
    for name, number, count in function_lengths(file):
        if count > LONG_FUNCTIONS.get(f"{file.path}:{name}", FUNCTION_LINE_COUNT_MAX):
            yield (
                f"{file.path}:{number}: {name} has {count} lines; move a part that has a meaning "
                f"of its own into a function, so that {FUNCTION_LINE_COUNT_MAX} are enough"
            )


def function_lengths(file: SourceFile) -> Iterator[tuple[str, int, int]]:
    """Yield name, first line and count of lines of each function, whatever its language."""
    if file.suffix == ".py":
        for node in ast.walk(ast.parse(file.text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                yield node.name, node.lineno, node.end_lineno - node.lineno + 1
    elif file.suffix in {".pyx", ".pxd"}:
        yield from cython_function_lengths(file)
    elif file.suffix in {".c", ".h"}:
        yield from c_function_lengths(file)


CYTHON_FUNCTION: Final = re.compile(
    r"( *)(?:async +)?(?:def|c(?:p)?def) +"
    r"(?!class\b|struct\b|packed\b|enum\b|union\b|extern\b)(?:\([^()]*\) *|[^=(])*?(\w+)\("
)


def cython_function_lengths(file: SourceFile) -> Iterator[tuple[str, int, int]]:
    """A function ends before the next line that is not indented deeper than its first one."""
    lines = file.text.splitlines()
    for index, line in enumerate(lines):
        match = CYTHON_FUNCTION.match(line)
        if match is None:
            continue
        indent, name = len(match[1]), match[2]
        last = index
        for later in range(index + 1, len(lines)):
            content = lines[later].lstrip()
            is_inside = len(lines[later]) - len(content) > indent
            # The end of a signature that was broken over lines stands as far left as its start.
            if content and not is_inside and not content.startswith(")"):
                break
            last = later if content else last
        yield name, index + 1, last - index + 1


def c_function_lengths(file: SourceFile) -> Iterator[tuple[str, int, int]]:
    """A function begins at the left edge with `name(...) {` and ends with `}` there."""
    begin, name = 0, ""
    for number, line in file.lines():
        match = re.match(r"(?!struct|enum|union|typedef)[A-Za-z_].*?(\w+)\([^;]*$", line)
        if match is not None:
            begin, name = number, match[1]
        elif line.startswith("}") and name:
            yield name, begin, number - begin + 1
            name = ""


def check_notes_to_self(file: SourceFile) -> Iterator[str]:
    for number, line in file.lines():
        # Spelled so that this line is not found.
        if match := re.search(r"\b(TO" r"DO|FIX" r"ME|X" r"XX|HA" r"CK)\b", line):
            yield f"{file.path}:{number}: {match[0]}; do it now or open an issue"


def check_machine_paths(file: SourceFile) -> Iterator[str]:
    for number, line in file.lines():
        if match := re.search(r"(?<![\w.~])/(?:work|root|home|tmp|Users|mnt)/\w+", line):
            yield f"{file.path}:{number}: {match[0]} exists on one machine; make it relative"


def check_registries(file: SourceFile) -> Iterator[str]:
    hosts = (
        r"pypi[.](?:org|python)|pythonho[s]ted|(?<!emit-)(?:index[-]url|find[-]links)"
        r"|npmjs[.](?:org|com)|repo1?[.]maven|<reposit[o]ry>|proxy[.]golang"
    )
    for number, line in file.lines():
        if match := re.search(hosts, line):
            yield f"{file.path}:{number}: {match[0]}; settings of pip, npm or Maven name it"


def check_title(file: SourceFile) -> Iterator[str]:
    if file.suffix != ".md":
        return
    without_code = re.sub(r"^```.*?^```", "", file.text, flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^# .+", without_code, flags=re.MULTILINE)
    if len(titles) != 1 or not file.text.startswith("# "):
        yield f"{file.path}: has {len(titles)} titles; begin it with the only line that starts `# `"


def check_time_and_files(file: SourceFile) -> Iterator[str]:
    if file.path.split("/")[0] not in PACKAGES or file.path in OS_ALLOWED:
        return
    if file.suffix == ".py":
        used = python_uses(ast.parse(file.text))
    elif file.suffix in {".pyx", ".pxd"}:
        used = cython_uses(file)
    else:
        return
    for number, name, instead in used:
        yield f"{file.path}:{number}: {name}; {instead}"


def python_uses(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Yield line, name and replacement of each import and call that reaches for the machine."""
    for node in ast.walk(tree):
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules = [node.module]
        for module in modules:
            top = module.split(".")[0]
            if top in OS_MODULES and isinstance(node, ast.stmt):
                yield node.lineno, f"imports {module}", OS_MODULES[top]
        if isinstance(node, ast.Call):
            name = called_name(node.func)
            if name in OS_CALLS:
                yield node.lineno, f"calls {name}()", OS_CALLS[name]


def called_name(function: ast.expr) -> str:
    if isinstance(function, ast.Name):
        return function.id
    # A method called `open` is FileSystem's.
    if isinstance(function, ast.Attribute) and function.attr != "open":
        return function.attr
    return ""


def cython_uses(file: SourceFile) -> Iterator[tuple[int, str, str]]:
    for number, line in file.lines():
        if match := re.match(r"\s*(?:from|c?import)\s+([\w.]+)", line):
            for module, instead in OS_MODULES.items():
                if f"{match[1]}.".startswith(f"{module}."):
                    yield number, f"imports {match[1]}", instead
        if re.search(r"(?<![\w.])open\(", line):
            yield number, "calls open()", FILES_INSTEAD


CHECKS: Final[tuple[Callable[[SourceFile], Iterator[str]], ...]] = (
    check_columns,
    check_white_space,
    check_file_length,
    check_function_length,
    check_notes_to_self,
    check_machine_paths,
    check_registries,
    check_title,
    check_time_and_files,
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_project_is_tidy(check: Callable[[SourceFile], Iterator[str]]) -> None:
    problems = [problem for file in project_files() for problem in check(file)]
    assert not problems, "\n" + "\n".join(problems)


def test_lists_of_exceptions_only_shrink() -> None:
    files = {file.path: file for file in project_files()}
    lengths = {
        f"{file.path}:{name}": count
        for file in files.values()
        for name, _, count in function_lengths(file)
    }
    for function, count in LONG_FUNCTIONS.items():
        assert lengths.get(function) == count, f"LONG_FUNCTIONS: {function} is shorter now"
        assert count > FUNCTION_LINE_COUNT_MAX, f"LONG_FUNCTIONS: {function} can go"
    for path in LONG_FILES:
        count = len(files[path].text.splitlines())
        assert count > FILE_LINE_COUNT_MAX, f"LONG_FILES: {path} can go"
    for path in OS_ALLOWED:
        assert path in files, f"OS_ALLOWED: {path} can go"


def test_every_compiled_module_has_a_stub() -> None:
    paths = {file.path for file in package_files((".pyx", ".pyi"))}
    missing = [path for path in paths if path.endswith(".pyx") and path[:-1] + "i" not in paths]
    assert not missing, f"write the Python contract (.pyi) of {missing}"


def test_every_compiled_module_has_its_source() -> None:
    # What is left of a module that was removed or renamed could still be imported here.
    sources = {file.module for file in package_files((".pyx",))}
    for binary in (ROOT / "_core").rglob("*.so"):
        place = binary.relative_to(ROOT).parent.as_posix().replace("/", ".")
        module = f"{place}.{binary.name.split('.')[0]}"
        assert module in sources, f"make clean; remove {binary.relative_to(ROOT)}"


def test_no_test_directory_is_named_like_a_package() -> None:
    # With another import mode, or as `python -m`, it would take the package's place.
    for package in PACKAGES:
        assert not (ROOT / "tests" / package).exists(), f"rename tests/{package}"


def long_function(head: str, indent: str = "    ") -> str:
    return head + "\n" + f"{indent}x = 1\n" * FUNCTION_LINE_COUNT_MAX


@pytest.mark.parametrize(
    ("check", "path", "text", "fact"),
    [
        (check_columns, "a.py", "#" * 101 + "\n", "a.py:1: 101 columns"),
        (check_columns, "a.md", "a" * 101 + "\n", "a.md:1: 101 columns"),
        (check_white_space, "a.pyx", "a = 1 \n", "white space"),
        (check_white_space, "a.pyx", "\ta = 1\n", "tab"),
        (check_white_space, "a.pyx", "a = 1", "add a line break"),
        (check_file_length, "a.pyx", "a = 1\n" * 601, "601 lines"),
        (check_function_length, "a.py", long_function("def f():"), "f has 71 lines"),
        (check_function_length, "a.py", long_function("async def f():"), "f has 71 lines"),
        (check_function_length, "a.pyx", long_function("def f(int a):"), "f has 71 lines"),
        (check_function_length, "a.pyx", long_function("cdef int* f(a) nogil:"), "f has 71"),
        (
            check_function_length,
            "a.pyx",
            long_function("cpdef f(\n    a\n) except -1:"),
            "73 lines",
        ),
        (
            check_function_length,
            "a.pyx",
            "cdef class A:\n" + long_function("    cdef inline (int, int) f(self):", " " * 8),
            "a.pyx:2: f has 71 lines",
        ),
        (check_function_length, "a.c", long_function("int f(int a) {") + "}\n", "f has 72 lines"),
        (check_notes_to_self, "a.py", "# TO" + "DO later\n", "open an issue"),
        (check_notes_to_self, "a.md", "FIX" + "ME\n", "open an issue"),
        (check_machine_paths, "a.py", "p = '/ho" + "me/me/x'\n", "make it relative"),
        (check_machine_paths, "a.md", "see /ro" + "ot/x\n", "make it relative"),
        (
            check_registries,
            "a.toml",
            "url = 'https://pyp" + "i.org/simple'\n",
            "settings of pip",
        ),
        (check_registries, "a.in", "--ind" + "ex-url x\n", "settings of pip"),
        (check_registries, "a.xml", "<reposit" + "ory>\n", "or Maven"),
        (check_title, "a.md", "# A\n\n# B\n", "2 titles"),
        (check_title, "a.md", "## A\n", "0 titles"),
        (check_title, "a.md", "text\n\n# A\n", "begin it"),
        (check_time_and_files, "appliance/a.py", "import time\n", CLOCK_INSTEAD),
        (check_time_and_files, "appliance/a.py", "from time import sleep\n", CLOCK_INSTEAD),
        (check_time_and_files, "compat/a.py", "import os.path\n", FILES_INSTEAD),
        (check_time_and_files, "appliance/a.py", "x = open('f')\n", FILES_INSTEAD),
        (check_time_and_files, "appliance/a.py", "x = p.read_text()\n", FILES_INSTEAD),
        (check_time_and_files, "appliance/a.py", "x = datetime.now(UTC)\n", CLOCK_INSTEAD),
        (check_time_and_files, "_core/a.pyx", "from libc.time cimport time\n", CLOCK_INSTEAD),
        (check_time_and_files, "_core/a.pxd", "cimport posix.unistd\n", FILES_INSTEAD),
        (check_time_and_files, "_core/a.pyx", "import os\n", FILES_INSTEAD),
        (check_time_and_files, "_core/a.pyx", "def f():\n    open('f')\n", FILES_INSTEAD),
    ],
)
def test_each_check_finds_what_it_is_for(
    check: Callable[[SourceFile], Iterator[str]], path: str, text: str, fact: str
) -> None:
    problems = list(check(SourceFile(path, text)))
    assert len(problems) == 1, problems
    assert fact in problems[0]


@pytest.mark.parametrize(
    ("check", "path", "text"),
    [
        (check_columns, "a.md", "| " + "a" * 200 + "\n"),
        (check_function_length, "a.pyx", long_function("cdef class A:")),
        (check_function_length, "a.pyx", long_function("cdef extern from 'a.h':")),
        (check_function_length, "a.pyx", "def f():\n    pass\n" + "x = 1\n" * 80),
        (check_function_length, "a.c", "struct a {\n" + "int x;\n" * 80 + "};\n"),
        (check_title, "a.md", "# A\n\n```\n# no title\n```\n"),
        (check_time_and_files, "appliance/a.py", "x = fs.open(path)\nimport timeit\n"),
        (check_time_and_files, "appliance/system/files.py", "import os\n"),
        (check_time_and_files, "tests/a.py", "import os\n"),
        (check_machine_paths, "a.md", "see ../work/x and GET /api/v1\n"),
    ],
)
def test_the_checks_leave_alone_what_is_fine(
    check: Callable[[SourceFile], Iterator[str]], path: str, text: str
) -> None:
    assert list(check(SourceFile(path, text))) == []


def test_the_project_files_are_found() -> None:
    paths = {file.path for file in project_files()}
    assert {"setup.py", "Makefile", ".ci/run", "_core/__init__.py", "docs/STYLE.md"} <= paths
    assert "tests/test_tidy.py" in paths
    assert not [path for path in paths if path.startswith(("build/", ".venv/"))]
