class BatchWork:
    is_made: bool
    is_done: bool
    is_split: bool
    def run(self) -> None: ...
