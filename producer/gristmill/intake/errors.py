"""What intake can refuse: the whole input, one line, or one picture.

::

    Exception
    ├── InputError      the input as a whole: exit code 2; nothing more is read
    ├── FeedError       the feeder cannot go on with this job: exit code 1
    └── PictureError    one picture: its request becomes a `bad_image` refusal

A bad *line* is no exception but a value, `gristmill.intake.draft.Refused`: bad lines are ordinary.
"""

from __future__ import annotations


class InputError(Exception):
    """The input cannot be used as it is; the message says where and how to mend it."""


class FeedError(Exception):
    """The job can't be fed from here (another feeder, a lost lease, a removed job); the message says which."""


class PictureError(Exception):
    """One picture cannot be sent.

    Attributes:
        reason: what is wrong with it, a clause without the picture's name, e.g. ``the PNG is truncated``.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
