"""kafka-python's own integration tests, from its source distribution, against this broker."""

import pytest

from tests.support.client_setup import ClientMissingError, find
from tests.support.kafka_python_suite import EXPECTED_FAILURES, FILES, KafkaPythonSuite


@pytest.mark.parametrize("name", FILES)
def test_what_its_authors_test_works_here(
    own_suite: KafkaPythonSuite | ClientMissingError, name: str
) -> None:
    """All but the expected failures, and each of these does fail."""
    if isinstance(own_suite, ClientMissingError):
        pytest.skip(str(own_suite))
    failures = own_suite.failures(name)
    source = (find("kafka_python_tests") / f"test/integration/test_{name}_integration.py").open()
    with source:
        text = source.read()
    expected = {test for test in EXPECTED_FAILURES if f"def {test}(" in text}
    assert set(failures) == expected, failures
