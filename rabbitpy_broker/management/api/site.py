"""The pages for browsers: the files in `management/www`, read once, and sent with names that change with their content.

index.html is the one file that is changed: whatever it and its import map name gets `?v=HASH`, and the map gets an entry for
each module, so that modules which name each other are fetched by content, too. A browser keeps for ever what it has fetched
with its hash; anything else it asks for again, and hears that nothing has changed.

What must stay true: nothing is sent but these files; no script runs in the browser but theirs and the import map.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath
from typing import Final

INDEX: Final = "index.html"
HASH_LETTERS: Final = 16
COMPRESS_FROM_BYTES: Final = 1_024
KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".txt": "text/plain; charset=utf-8",
}
MODULES: Final = (".js", ".mjs")
IMPORT_MAP: Final = re.compile(r'(<script type="importmap">)(.*?)(</script>)', re.DOTALL)
LINK: Final = re.compile(r'\b(href|src)="(?:\./)?([^":?#]+)"')
SECURITY: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
POLICY: Final = (
    "default-src 'self'; script-src 'self'{scripts}; style-src 'self'; img-src 'self' data:; object-src 'none'; "
    "base-uri 'none'; frame-ancestors 'none'; form-action 'self'"
)


class File:
    """One file as it is sent."""

    def __init__(self, path: str, content: bytes, policy: str = "") -> None:
        self.content = content
        self.kind = KINDS.get(PurePosixPath(path).suffix, "application/octet-stream")
        self.hash = _hash(content)
        self.policy = policy or POLICY.format(scripts="")
        self._compressed: bytes | None = None

    def headers(self, version: str | None) -> dict[str, str]:
        """For a request with `?v=VERSION`."""
        lasting = version == self.hash
        return {
            **SECURITY,
            "Content-Type": self.kind,
            "Content-Security-Policy": self.policy,
            "Cache-Control": "public, max-age=31536000, immutable" if lasting else "no-cache",
            "ETag": f'"{self.hash}"',
            "Vary": "accept-encoding",
        }

    def is_known(self, if_none_match: str) -> bool:
        """Whether the browser has it already."""
        return self.hash in [tag.strip().removeprefix("W/").strip('"') for tag in if_none_match.split(",")]

    def compressed(self) -> bytes | None:
        """None where that is not worth it."""
        if len(self.content) < COMPRESS_FROM_BYTES or self.kind.startswith("image/png"):
            return None
        if self._compressed is None:
            self._compressed = gzip.compress(self.content, mtime=0)
        return self._compressed


class Site:
    """`find` gives a file by its path below `/`; the path "" is index.html."""

    def __init__(self, contents: Mapping[str, bytes]) -> None:
        self._files = {path: File(path, content) for path, content in contents.items() if path != INDEX}
        index = contents.get(INDEX)
        if index is not None:
            self._files[""] = self._files[INDEX] = self._index(index.decode())

    def find(self, path: str) -> File | None:
        return self._files.get(path)

    def _index(self, page: str) -> File:
        hashes = {path: file.hash for path, file in self._files.items()}

        def versioned(match: re.Match[str]) -> str:
            path = match[2]
            return f'{match[1]}="{path}?v={hashes[path]}"' if path in hashes else match[0]

        page = LINK.sub(versioned, page)
        scripts = ""
        found = IMPORT_MAP.search(page)
        if found is not None:
            text = _import_map(found[2], hashes)
            page = f"{page[: found.start(2)]}{text}{page[found.end(2) :]}"
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            scripts = f" 'sha256-{digest}'"
        return File(INDEX, page.encode(), POLICY.format(scripts=scripts))


def _import_map(text: str, hashes: Mapping[str, str]) -> str:
    """The map with the hash of whatever it leads to, and an entry for each module."""
    given: dict[str, str] = json.loads(text)["imports"]
    imports = {f"./{path}": f"./{path}?v={digest}" for path, digest in hashes.items() if path.endswith(MODULES)}
    imports |= {name: imports.get(target, target) for name, target in given.items()}
    return json.dumps({"imports": imports}, separators=(",", ":")).replace("<", "\\u003c")


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:HASH_LETTERS]


def read_site() -> Site | None:
    """The pages that the package has, if it has any. Reads files."""
    root = files("rabbitpy_broker") / "management" / "www"
    contents = dict(_walk(root, "")) if root.is_dir() else {}
    return Site(contents) if INDEX in contents else None


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        elif not entry.name.startswith("."):
            yield f"{prefix}{entry.name}", entry.read_bytes()


def reference(rows: Iterator[tuple[str, str, str]]) -> str:
    """The page that lists the API: methods, path and summary of each route."""
    table = "".join(
        f"<tr><td>{methods}<td><code>/api/{html.escape(path)}</code><td>{html.escape(summary)}" for methods, path, summary in rows
    )
    return f"<!doctype html><html lang=en><title>rabbitpy-broker</title><h1>Management API</h1><table>{table}</table>"


TOOLS_PAGE: Final = (
    "<!doctype html><html lang=en><title>rabbitmqadmin</title><h1>rabbitmqadmin</h1>"
    "<p>RabbitMQ's command line for this API works with this broker. It comes with RabbitMQ: install it from there, or "
    "<a href=https://www.rabbitmq.com/docs/management-cli>from its own pages</a>.</p>"
)
