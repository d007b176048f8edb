"""The admin address: health, metrics, what the broker knows, and the cancelling of a timer.

`server` speaks HTTP, `api` answers what is below /api/v1, `openapi` describes it, `status` says
what has to be known for that, and `live` knows it of a running broker. Layer 5.
"""

from appliance.admin.live import LiveStatus
from appliance.admin.server import AdminServer
from appliance.admin.status import StatusSource

__all__ = ["AdminServer", "LiveStatus", "StatusSource"]
