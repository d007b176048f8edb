class BatchWork:
    is_made: bool
    is_done: bool
    def run(self) -> None: ...
