"""Pictures of the store: fetched together, fetched ahead, kept for a while, and lost without harm."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from gristmill.queue import LeaseQueue
from gristmilld.worker import stored as stored_module
from gristmilld.worker.stored import PayloadGoneError, StoredPictures


class Store:
    """Stands for a queue; each picture's bytes are its digest."""

    job = "j"

    def __init__(self) -> None:
        self.trips: list[tuple[int, list[str]]] = []
        self.fails: Exception | None = None
        self.lost: set[str] = set()
        self.asked = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()

    async def fetch_images(self, run: int, digests: Sequence[str]) -> list[bytes | None]:
        self.trips.append((run, list(digests)))
        self.asked.set()
        await self.open.wait()
        if self.fails is not None:
            raise self.fails
        return [None if digest in self.lost else digest.encode() for digest in digests]


class Pictures(StoredPictures):
    """With a store of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.store = Store()

    @property
    def queue(self) -> LeaseQueue:
        return cast("LeaseQueue", self.store)

    async def all(self, run: int, *digests: str) -> list[Any]:
        return await asyncio.gather(*(self.get(self.queue, run, d) for d in digests), return_exceptions=True)


@pytest.fixture
async def pictures() -> Pictures:
    return Pictures()


async def test_what_is_wanted_in_one_turn_comes_in_one_trip(pictures: Pictures) -> None:
    """One for each run; a picture that is wanted twice, or was had before, is not fetched again."""
    assert await pictures.all(0, "a", "b", "a") == [b"a", b"b", b"a"]
    assert await pictures.all(0, "b", "c") == [b"b", b"c"]
    await asyncio.gather(pictures.all(1, "a"), pictures.all(2, "a"))
    assert pictures.store.trips == [(0, ["a", "b"]), (0, ["c"]), (1, ["a"]), (2, ["a"])]


async def test_what_is_expected_comes_along(pictures: Pictures) -> None:
    """Of the same run alone; when it is wanted it is there, or on its way."""
    for digest in ("a", "b", "c"):
        pictures.expect(pictures.queue, 0, digest, 10)
    pictures.expect(pictures.queue, 1, "z", 10)
    pictures.store.open.clear()
    first = asyncio.ensure_future(pictures.all(0, "a"))
    await pictures.store.asked.wait()
    second = asyncio.ensure_future(pictures.all(0, "b"))
    await asyncio.sleep(0)  # let it find that its picture is on its way
    pictures.store.open.set()
    assert (await first, await second, await pictures.all(0, "c")) == ([b"a"], [b"b"], [b"c"])
    assert [(run, sorted(digests)) for run, digests in pictures.store.trips] == [(0, ["a", "b", "c"])]


async def test_what_comes_along_is_bounded(pictures: Pictures, monkeypatch: pytest.MonkeyPatch) -> None:
    """By bytes for a trip, the rest comes with later ones; and by runs, so that nothing is remembered for ever."""
    monkeypatch.setattr(stored_module, "ALONG_BYTES", 25)
    for i in range(5):
        pictures.expect(pictures.queue, 0, f"e{i}", 10)
    await pictures.all(0, "a")
    await pictures.all(0, "b")
    assert [len(digests) for _, digests in pictures.store.trips] == [3, 3]
    for run in range(1, 1000):
        pictures.expect(pictures.queue, run, "x", 10)
    assert len(pictures._expected) <= 64


async def test_kept_pictures_are_bounded(pictures: Pictures, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those used last are kept, up to a number of bytes."""
    monkeypatch.setattr(stored_module, "CACHE_BYTES", 2)
    await pictures.all(0, "a", "b")
    await pictures.all(0, "a")
    await pictures.all(0, "c")
    await pictures.all(0, "a", "b")
    assert pictures.store.trips == [(0, ["a", "b"]), (0, ["c"]), (0, ["b"])]


async def test_a_failed_trip_fails_those_who_wait_and_nobody_later(pictures: Pictures) -> None:
    """Each waiter gets the error; the next one asks again. A lost picture fails its own request alone."""
    pictures.expect(pictures.queue, 0, "b", 10)
    pictures.store.fails = ConnectionError("away")
    assert [type(found) for found in await pictures.all(0, "a")] == [ConnectionError]
    pictures.store.fails, pictures.store.lost = None, {"b"}
    found = await pictures.all(0, "a", "b")
    assert found[0] == b"a"
    assert isinstance(found[1], PayloadGoneError)


async def test_a_waiter_that_leaves_takes_nothing_away(pictures: Pictures) -> None:
    """Another one that waits for the same picture gets it."""
    pictures.store.open.clear()
    leaver, other = (asyncio.ensure_future(pictures.get(pictures.queue, 0, "a")) for _ in range(2))
    await pictures.store.asked.wait()
    leaver.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaver
    pictures.store.open.set()
    assert await other == b"a"
