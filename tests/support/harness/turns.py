"""The later slices of long answers, for a broker without an event loop."""

from collections import deque

from compat.kafka.protocol.slices import SlicedAnswer


class Turns:
    """Does the slices of answers in turn: at once, or when the test says so.

    Attributes:
        is_held: slices wait until `do_one` or `do_all`.
        slice_count: slices done so far.
    """

    def __init__(self) -> None:
        self.is_held = False
        self.slice_count = 0
        self._answers: deque[SlicedAnswer] = deque()
        self._is_running = False

    def __call__(self, answer: SlicedAnswer) -> None:
        """Do a slice of an answer when it comes to it."""
        self._answers.append(answer)
        if not self.is_held and not self._is_running:
            self.do_all()

    def do_one(self) -> bool:
        """Do one slice; return whether there was one to do."""
        if not self._answers:
            return False
        self.slice_count += 1
        self._answers.popleft().step()
        return True

    def do_all(self) -> None:
        """Do slices until all answers are complete, or wait for something else."""
        self._is_running = True
        try:
            while self.do_one():
                pass
        finally:
            self._is_running = False
