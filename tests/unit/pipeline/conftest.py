"""Commits of the pipeline on a simulated disk; no Spark."""

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'latermq[spark]'")
