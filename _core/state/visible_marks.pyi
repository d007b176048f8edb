from typing import final

@final
class VisibleMarks: ...
