"""`producer submit` with its imports done before: `python -m bench.clients.submit MODULES MARK -- SUBMIT_ARGUMENTS...`.

The command imports its modules where it needs them. To tell its work from its imports, this imports the same modules
first, then writes to MARK when it had them (`ready_s`, wall clock) and how long they took (`imports_s`, from the start
of this interpreter's main module), and goes on as `producer`. Which modules these are, a run before has written to
MODULES at its end; without that file nothing is imported before.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import sys
import time
from pathlib import Path


def import_all(names: list[str]) -> None:
    for name in names:
        with contextlib.suppress(ImportError):  # some exist only once their parent has put them there
            importlib.import_module(name)


def main() -> None:
    modules, mark = Path(sys.argv[1]), Path(sys.argv[2])
    sys.argv = ["producer", "submit", *sys.argv[4:]]
    began_s = time.monotonic()
    if modules.exists():
        import_all(json.loads(modules.read_text(encoding="utf-8")))
    else:
        atexit.register(lambda: modules.write_text(json.dumps(list(sys.modules)), encoding="utf-8"))
    command = importlib.import_module("gristmill.cli").main
    mark.write_text(json.dumps({"ready_s": time.time(), "imports_s": time.monotonic() - began_s}), encoding="utf-8")
    command()


if __name__ == "__main__":
    main()
