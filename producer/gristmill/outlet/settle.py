"""Going on with a job in the work folder of its OUT, or beginning one: for whoever collects a job that others made."""

from __future__ import annotations

from gristmill.outlet.adopt import adopt
from gristmill.outlet.errors import OutRefusedError
from gristmill.outlet.workdir import Work


def settle_in(work: Work, job: str, *, epoch: str, store: str) -> None:
    """Open the generation of this job in the work folder, or begin one; lines of it in OUT are taken over.

    Raises:
        OutRefusedError: the folder belongs to another job whose lines would be lost, or OUT holds another's.
        DiskError: a file cannot be read or written.
    """
    previous = work.previous
    if previous is None or work.overwrite:
        work.begin(job, epoch=epoch, store=store)
    elif (previous.job, previous.epoch) == (job, epoch):
        work.resume()
    else:
        raise OutRefusedError(
            work.folder,
            f"{work.folder} has unfinished work of job {previous.job}: finish that first, name another file, "
            "or say --overwrite",
        )
    adopt(work)  # also after a resume: an earlier collector may have been killed in the middle of it
