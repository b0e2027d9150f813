"""Gristmill: exactly one result per request, whatever dies on the way.

``import gristmill`` is cheap: no event loop, no Redis connection, no imaging library is loaded until used.
"""

from gristmill._version import __version__

__all__ = ["__version__"]
