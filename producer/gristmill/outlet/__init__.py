"""From records in the store to one line per request in OUT.

What is durable, and when
-------------------------
A result lives in the store until it is *acked*; it is acked only once its line lies fsynced in ``OUT.gm/`` (`ledger`).
So at any moment, whatever is killed, each result lies in the store, in ``OUT.gm/``, or in both, and a line that is met
twice is recognised by its ordinal. OUT itself is derived: on a fresh run it grows in the order of the input, over an
old OUT the new one is written beside it and takes its place by a rename. ``OUT.gm/`` goes when OUT has been proved
whole.

``workdir``    the folder, its lock, and which job it belongs to
``segments``   finished lines and the journal of what is durable
``ledger``     the durable set of the current job, by ordinal
``lines``      record -> line, and back
``finished``   which lines of earlier runs are still good: the feeder's plan; ``carried`` and ``unused`` keep them
``collector``  store -> ledger -> ack
``assemble``   ledger and earlier lines -> OUT
``overlay``    good answers of a retry -> OUT, in the places of the failures
``proof``      total = ok + failed + not run, by three counts
``summary``    what is told at the end
"""
