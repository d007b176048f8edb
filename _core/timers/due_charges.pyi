from typing import final

@final
class DueCharges:
    def __init__(self) -> None: ...
