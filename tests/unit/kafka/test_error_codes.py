"""Kafka's error codes and version ranges are written more than once; here they are compared."""

import re
from pathlib import Path

import pytest

from appliance import errors
from appliance.errors import RequestError
from compat.kafka.apis.api_00_produce import produce
from compat.kafka.apis.api_01_fetch import fetch
from compat.kafka.protocol.error_codes import ErrorCode
from compat.kafka.protocol.registry import Api
from tests.support.docs.source_files import ROOT

COMPILED = ROOT / "_core" / "bytes" / "kafka_errors.pxd"
SESSION = ROOT / "_core" / "paths" / "session.pyx"
REFUSALS = sorted(
    (
        each
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, RequestError) and each is not RequestError
    ),
    key=lambda each: each.__name__,
)


def numbers(path: Path) -> dict[str, int]:
    """The constants of the enumerations in a Cython file."""
    found = re.findall(r"^    ([A-Z_]+) = (-?\d+)\b", path.read_text(), re.MULTILINE)
    return {name: int(value) for name, value in found}


def test_compiled_code_has_the_numbers_of_the_table() -> None:
    compiled = numbers(COMPILED)
    assert len(compiled) > 10
    known = {code.name: code.value for code in ErrorCode}
    assert {name: known.get(name) for name in compiled} == compiled


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda each: each.__name__)
def test_a_refusal_has_the_number_that_its_docstring_names(refusal: type[RequestError]) -> None:
    names = re.findall(r"\(([A-Z_]{6,})\)", refusal.__doc__ or "")
    assert [ErrorCode[name].value for name in names] == [refusal.default_code]


def test_no_number_of_kafka_is_written_in_the_store() -> None:
    files = sorted((ROOT / "appliance" / "store").rglob("*.py"))
    assert files
    named = {code.name for code in ErrorCode if len(code.name) > 6}
    found = [
        f"{path.name}: {name}"
        for path in files
        for name in re.findall(r"^([A-Z_]+)(?:: Final)? = \d+$", path.read_text(), re.MULTILINE)
        if name in named
    ]
    assert not found, "raise an error of appliance/errors.py that has the number"


@pytest.mark.parametrize(("api", "prefix"), [(produce, "PRODUCE"), (fetch, "FETCH")])
def test_the_session_serves_the_versions_of_the_registry(api: Api, prefix: str) -> None:
    compiled = numbers(SESSION)
    assert compiled[f"KEY_{prefix}"] == api.key
    assert compiled[f"{prefix}_MIN"] == api.served_from
    assert compiled[f"{prefix}_MAX"] == api.versions[1]
    assert compiled[f"{prefix}_FLEXIBLE"] == api.flexible_from
