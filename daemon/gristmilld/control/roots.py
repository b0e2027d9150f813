"""Which files the daemon may touch for whoever can write to the store: those beneath its allowed roots, and no others.

A path is judged by where it really lies, all links followed, and used in that form.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


class NotAllowedError(Exception):
    """A path that this daemon may not touch; the sentence says which and what to do."""


class Roots:
    """The allowed roots of one daemon; none allows nothing."""

    def __init__(self, roots: Iterable[str]) -> None:
        self._roots = [Path(root).resolve() for root in roots]

    @property
    def real(self) -> list[str]:
        """The roots, all links followed."""
        return [str(root) for root in self._roots]

    def allow(self, path: str) -> bool:
        """Whether `path` really lies beneath a root; it need not exist."""
        real = Path(os.path.realpath(path))
        return any(real.is_relative_to(root) for root in self._roots)

    def real_path(self, path: str) -> str:
        """Where `path` really lies.

        Raises:
            NotAllowedError: beneath no root.
        """
        real = os.path.realpath(path)
        if not self.allow(real):
            raise NotAllowedError(
                f"{path} lies beneath no folder that this daemon may use: allow one with --allow-root"
            )
        return real
