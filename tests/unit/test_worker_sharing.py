"""Who gets a worker's free slots: strict by priority, by weight inside a class, and never left idle."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmilld.worker.sharing import Share, Sharing


def serve(sharing: Sharing, shares: list[Share], room: int, backlog: dict[str, int]) -> Counter[str]:
    """One turn: every grant is taken as far as the job's backlog goes."""
    taken: Counter[str] = Counter()
    turn = sharing.round(shares, room)
    while grant := turn.offer():
        assert 1 <= grant.slots <= room - taken.total(), "more was granted than there is room for"
        count = min(grant.slots, backlog[grant.job])
        backlog[grant.job] -= count
        taken[grant.job] += count
        turn.took(count)
    return +taken


@pytest.mark.parametrize("rooms", [[1], [16], [1, 7, 2, 300, 5], [1000]], ids=str)
def test_weights_one_and_three_get_one_and_three_of_twenty_thousand(rooms: list[int]):
    """Also when single slots get free; far closer than one in ten."""
    sharing, shares = Sharing(), [Share("a", weight=1), Share("b", weight=3)]
    backlog, taken = {"a": 20_000, "b": 20_000}, Counter[str]()
    turn = 0
    while taken.total() < 20_000:
        taken += serve(sharing, shares, rooms[turn % len(rooms)], backlog)
        turn += 1
    assert abs(taken["a"] - taken.total() / 4) <= 1


def test_a_higher_class_takes_everything_that_it_can_use():
    """What it leaves is the lower one's in the same turn."""
    sharing, shares = Sharing(), [Share("low"), Share("high", priority=1)]
    backlog = {"low": 100, "high": 25}
    assert [serve(sharing, shares, 10, backlog) for _ in range(4)] == [
        {"high": 10}, {"high": 10}, {"high": 5, "low": 5}, {"low": 10},
    ]  # fmt: skip


def test_idleness_is_not_saved_up():
    """A job that had nothing for long gets its share when it has something, and no more; the others owe it nothing."""
    sharing, shares = Sharing(), [Share("a"), Share("b")]
    backlog = {"a": 10_000, "b": 0}
    for _ in range(50):
        assert serve(sharing, shares, 8, backlog) == {"a": 8}
    backlog["b"] = 10_000
    assert serve(sharing, shares, 8, backlog) == {"a": 4, "b": 4}
    assert serve(sharing, shares[:1], 8, backlog) == {"a": 8}  # b is not asked, after an empty claim
    assert serve(sharing, shares, 8, backlog) == {"a": 4, "b": 4}


def test_a_turn_that_was_broken_off_is_not_made_up_for():
    """The store went away between two grants, again and again: afterwards the shares are what they were."""
    sharing, shares = Sharing(), [Share("a", weight=1), Share("b", weight=3)]
    for _ in range(100):
        assert sharing.round(shares, 16).offer() is not None
    backlog, taken = {"a": 20_000, "b": 20_000}, Counter[str]()
    for _ in range(10):
        taken += serve(sharing, shares, 16, backlog)
    assert abs(taken["a"] - 40) <= 2


def test_a_grant_is_answered_before_the_next():
    """Otherwise the books would not be right."""
    turn = Sharing().round([Share("a")], 4)
    with pytest.raises(AssertionError, match="nothing was granted"):
        turn.took(1)
    turn.offer()
    with pytest.raises(AssertionError, match="say first"):
        turn.offer()


@st.composite
def stories(draw: st.DrawFn) -> tuple[list[Share], dict[str, int], list[int]]:
    shares = [Share(f"j{i}", draw(st.integers(0, 2)), draw(st.integers(1, 9))) for i in range(draw(st.integers(1, 6)))]
    backlog = {share.job: draw(st.sampled_from([0, 3, 50, 10**9])) for share in shares}
    return shares, backlog, draw(st.lists(st.integers(1, 70), min_size=1, max_size=40))


@settings(max_examples=300, deadline=None)
@given(stories())
def test_slots_are_never_idle_and_shares_are_kept(story: tuple[list[Share], dict[str, int], list[int]]):
    """In every turn all the room is used or nobody has anything left, a lower class gets only what the higher ones
    leave, and those who never run dry get their share of what their class had, give or take a slot each."""
    shares, backlog, rooms = story
    sharing, taken = Sharing(), Counter[str]()
    for room in rooms:
        before = dict(backlog)
        got = serve(sharing, shares, room, backlog)
        taken += got
        assert got.total() == min(room, sum(before.values())), "a slot was left idle"
        for share in shares:
            if got[share.job]:
                higher = [s.job for s in shares if s.priority > share.priority]
                assert not any(backlog[job] for job in higher), "a lower class was served before a higher one"
    endless = [s for s in shares if backlog[s.job] > 10**8]
    for one in endless:
        for other in endless:
            if one.priority == other.priority:
                apart = taken[one.job] / one.weight - taken[other.job] / other.weight
                assert abs(apart) <= len(shares) + 1
