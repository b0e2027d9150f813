"""The contract that producer and daemon share: pure values and wire formats.

Nothing here imports asyncio, redis, aiohttp, os, time or random (import-linter holds it): every module is a function
of its arguments, so both sides can trust the same bytes and the same tables.
"""
