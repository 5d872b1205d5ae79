"""A watcher of the benchmarks for tests."""


class KeepsSaid:
    """Keeps what it is told, which is what went wrong."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def begin(self, label: str) -> None: ...

    def done(self, label: str, seconds: float | None) -> None: ...

    def say(self, text: str) -> None:
        self.said.append(text)
