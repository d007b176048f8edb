from typing import final

@final
class HeldTimers: ...
