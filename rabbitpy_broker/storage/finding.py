"""A finding: something that a reader of a store saw, and that is not as a clean stop leaves it."""

from __future__ import annotations

from mypy_extensions import i64


class Finding:
    """Of one file or folder; `offset` is -1 where it concerns the whole. A crash may leave findings that are no damage."""

    def __init__(self, path: str, offset: i64, text: str, is_damage: bool) -> None:
        self.path = path
        self.offset = offset
        self.text = text
        self.is_damage = is_damage
