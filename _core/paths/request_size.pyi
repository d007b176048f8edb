KINDS: dict[str, str]
ADVICE: dict[str, str]

def describe_size(size: int, size_max: int) -> str: ...
