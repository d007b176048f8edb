"""The admin address: health, metrics, broker status, and cancelling timers.

`server` speaks HTTP, `api` handles the paths below /api/v1, `openapi` describes them, `status` is
the interface to the data that they need, and `live` implements it for a running broker. Layer 5.
"""

# These load what it shares with it; without ssl, they would be without it for good.
import asyncio  # noqa: F401
import urllib.request  # noqa: F401

from appliance.system.process import without_modules

with without_modules("ssl"):
    # aiohttp's client reads all certificates of the system when it is imported, for a twelfth of a
    # second. Only its server is used, which has no TLS here.
    import aiohttp  # noqa: F401

from appliance.admin.live import LiveStatus
from appliance.admin.server import AdminServer
from appliance.admin.status import StatusSource

__all__ = ["AdminServer", "LiveStatus", "StatusSource"]
