"""A stand-in for an OpenAI-compatible model server: real HTTP, real decoding, no model.

It answers with what it saw (see `content`), so an end-to-end test can tell whether the right text and the right picture
reached the right request the right way up; and it misbehaves on demand (see `faults`). It is honest about itself: its
one model is called ``standin``.
"""

from gristmilld.engine.standin.command import standin_command

__all__ = ["standin_command"]
