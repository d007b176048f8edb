"""docs/KAFKA.md says what the code does."""

from compat.kafka import control
from tests.support.kafka_doc_tables import PATH, TABLES, replace_tables


def test_the_tables_are_the_ones_that_the_code_determines() -> None:
    text = PATH.read_text()
    assert replace_tables(text) == text, "run python -m tests.support.kafka_doc_tables"


def test_a_table_that_lacks_a_row_is_noticed() -> None:
    text = PATH.read_text()
    for make_table in TABLES.values():
        last_row = make_table().splitlines(keepends=True)[-1]
        assert replace_tables(text.replace(last_row, "")) == text


def test_every_api_of_the_control_plane_is_described() -> None:
    text = PATH.read_text()
    for api in control.REGISTRY.apis:
        if api.handler is not None and api.name != "FindCoordinator":
            assert f"**{api.name}.**" in text
