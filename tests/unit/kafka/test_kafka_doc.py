"""docs/KAFKA.md says what the code does."""

import pytest

from compat.kafka import dispatch
from tests.support.docs.kafka_doc_tables import PATH, TABLES, describe, replace_tables


def test_the_tables_are_the_ones_that_the_code_determines() -> None:
    text = PATH.read_text()
    assert replace_tables(text) == text, "run make regenerate"


def test_a_table_that_lacks_a_row_is_noticed() -> None:
    text = PATH.read_text()
    for make_table in TABLES.values():
        last_row = make_table().splitlines(keepends=True)[-1]
        assert replace_tables(text.replace(last_row, "")) == text


def test_every_api_of_the_control_plane_is_described() -> None:
    text = PATH.read_text()
    for api in dispatch.REGISTRY.apis:
        assert text.count(f"\n### {api.name}\n") == 1
    assert "Layer 4" not in text


def test_a_docstring_of_another_form_is_refused() -> None:
    module = "compat.kafka.apis.api_12_heartbeat"
    assert describe("Heartbeat", module).startswith("Behaviour: ")
    with pytest.raises(ValueError, match="begin with"):
        describe("JoinGroup", module)
