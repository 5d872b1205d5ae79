"""Rendered prompts that remember the dataset row they come from."""

from __future__ import annotations


class RowPrompt(str):
    """The prompt text as the model reads it; a string in every respect, with the identity of its row beside it.

    Two rows may have the same text: groups and evaluation are keyed by ``row_id``, never by the text.
    """

    __slots__ = ("row_id",)
    row_id: str

    def __new__(cls, text: str, row_id: str) -> RowPrompt:
        """``text`` as a string that carries ``row_id``."""
        prompt = super().__new__(cls, text)
        prompt.row_id = row_id
        return prompt

    def __getnewargs__(self) -> tuple[str, str]:
        return (str(self), self.row_id)
