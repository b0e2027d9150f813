"""Encoder processes: real ones, killed, hung and starved."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from tests.support.pictures import opened, quarters, saved, shows_quarters
from tests.support.wait import wait_until

from gristmill.intake import encoder_main, encoder_pool
from gristmill.intake.encoder_pool import EncoderPool
from gristmill.intake.errors import FeedError, PictureError
from gristmill.intake.options import ImageOptions

PLAIN = ImageOptions()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_many_pictures_through_few_processes() -> None:
    """No more processes than the size, niced, and each answer belongs to its question."""
    pool = EncoderPool(2)
    sources = [saved(quarters(40 + i, 30), "TIFF") for i in range(20)]
    done = await asyncio.gather(*(pool.encode(data, PLAIN) for data in sources))
    assert [reply.width for reply in done] == list(range(40, 60))
    assert shows_quarters(opened(done[0].data))
    pids = pool.pids
    assert len(pids) == 2
    assert all(os.getpriority(os.PRIO_PROCESS, pid) >= encoder_main.NICENESS for pid in pids)
    await pool.close()
    await pool.close()
    assert not any(alive(pid) for pid in pids)


async def test_bad_picture_costs_no_process() -> None:
    """A refusal is an answer like any other."""
    pool = EncoderPool(1)
    with pytest.raises(PictureError, match="known format"):
        await pool.encode(b"junk", PLAIN)
    pids = pool.pids
    await pool.encode(saved(quarters(), "BMP"), PLAIN)
    assert pool.pids == pids
    await pool.close()


async def test_killed_encoder_is_replaced_and_its_picture_retried() -> None:
    """One death is forgiven: the picture comes out all the same."""
    pool = EncoderPool(1)
    await pool.encode(saved(quarters(), "BMP"), PLAIN)
    (first,) = pool.pids
    os.kill(first, signal.SIGSTOP)
    asked = asyncio.create_task(pool.encode(saved(quarters(), "BMP"), PLAIN))
    await asyncio.sleep(0)  # let the question be written to the stopped process
    os.kill(first, signal.SIGKILL)
    assert shows_quarters(opened((await asked).data))
    assert pool.pids != [first]
    await pool.close()


async def test_picture_that_ends_two_encoders_is_refused() -> None:
    """A picture that hangs its encoder is given up after the second; the next one is fine."""
    pool = EncoderPool(1, timeout_s=0.0)
    with pytest.raises(PictureError, match="twice"):
        await pool.encode(saved(quarters(), "BMP"), PLAIN)
    assert pool.pids == []
    await pool.close()


async def test_cancelled_question_leaves_no_answer_behind() -> None:
    """The process of a cancelled question is ended, so the next question gets its own answer."""
    pool = EncoderPool(1)
    await pool.encode(saved(quarters(), "BMP"), PLAIN)
    (pid,) = pool.pids
    os.kill(pid, signal.SIGSTOP)
    asked = asyncio.create_task(pool.encode(saved(quarters(100, 100), "BMP"), PLAIN))
    await asyncio.sleep(0.05)  # the question must be under way when it is cancelled
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await wait_until(lambda: not alive(pid), description="the stopped encoder is gone")
    assert (await pool.encode(saved(quarters(50, 50), "BMP"), PLAIN)).width == 50
    await pool.close()


async def test_picture_beyond_the_memory_limit_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Running out of its address space is the picture's end, not the machine's."""
    script = "import gristmill.intake.encoder_main as m; m.ADDRESS_SPACE_BYTES = 400 << 20; m.main()"
    monkeypatch.setattr(encoder_pool, "_ARGV", (encoder_pool._ARGV[0], "-c", script))
    pool = EncoderPool(1)
    with pytest.raises(PictureError, match=r"memory|crashed"):
        await pool.encode(saved(quarters(12_000, 12_000), "PNG", compress_level=1), PLAIN)
    await pool.close()


async def test_encoder_that_does_not_start_is_no_fault_of_the_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken installation must not refuse a million pictures one by one."""
    monkeypatch.setattr(encoder_pool, "_ARGV", (encoder_pool._ARGV[0], "-c", "raise SystemExit(3)"))
    pool = EncoderPool(1)
    with pytest.raises(FeedError, match="exit code 3"):
        await pool.encode(saved(quarters(), "BMP"), PLAIN)
    await pool.close()


async def test_encoder_that_is_killed_while_it_starts_is_started_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two such kills are forgiven; where every process is killed at its start, the setup is at fault."""
    starts = tmp_path / "starts"
    script = f"""
import os, runpy
with open({str(starts)!r}, "a") as file:
    file.write("x")
if os.path.getsize({str(starts)!r}) <= KILLED:
    os.kill(os.getpid(), 9)
runpy.run_module("gristmill.intake.encoder_main", run_name="__main__")
"""
    monkeypatch.setattr(encoder_pool, "_ARGV", (encoder_pool._ARGV[0], "-c", script.replace("KILLED", "2")))
    pool = EncoderPool(1)
    assert shows_quarters(opened((await pool.encode(saved(quarters(), "BMP"), PLAIN)).data))
    assert starts.stat().st_size == 3
    await pool.close()
    starts.unlink()
    monkeypatch.setattr(encoder_pool, "_ARGV", (encoder_pool._ARGV[0], "-c", script.replace("KILLED", "99")))
    with pytest.raises(FeedError, match="exit code -9"):
        await pool.encode(saved(quarters(), "BMP"), PLAIN)
    assert starts.stat().st_size == 3
    await pool.close()


async def test_encoders_end_when_their_parent_is_gone() -> None:
    """The end of stdin ends an encoder by itself."""
    process = await asyncio.create_subprocess_exec(
        *encoder_pool._ARGV, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    process.stdin.close()
    assert await asyncio.wait_for(process.wait(), 20) == 0
