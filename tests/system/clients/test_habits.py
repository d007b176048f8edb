"""Delay headers as Debezium's outbox, Spring and people with HTTP habits write them."""

import re
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError

from tests.support.harness.appliance_process import ApplianceProcess, running_appliance
from tests.system.clients.delayed import OWN_HEADERS, check_delivery, now_ms
from tests.system.clients.suites import confluent_library
from tests.system.clients.suites.library import RefusedError, Sent
from tests.system.clients.suites.using import reading, receive, send, values_of

# Clients that are closed leave the two ends of their wake-up pipes to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

OUTBOX = [("id", b"0b6bd3ae"), ("eventType", b"OrderPlaced")]
SPRING = [("spring_json_header_types", b'{"X-Delay":"java.lang.String"}')]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApplianceProcess]:
    """One whose log no other test fills: lines are limited by the client's address."""
    with running_appliance(tmp_path_factory.mktemp("habits")) as appliance:
        yield appliance


@pytest.fixture
def library(broker: ApplianceProcess) -> confluent_library.Adapter:
    return confluent_library.Adapter(broker.kafka)


def lines(broker: ApplianceProcess, topic: str) -> list[str]:
    """What the broker's log says about the delay requests in a topic, once it says something."""
    pattern = rf'delay request (\w+ topic="{re.escape(topic)}" .*)\n'
    return re.findall(pattern, broker.await_logged(pattern))


def test_an_outbox_column_that_is_null_is_no_delay(
    library: confluent_library.Adapter, topic: str
) -> None:
    """Beside a row that has one, as text of JSON."""
    library.create(topic)
    later = Sent(b"later", [*OWN_HEADERS, ("x-delay", b'"300ms"')])
    null: list[tuple[str, bytes]] = [*OUTBOX, ("x-delay", None)]  # type: ignore[list-item]
    sent_ms = now_ms()
    send(library, topic, [later, Sent(b"now", null)])
    with reading(library, topic) as consumer:
        now, delayed = receive(consumer, 2)
    assert (now.value, list(now.headers)) == (b"now", null)
    check_delivery(delayed, sent_ms, delay_ms=300)


def test_headers_of_spring_and_of_java_are_understood(
    library: confluent_library.Adapter, topic: str
) -> None:
    """Quoted text under a name with capitals, and an Integer."""
    library.create(topic)
    sent_ms = now_ms()
    quoted = Sent(b"quoted", [*SPRING, ("X-Delay", b'"PT0.2S"')])
    integer = Sent(b"integer", [*SPRING, ("x-delay", (300).to_bytes(4, "big"))])
    send(library, topic, [integer, quoted])
    with reading(library, topic) as consumer:
        first, second = receive(consumer, 2)
    assert values_of([first, second]) == [b"quoted", b"integer"]
    check_delivery(first, sent_ms, delay_ms=200, own=SPRING)
    check_delivery(second, sent_ms, delay_ms=300, own=SPRING)


def test_a_near_miss_is_refused_and_the_log_says_why(
    broker: ApplianceProcess, library: confluent_library.Adapter, topic: str
) -> None:
    library.create(topic)
    secret = ("authorization", b"hunter2")
    (refusal,) = library.try_send(topic, [Sent(b"body", [secret, ("x-delay-ms", b"1000")])])
    assert isinstance(refusal, RefusedError)
    assert refusal.code == KafkaError.INVALID_RECORD
    (line,) = lines(broker, topic)
    assert re.fullmatch(
        rf'refused topic="{topic}" partition=0 record=0 reason=near_miss '
        r'message="x-delay-ms is no delay header: use x-delay, .*" client_id="rdkafka" '
        r"peer=127\.0\.0\.1:\d+",
        line,
    )
    assert b'latermq_delay_refused_total{reason="near_miss"} 1.0' in broker.get("/metrics")[1]


def test_delay_invalid_is_shown_and_changed_like_any_setting(
    broker: ApplianceProcess, library: confluent_library.Adapter, topic: str
) -> None:
    library.create(topic)
    assert library.settings_of(topic)["delay.invalid"] == "refuse"
    library.change_setting(topic, "delay.invalid", "pass")
    assert library.settings_of(topic)["delay.invalid"] == "pass"
    seconds = b"%d" % (now_ms() // 1000 + 60)
    assert send(library, topic, [Sent(b"late", [("x-deliver-at", seconds)])]) == [0]
    with reading(library, topic) as consumer:
        (record,) = receive(consumer, 1)
    assert (record.value, record.headers) == (b"late", (("x-deliver-at", seconds),))
    (line,) = lines(broker, topic)
    assert line.startswith(f'passed topic="{topic}" partition=0 offset=0 records=1 reason=unit ')


def test_a_topic_insists_on_a_delay_or_gives_one(
    broker: ApplianceProcess, library: confluent_library.Adapter, topic: str
) -> None:
    library.create(topic)
    shown = library.settings_of(topic)
    assert (shown["delay.required"], shown["delay.default"]) == ("false", "none")
    library.change_setting(topic, "delay.required", "true")
    (refusal,) = library.try_send(topic, [Sent(b"bare", OUTBOX)])
    assert isinstance(refusal, RefusedError)
    assert refusal.code == KafkaError.INVALID_RECORD
    (line,) = lines(broker, topic)
    assert line.startswith(f'refused topic="{topic}" partition=0 record=0 reason=missing message=')
    assert b'latermq_delay_refused_total{reason="missing"} 1.0' in broker.get("/metrics")[1]
    library.change_setting(topic, "delay.default", "300ms")
    shown = library.settings_of(topic)
    assert (shown["delay.required"], shown["delay.default"]) == ("true", "300ms")
    with reading(library, topic) as consumer:
        sent_ms = now_ms()
        send(library, topic, [Sent(b"bare", OUTBOX)])
        (delayed,) = receive(consumer, 1)
    check_delivery(delayed, sent_ms, delay_ms=300, own=OUTBOX)
