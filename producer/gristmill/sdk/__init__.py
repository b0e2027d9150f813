"""What stands behind `gristmill.Client`: the same queue, feeder and daemon as `producer run`, inside a Python program.

::

    client, blocking        the two faces: for asyncio, and for plain code; each call is one hop to the engine
    mpopenai                the face of an older class, over `blocking`
      engine                a thread with an event loop of its own, where everything below runs
        core, jobs          a client's store, daemon and jobs
          home, daemon      the private store and its folder; the process that sends the requests
          shape, stream     requests as people write them -> the lines that a file would have, pulled with back-pressure
          pictures          pictures that are given as objects
          delivery          results out of the store; acked once they are in the caller's hands

Why a thread: the caller's loop may be blocked, busy, closed, or uvloop's, and feeding and collecting must go on all the
same; and a notebook's loop is running already. Nothing is forked: the daemon, the store and the encoders are exec'd.
"""
