"""The private store's folder: made, kept while somebody uses it, removed, swept up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gristmill.embedded_server import command
from gristmill.sdk import home as homes
from gristmill.sdk.errors import SetupError
from gristmill.sdk.home import Home


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "gristmill"


def test_a_private_store_is_alone_and_leaves_nothing(state: Path):
    """Two have two folders; each goes with its own, though a job is still in it."""
    one, two = Home.private(), Home.private()
    assert one.folder != two.folder
    assert {p.stat().st_mode & 0o777 for p in state.glob("private-*")} == {0o700}
    socket = Path(one.url.removeprefix("unix://"))
    assert command(socket, "ZADD", "gm:jobs", "1", "a-job") == ":1"
    one.close()
    one.close()
    assert list(state.glob("private-*")) == [two.folder]
    assert command(socket, "PING") == ""
    two.close()
    assert list(state.iterdir()) == []


def test_folders_that_nobody_holds_are_swept_up(state: Path, monkeypatch: pytest.MonkeyPatch):
    """After a crash of the machine; neither one in use, nor one that is just being made."""
    dead = state / "private-dead" / "store"
    dead.mkdir(parents=True)
    (dead / "clients.lock").touch()
    live = Home.private()
    assert dead.exists()  # too young
    monkeypatch.setattr(homes, "_SWEEP_AFTER_S", -1.0)
    third = Home.private()
    assert not dead.parent.exists()
    assert live.folder is not None
    assert live.folder.exists()
    third.close()
    live.close()


def test_without_a_state_folder_it_lies_among_temporary_files(state: Path, tmp_path: Path, monkeypatch):
    """A home that can't be written is no reason to fail; nothing at all that can be written is one."""
    state.parent.write_text("a file in the place of the folder")
    monkeypatch.setattr(homes.tempfile, "gettempdir", lambda: str(tmp_path / "temporary"))
    with pytest.raises(SetupError, match="no folder can be made for the private store"):
        Home.private()
    (tmp_path / "temporary").mkdir()
    home = Home.private()
    assert home.folder is not None
    assert home.folder.parent == tmp_path / "temporary" / f"gristmill-{os.getuid()}"
    home.close()
    assert list(home.folder.parent.iterdir()) == []
