"""Tables of a simulated disk."""

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'latermq[spark]'")
