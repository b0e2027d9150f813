"""The fingerprint: which request this is, whatever its line number, endpoint or key.

128 bits of blake2b over the URL path and the canonical (sorted) JSON of the final body. A picture stands in it by the
hash of its *source* bytes (`gristmill.contract.digest`) and the picture options, so neither moving a file nor a newer
encoder makes a new request, and a rerun knows what is done without encoding a picture.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from gristmill.intake.draft import Draft
from gristmill.intake.options import ImageOptions

FINGERPRINT_BYTES = 16
_canonical = msgspec.json.Encoder(order="sorted")


def of_body(path: str, body: dict[str, Any]) -> bytes:
    """The fingerprint of a request without pictures (or with each replaced by its hash)."""
    whole = b"%b\0%b" % (path.encode(), _canonical.encode(body))
    return hashlib.blake2b(whole, digest_size=FINGERPRINT_BYTES).digest()


def of_draft(draft: Draft, digests: list[str], options: ImageOptions) -> bytes:
    """The fingerprint of a request with pictures; `digests` are their hashes in the order of `draft.pictures`.

    The pictures' URLs in the body are overwritten.
    """
    shape = f"{options.max_pixels},{options.max_bytes},{options.quality},{options.allow_truncated:d}"
    for picture, digest in zip(draft.pictures, digests, strict=True):
        picture.holder[picture.key] = f"blake3:{digest};{shape}"
    return of_body(draft.path, draft.body)


def of_line(data: bytes) -> bytes:
    """What stands for a line that could not be made into a request."""
    return hashlib.blake2b(data, digest_size=FINGERPRINT_BYTES, person=b"refused").digest()
