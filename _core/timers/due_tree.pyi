from typing import final

@final
class DueTree: ...
