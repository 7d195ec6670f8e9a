"""Who sends a request, for `routers`: the page's users by HTTP Basic, or everybody as one where the page is open too.

Knows names and passwords as they were given to the page; sessions of the page are its own.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Sequence

from fastapi import Request

from backend.http.guards import OwnerOf


def login(pairs: Sequence[tuple[str, str]]) -> OwnerOf:
    """Owners by Basic authentication against (user, password) pairs; with none, everybody is the owner "api".

    A user owns the same jobs here and on the page, which calls them "user:NAME".
    """
    if not pairs:
        return lambda request: "api"
    known = dict(pairs)

    def owner(request: Request) -> str | None:
        kind, _, code = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "basic":
            return None
        try:
            name, _, password = base64.b64decode(code, validate=True).decode("utf-8").partition(":")
        except (binascii.Error, ValueError):
            return None
        right = hmac.compare_digest(password.encode(), known.get(name, "").encode())
        return f"user:{name}" if right and name in known else None

    return owner
