"""A worker: one process, one event loop, one bounded set of slots.

``main`` boots the process, ``mill`` claims and dispatches, ``session`` is one job as this worker sees it, ``attempt``
makes the calls of one request, ``trial`` judges a job's first requests, ``commit`` gathers what goes back, ``keeper``
renews leases, ``payload`` makes bodies, ``lanes`` are the slots, ``roster`` knows the jobs, ``sharing``
says who gets how many slots.
"""
