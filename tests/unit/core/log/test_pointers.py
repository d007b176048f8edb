"""The pointers of the log: no order of write and flush but the right one is taken."""

import pytest

from _core.log.pointers import Pointers


@pytest.fixture(params=[True, False], ids=["sync", "async"])
def pointers(request: pytest.FixtureRequest) -> Pointers:
    """wrote 300, committed 200, flushed 100."""
    found = Pointers(0, sync_flush=request.param)
    found.advance_wrote(300)
    found.advance_committed(200)
    found.advance_flushed(100)
    return found


def state(pointers: Pointers) -> tuple[int, int, int]:
    return pointers.wrote, pointers.committed, pointers.flushed


def test_everything_before_the_start_is_on_the_disk() -> None:
    pointers = Pointers(4_096, sync_flush=True)
    assert state(pointers) == (4_096, 4_096, 4_096)
    assert pointers.visible == 4_096


def test_visible_is_what_the_flush_mode_allows(pointers: Pointers) -> None:
    assert pointers.visible == (100 if pointers.sync_flush else 200)
    pointers.advance_flushed(200)
    assert pointers.visible == 200


def test_each_may_catch_up_with_the_one_before_it(pointers: Pointers) -> None:
    pointers.advance_committed(300)
    pointers.advance_flushed(300)
    pointers.advance_flushed(300)
    assert state(pointers) == (300, 300, 300)


@pytest.mark.parametrize(
    ("name", "pos"),
    [
        ("wrote", 299),  # I2
        ("committed", 199),
        ("flushed", 99),
        ("committed", 301),  # I1: not encoded yet
        ("flushed", 201),  # I1: not written yet
    ],
)
def test_a_move_that_breaks_an_invariant_is_refused(
    pointers: Pointers, name: str, pos: int
) -> None:
    before = state(pointers)
    with pytest.raises(AssertionError):
        getattr(pointers, f"advance_{name}")(pos)
    assert state(pointers) == before


def test_a_log_does_not_begin_before_its_beginning() -> None:
    with pytest.raises(AssertionError):
        Pointers(-1, sync_flush=True)


@pytest.mark.parametrize("name", ["wrote", "committed", "flushed", "visible"])
def test_pointers_move_by_their_verbs_alone(pointers: Pointers, name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(pointers, name, 1_000)


def test_nothing_is_visible_that_the_slave_lacks() -> None:
    pointers = Pointers(0, sync_flush=True)
    pointers.advance_wrote(100)
    pointers.advance_committed(100)
    pointers.advance_flushed(60)
    pointers.need_replica()
    pointers.advance_flushed(100)
    assert pointers.visible == 60, "what was visible stays so"
    pointers.advance_replicated(40)
    assert pointers.visible == 60
    pointers.advance_replicated(80)
    pointers.need_replica()
    assert pointers.visible == 80
    pointers.advance_replicated(1_000)
    assert pointers.visible == 100, "what is not flushed here is not visible, whoever has it"
    pointers.release_replica()
    assert pointers.visible == 100
