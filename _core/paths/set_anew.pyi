class SetAnew:
    count: int
