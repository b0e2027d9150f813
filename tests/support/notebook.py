"""Cells in a real notebook kernel, by a program that plays the notebook."""

from __future__ import annotations

from pathlib import Path

from tests.support.programs import Program

_NOTEBOOK = """
import sys, warnings
warnings.simplefilter("default")  # jupyter's own
from jupyter_client.manager import start_new_kernel

URL = sys.argv[1]
manager, client = start_new_kernel(kernel_name="python3")

def hear(message):
    content = message["content"]
    for line in (content.get("text") or "\\n".join(content.get("traceback", []))).splitlines():
        print(content.get("name", "error"), line.strip(), flush=True)
        if line.strip() == "press stop":
            manager.interrupt_kernel()

def run(cell):
    reply = client.execute_interactive(cell.replace("URL", repr(URL)), timeout=300, output_hook=hear)
    print("cell", reply["content"]["status"], flush=True)

try:
    for cell in CELLS:
        run(cell)
finally:
    client.stop_channels()
    manager.shutdown_kernel()
"""


def notebook(folder: Path, url: str, *cells: str) -> Program:
    """A program that runs `cells` in a kernel, one after the other; `URL` in them becomes `url`.

    It says ``cell ok`` or ``cell error`` after each, and each line that a cell prints after the stream's name. When a
    cell prints ``press stop``, its stop button is pressed. Jupyter's files, those it would read, too, lie in `folder`.
    """
    own = {name: str(folder / name) for name in ("IPYTHONDIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR")}
    source = f"CELLS = {list(cells)!r}\n{_NOTEBOOK}"
    return Program(folder, source, url, JUPYTER_PREFER_ENV_PATH="1", JUPYTER_CONFIG_DIR=str(folder), **own)
