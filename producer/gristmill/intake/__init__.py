"""Input files into sealed requests: read, normalise, fetch and encode pictures, fingerprint, feed.

::

    readers, source, selection      lines of INPUT, which of them, and is it still the same file
    json_array, zstd_stream         what is no plain file of lines
    normalise, conversations        one line -> draft or refusal
    duplicates, lines_seen          ids that occur twice; what is told of lines
    picture_source, structure,      pictures: read, looked at, passed through or encoded by expendable processes
      pictures, at_once, hot,
      encoder_pool, encoder_main,
      images
    fingerprint, encode             draft -> frame
    pipeline                        all of the above in input order, working ahead within bounds
    runs, feeder_store, feeder      frames -> runs in the queue, resumable
    feed_spec, feed_main            the feeder as a process
    check, skipped, failed          the same without a store: what would be sent, was left out, has failed

Nothing is imported here: the command line starts fast, and the encoder processes load only what they need.
"""
