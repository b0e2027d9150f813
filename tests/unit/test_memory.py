"""What processes ask of their memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOOKS = """
import gc
from gristmill.memory import look_rarely_for_cycles
{call}
looks = []
gc.callbacks.append(lambda phase, info: looks.append(phase))
living = [[] for _ in range(10_000)]
print(len(looks))
"""


@pytest.mark.parametrize(("call", "looked"), [("look_rarely_for_cycles()", False), ("", True)])
def test_python_looks_for_cycles_only_when_very_many_objects_live(call: str, looked: bool):
    """As many objects as are under way in a worker make it look not once, in place of a dozen times."""
    code = LOOKS.format(call=call)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (int(done.stdout) > 0) is looked
