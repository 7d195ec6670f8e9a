"""A local stand-in for huggingface.co with the few addresses that huggingface_hub asks: model info and files.

It can cut connections, be slow, ask for a token, claim other sizes or checksums, and it remembers what was asked.
"""

from __future__ import annotations

import hashlib
import json
import struct
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = 4096  # files from this size on are told as large files are: by SHA-256


def etag_of(data: bytes) -> str:
    """The name of a content as the hub gives it, computed as Git and Git LFS do."""
    if len(data) >= LARGE:
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass
class FakeHub:
    """One repository. `asked` has (method, file, Range) of each request for a file."""

    files: dict[str, bytes]
    repo: str = "MiniMaxAI/MiniMax-H3"
    token: str | None = None  # whoever has no such token is refused
    gated: bool = False
    cut_after: int | None = None  # bytes of a large file, once for each
    piece_s: float = 0.0  # for each 64 KiB
    claimed: dict[str, int] = field(default_factory=dict)  # other sizes than the true ones
    spoiled: set[str] = field(default_factory=set)  # files that come with a byte changed
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    sent: int = 0

    def __post_init__(self) -> None:
        hub, cut = self, set[str]()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                """Say nothing."""

            def do_HEAD(self) -> None:
                self._answer(body=False)

            def do_GET(self) -> None:
                if self.path.startswith(f"/api/models/{hub.repo}"):
                    self._json(hub.listing())
                else:
                    self._answer(body=True)

            def _json(self, value: Any, status: int = 200, **headers: str) -> None:
                data = json.dumps(value).encode()
                self.send_response(status)
                for name, said in headers.items():
                    self.send_header(name.replace("_", "-"), said)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            def _answer(self, body: bool) -> None:
                prefix = f"/{hub.repo}/resolve/"
                name = self.path.removeprefix(prefix).partition("/")[2].partition("?")[0]
                if not self.path.startswith(prefix) or name not in hub.files:
                    self._json({"error": "not found"}, 404, X_Error_Code="EntryNotFound")
                    return
                asked_range = self.headers.get("Range", "")
                hub.asked.append((self.command, name, asked_range))
                if hub.token is not None and self.headers.get("Authorization") != f"Bearer {hub.token}":
                    code = "GatedRepo" if hub.gated else "RepoNotFound"
                    status = 403 if "Authorization" in self.headers else 401
                    self._json({"error": "no"}, status, X_Error_Code=code)
                    return
                data = hub.files[name]
                start = int(asked_range.removeprefix("bytes=").rstrip("-") or 0) if asked_range else 0
                self.send_response(206 if start else 200)
                self.send_header("ETag", f'"{etag_of(data)}"')
                self.send_header("X-Repo-Commit", COMMIT)
                self.send_header("X-Linked-Size", str(hub.claimed.get(name, len(data))))
                self.send_header("Accept-Ranges", "bytes")
                self.send_header("Content-Length", str(len(data) - start))
                if start:
                    self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
                self.end_headers()
                if body:
                    self._send(name, data, start)

            def _send(self, name: str, data: bytes, start: int) -> None:
                if name in hub.spoiled:
                    data = data[:-1] + bytes([data[-1] ^ 1])
                end = len(data)
                if hub.cut_after is not None and end > LARGE and name not in cut:
                    cut.add(name)
                    end = min(end, start + hub.cut_after)
                for at in range(start, end, 1 << 16):
                    piece = data[at : min(at + (1 << 16), end)]
                    self.wfile.write(piece)
                    hub.sent += len(piece)
                    time.sleep(hub.piece_s)
                if end < len(data):
                    self.wfile.flush()
                    self.close_connection = True
                    self.connection.shutdown(2)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # clients that leave are part of the play
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def listing(self) -> dict[str, Any]:
        """The answer to "what is this model"."""
        siblings = []
        for name, data in self.files.items():
            size = self.claimed.get(name, len(data))
            item: dict[str, Any] = {"rfilename": name, "size": size, "blobId": hashlib.sha1(data).hexdigest()}
            if len(data) >= LARGE:
                item["lfs"] = {"sha256": etag_of(data), "size": size, "pointerSize": 130}
            else:
                item["blobId"] = etag_of(data)
            siblings.append(item)
        return {"id": self.repo, "modelId": self.repo, "sha": COMMIT, "siblings": siblings, "gated": self.gated}

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file of a checkpoint, and some that no task needs."""
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {**found, "README.md": b"# H3\n", "FL2VA/big.bin": b"x" * 9000, "assets/demo.mp4": b"y" * 9000}


def lora(path: Path, **said: str) -> Path:
    """A file with one pair of matrices, as safetensors lays it out: length, header, data."""
    shapes = {"transformer.x.lora_A.weight": [1, 2], "transformer.x.lora_B.weight": [2, 1]}
    header: dict[str, object] = {"__metadata__": said}
    for number, (name, shape) in enumerate(shapes.items()):
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [8 * number, 8 * number + 8]}
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(16))
    return path
