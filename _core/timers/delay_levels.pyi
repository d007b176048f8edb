from typing import final

@final
class DelayLevels: ...
