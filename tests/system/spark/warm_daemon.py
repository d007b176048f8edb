"""What Spark forks its Python processes off, with the modules loaded that each of them needs.

A process that ends with an error is not used again, and importing takes most of what the next one
does.
"""

import pyarrow  # noqa: F401
from pyspark import daemon

import compat.pipeline.job
import compat.spark.source  # noqa: F401

if __name__ == "__main__":
    daemon.manager()
