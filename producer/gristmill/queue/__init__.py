"""The lease queue: requests leased per index, records kept first-wins, on Redis >= 7.0 or Valkey.

`leasequeue.LeaseQueue` is one job; `registry` the jobs and daemons of a store; `store` the connection. The Lua
scripts that carry every change are files under ``scripts/``, each with its contract at its head.
"""

from gristmill.queue.errors import JobExistsError, JobNotFoundError, QueueError, StoreError, StoreFullError
from gristmill.queue.leasequeue import LeaseQueue

__all__ = ["JobExistsError", "JobNotFoundError", "LeaseQueue", "QueueError", "StoreError", "StoreFullError"]
