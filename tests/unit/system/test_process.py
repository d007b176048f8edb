"""The priorities of the threads of a process."""

import subprocess
import sys

PRIORITIES = """
import os, threading
from appliance.system.process import YIELD_NICE, set_priority, yield_to_others
begin = os.getpriority(os.PRIO_PROCESS, 0)
end = threading.Event()

def thread(first=lambda: None):
    ready = threading.Event()
    def run():
        first()
        ready.set()
        end.wait()
    started = threading.Thread(target=run)
    started.start()
    ready.wait()
    return started.native_id

early, yields_early = thread(), thread(yield_to_others)
assert set_priority(begin + 2)
late, yields_late = thread(), thread(yield_to_others)
found = [os.getpriority(os.PRIO_PROCESS, each)
         for each in (0, early, yields_early, late, yields_late)]
end.set()
# The tests may run at a low priority themselves; 19 is the lowest.
lower = [2, 2, YIELD_NICE, 2, 2 + YIELD_NICE]
assert found == [min(19, begin + each) for each in lower], found
assert set_priority(begin + 2)
print("as expected")
"""


def test_the_priority_is_that_of_all_threads_but_those_that_yield() -> None:
    # Not here: who lowers a priority may have no right to raise it again.
    run = [sys.executable, "-c", PRIORITIES]
    assert subprocess.check_output(run, text=True) == "as expected\n"
