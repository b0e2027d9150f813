"""Reading results without the collector's lease: what is in the store now, in order, left as it is."""

from __future__ import annotations

from collections.abc import AsyncIterator

from gristmill.contract.record import decode
from gristmill.outlet.lines import encode_line
from gristmill.queue.leasequeue import LeaseQueue

_PAGE_BYTES = 8 << 20


async def peek(queue: LeaseQueue) -> AsyncIterator[bytes]:
    """The lines of all results that nobody has collected yet, in the order of the job; acks nothing.

    Results that finish meanwhile may or may not be among them.

    Raises:
        FormatError: a record of another version, or a damaged one.
    """
    after = -1
    while blocks := await queue.read_blocks(_PAGE_BYTES, after=after):
        for block in sorted(blocks):
            for index in sorted(blocks[block]):
                yield encode_line(queue.job, decode(blocks[block][index]))
            after = max(after, block)
