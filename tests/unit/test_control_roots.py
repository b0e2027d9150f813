"""Allowed roots: a path counts by where it really lies."""

from __future__ import annotations

from pathlib import Path

import pytest

from gristmill.intake.errors import PictureError
from gristmill.intake.picture_source import confine
from gristmilld.control.roots import NotAllowedError, Roots


def test_only_what_lies_beneath_a_root_is_allowed(tmp_path: Path):
    """Neither a sibling with the same beginning, nor dots, nor a link, leads out; a link that stays inside is fine."""
    inside, sibling = tmp_path / "data", tmp_path / "data-secret"
    inside.mkdir()
    sibling.mkdir()
    (inside / "real").mkdir()
    (inside / "out").symlink_to(sibling)
    (inside / "in").symlink_to(inside / "real")
    roots = Roots([str(inside)])
    assert roots.allow(str(inside / "new" / "file"))
    assert roots.real_path(str(inside / "in" / "f")) == str(inside / "real" / "f")
    for path in (sibling / "f", inside / ".." / "data-secret" / "f", inside / "out" / "f"):
        assert not roots.allow(str(path))
        with pytest.raises(NotAllowedError, match="--allow-root"):
            roots.real_path(str(path))


def test_no_roots_allow_nothing(tmp_path: Path):
    """That is the default of a daemon."""
    assert not Roots([]).allow(str(tmp_path))


def test_a_root_may_be_a_link_itself(tmp_path: Path):
    """What counts on both sides is where it leads."""
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    assert Roots([str(tmp_path / "link")]).allow(str(real / "f"))


def test_pictures_are_confined_in_the_same_way(tmp_path: Path):
    """An input beneath a root must not name pictures elsewhere."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "out").symlink_to(tmp_path)
    root = [str(tmp_path / "a")]
    assert confine(str(tmp_path / "a" / "p.png"), root) == str(tmp_path / "a" / "p.png")
    for path in (tmp_path / "p.png", tmp_path / "a" / ".." / "p.png", tmp_path / "a" / "out" / "p.png"):
        with pytest.raises(PictureError, match="no folder that the daemon may read"):
            confine(str(path), root)
