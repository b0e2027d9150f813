"""Every example of the documents runs as it stands, against the stand-in."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from tests.support.programs import ROOT, Program
from tests.support.standin import StandinProcess

LOCAL = "http://localhost:8000"
DOCUMENTS = ("README.md", "docs/sdk.md", "docs/migrating.md")


def snippets() -> list[tuple[str, str]]:
    found = []
    for name in DOCUMENTS:
        text = (ROOT / name).read_text(encoding="utf-8")
        blocks = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        found += [(f"{Path(name).name}-{at}", block) for at, block in enumerate(blocks)]
    return found


def test_the_documents_have_examples():
    """A change of their form must not take the tests below away unseen."""
    assert {name.partition("-")[0] for name, _ in snippets()} == {"README.md", "sdk.md", "migrating.md"}


@pytest.fixture(scope="module")
def standin():
    with StandinProcess() as process:
        yield process


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "examples/photos", tmp_path / "photos")
    lines = [{"custom_id": f"c{n}", "url": "/v1/chat/completions", "method": "POST",
              "body": {"messages": [{"role": "user", "content": str(n)}]}} for n in range(5)]  # fmt: skip
    for name in ("prompts.jsonl", "batch.jsonl"):
        (tmp_path / name).write_text("\n".join(map(json.dumps, lines)))
    return tmp_path


@pytest.mark.parametrize("source", [block for _, block in snippets()], ids=[name for name, _ in snippets()])
def test_an_example_of_a_document_runs(source: str, folder: Path, standin: StandinProcess):
    """It ends well, without a warning, and leaves nothing; only the server's address is changed."""
    root = standin.root
    source = source.replace(LOCAL, root).replace('"http://localhost", port=8000', '"{}", port={}'.format(
        *root.rsplit(":", 1)
    ))  # fmt: skip
    assert "localhost" not in source
    with Program(folder, source) as program:
        assert program.wait() == 0, program.said
        assert "Traceback" not in program.said
        assert "Failed to obtain" not in program.said
        assert program.left() == []
