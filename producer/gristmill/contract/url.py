"""Base URLs of model servers: many spellings, one meaning.

People paste what they have at hand: the server's root, its ``/v1``, or the full path of one call. All of
``http://h:8000``, ``http://h:8000/``, ``.../v1``, ``.../v1/`` and ``.../v1/chat/completions`` name the base
``http://h:8000/v1``, to which a request's path (``/chat/completions``) is appended. A path of another kind, such as
``/api/v1`` or ``/v1beta/openai``, is kept as it is. Normalising twice changes nothing.
"""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

DEFAULT_PATH = "/v1"
_CALLS = ("/chat/completions", "/completions", "/embeddings", "/responses", "/models")
_LIKE = "write it like http://localhost:8000/v1"
_PORTS = {"http": 80, "https": 443}


def normalise_base_url(text: str) -> str:
    """The base URL that `text` means.

    Raises:
        ValueError: one sentence that names what is wrong; the text is not repeated, for it may be a key or hold one.
    """
    parts = _split(text.strip())
    return f"{parts.scheme}://{_authority(parts)}{_base_path(parts.path)}"


def _split(text: str) -> SplitResult:
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        raise ValueError(f"an endpoint's URL is malformed: {_LIKE}") from None
    if any(c.isspace() or not c.isprintable() for c in text):
        raise ValueError(f"an endpoint's URL holds a space or a control character: {_LIKE}")
    if "@" in parts.netloc:
        raise ValueError(f"the endpoint URL of {parts.hostname} holds a user or password: give the key by environment")
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"an endpoint's URL starts with http:// or https:// and names a host: {_LIKE}")
    if parts.query or parts.fragment:
        raise ValueError(f"the endpoint URL of {parts.hostname} holds a query or fragment: give the base URL alone")
    return parts


def _authority(parts: SplitResult) -> str:
    host = parts.hostname or ""
    if ":" in host:
        host = f"[{host}]"
    return host if parts.port in {None, _PORTS[parts.scheme]} else f"{host}:{parts.port}"


def _base_path(path: str) -> str:
    path = path.rstrip("/")
    for call in _CALLS:
        if path.endswith(call):
            path = path.removesuffix(call).rstrip("/")
            break
    return path or DEFAULT_PATH
