"""A worker: one process, one event loop, one bounded set of slots.

::

    main                     boots the process
    mill                     claims and dispatches
      roster, sharing        which jobs there are, and who gets how many slots
      session, trial         one job as this worker sees it; the verdict on its first requests
      lanes                  the slots
        running, attempt     one request from its body to its outcome; its calls
        payload, stored      bodies; the pictures in them that lie in the store
        ward, warden, cell   a request that killed workers runs in a process of its own
      commit                 gathers what goes back
    keeper                   renews leases
    notices                  tells other workers of rate limits, and hears of theirs
"""
