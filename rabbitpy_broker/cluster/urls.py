"""URLs that name several servers, which Python's own functions take for a host of an odd name, or refuse."""

from __future__ import annotations

import re
import urllib.parse


def split(url: str) -> tuple[str, urllib.parse.SplitResult]:
    """What stands between `//` and the path, user and servers, and the rest of the URL without it."""
    scheme, _, behind = url.partition("://")
    netloc = re.split(r"[/?#]", behind, maxsplit=1)[0]
    return netloc, urllib.parse.urlsplit(f"{scheme}://{behind[len(netloc) :]}")
