"""PURE: how long the stand-in takes for an answer: a fixed time, or drawn from a distribution.

``0.4`` is always 0.4 s; ``uniform:A:B`` lies between A and B; ``exp:MEAN`` is exponential; ``lognormal:MEDIAN:SIGMA``
has the long tail of generated text, as ``lognormal:0.4:0.7``. All in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable

Draw = Callable[[float], float]
"""From a uniform number in (0, 1) to seconds."""

SHAPES = "0.4, uniform:0.1:2, exp:0.5 or lognormal:0.4:0.7"


def parse_latency(text: str | float) -> Draw | None:
    """The distribution that `text` names; None for no wait at all.

    Raises:
        ValueError: it names none; the message shows the shapes.
    """
    name, *numbers = str(text).split(":")
    try:
        values = [float(n) for n in numbers] if numbers else [float(name)]
    except ValueError:
        values = []
    if not values or any(v < 0 or not math.isfinite(v) for v in values):
        raise ValueError(f"a latency is seconds or a distribution of them, such as {SHAPES}, not {text!r}")
    match (name if numbers else "fixed"), values:
        case "fixed", [seconds]:
            return (lambda _: seconds) if seconds else None
        case "uniform", [low, high]:
            return lambda u: low + u * (high - low)
        case "exp", [mean]:
            return lambda u: -mean * math.log1p(-u)
        case "lognormal", [median, sigma]:
            return lambda u: median * math.exp(sigma * _normal(u))
    raise ValueError(f"a latency is seconds or a distribution of them, such as {SHAPES}, not {text!r}")


def _normal(u: float) -> float:
    """The standard normal quantile of `u`, by Winitzki's approximation of the error function (to about 1 %)."""
    x = min(max(2 * u - 1, -0.999999), 0.999999)
    log = math.log1p(-x * x)
    a = 0.147
    left = 2 / (math.pi * a) + log / 2
    return math.copysign(math.sqrt(2) * math.sqrt(math.sqrt(left * left - log / a) - left), x)
