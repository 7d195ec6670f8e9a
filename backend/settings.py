"""Where things lie and what the environment says: the only reader of environment variables in the parent.

Knows folders and defaults; creates nothing until asked.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

SPACE_DISK = Path("/data")  # a Space's persistent storage, where its owner has paid for some
COMMAND_FOLDER = "command-"  # begins the names of folders that commands keep their one job in


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSettings:
    """An OpenAI-compatible endpoint that writes prompts; set by whoever runs the server, never by a visitor."""

    base_url: str  # such as http://127.0.0.1:11434/v1
    model: str
    key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSettings:
    """A server elsewhere that makes the videos. `token` is a bearer token, or USER:PASSWORD where it holds a colon."""

    url: str  # such as https://gpu.example.com:7860
    token: str = field(default="", repr=False)

    @property
    def host(self) -> str:
        """The machine, without the rest of an address that has no flaw."""
        return urlsplit(self.url).netloc.rpartition("@")[2] or self.url

    @property
    def flaw(self) -> str | None:
        """Why `url` is no address that can be asked, or None."""
        try:
            parts = urlsplit(self.url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port that is no number, half a pair of brackets
            usable = False
        if not usable or not self.url.isprintable() or " " in self.url:
            return "H3_REMOTE_URL: must be an address such as https://gpu.example.com:7860"
        if parts.username or parts.password:
            return "H3_REMOTE_URL: must hold no password; put USER:PASSWORD into H3_REMOTE_TOKEN"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceSettings:
    """The Hugging Face Space this program runs in, as its variables and secrets say. `logins` are (user, password)."""

    id: str
    port: int = 7860
    zero_gpu: bool = False
    accept_licence: bool = False
    logins: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def notice(self) -> str:
        """What people of this Space should know, or ""."""
        if not self.zero_gpu:
            return ""
        return (
            "ZeroGPU lends a GPU for one call at a time and cannot keep MiniMax-H3 loaded, so this Space works on its "
            "CPU: choose a GPU of its own in the Space's settings, or set H3_REMOTE_URL to a server that has one."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Paths of one installation. `data_dir` holds everything the program writes."""

    data_dir: Path
    checkpoint: str | None = None  # overrides the preset's
    state_dir: Path | None = None  # jobs and their database, when not in data_dir
    gpus: tuple[str, ...] = ()  # indices or UUIDs of the GPUs to use, in this order; () means all that are visible
    writer: WriterSettings | None = None
    remote: RemoteSettings | None = None
    space: SpaceSettings | None = None

    def with_gpus(self, gpus: tuple[str, ...]) -> Settings:
        """The same settings limited to some GPUs, by index or UUID."""
        return replace(self, gpus=gpus)

    def with_private_state(self) -> Settings:
        """The same settings with a job store of its own, for one command that runs beside an open page."""
        return replace(self, state_dir=self.run_dir / f"{COMMAND_FOLDER}{uuid.uuid4().hex}")

    @property
    def jobs_dir(self) -> Path:
        """One folder a job: inputs, outputs, sidecar."""
        return (self.state_dir or self.data_dir) / "jobs"

    @property
    def database(self) -> Path:
        """SQLite file of all jobs and their events."""
        return (self.state_dir or self.data_dir) / "jobs.sqlite3"

    @property
    def checkpoints_dir(self) -> Path:
        """Checkpoints this program made or downloaded."""
        return self.data_dir / "checkpoints"

    @property
    def adapters_dir(self) -> Path:
        """LoRA files that may be chosen by name; whoever runs the server puts them there."""
        return self.data_dir / "adapters"

    @property
    def logs_dir(self) -> Path:
        """One file a rank and one of the parent."""
        return self.data_dir / "logs"

    @property
    def run_dir(self) -> Path:
        """Short-lived files of running fleets (rendezvous, sandboxes); swept at start."""
        return self.data_dir / "run"

    @property
    def cache_dir(self) -> Path:
        """Things that can be computed again (tables, compiled kernels)."""
        return self.data_dir / "cache"

    @property
    def uploads_dir(self) -> Path:
        """Files a browser sent that no job owns yet."""
        return self.data_dir / "uploads"


def from_environment(
    data_dir: Path | None = None, checkpoint: str | None = None, gpus: tuple[str, ...] = ()
) -> Settings:
    """Settings from arguments first, then H3_DATA_DIR and H3_CHECKPOINT, then a Space's own disk or XDG defaults."""
    space = space_settings()
    chosen = data_dir or os.environ.get("H3_DATA_DIR")
    if chosen is None and space is not None and os.access(SPACE_DISK, os.W_OK):
        chosen = SPACE_DISK / "h3-studio"
    if chosen is None:
        base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
        chosen = Path(base) / "h3-studio"
    return Settings(
        data_dir=Path(chosen).expanduser().resolve(),
        checkpoint=checkpoint or os.environ.get("H3_CHECKPOINT") or None,
        gpus=gpus,
        remote=remote_settings(),
        space=space,
    )


def space_settings() -> SpaceSettings | None:
    """The Space that SPACE_ID names, and what its owner set: H3_ACCEPT_LICENCE, H3_AUTH (USER:PASSWORD a line)."""
    name = os.environ.get("SPACE_ID")
    if not name:
        return None
    port = os.environ.get("GRADIO_SERVER_PORT", "")
    pairs = [line.strip().partition(":") for line in os.environ.get("H3_AUTH", "").splitlines()]
    return SpaceSettings(
        id=name,
        port=int(port) if port.isdecimal() else 7860,
        zero_gpu=_yes("SPACES_ZERO_GPU"),
        accept_licence=_yes("H3_ACCEPT_LICENCE"),
        logins=tuple((user, password) for user, _, password in pairs if user and password),
    )


def _yes(name: str) -> bool:
    return os.environ.get(name, "").strip().lower() in ("1", "true", "yes", "on")


def remote_settings() -> RemoteSettings | None:
    """The server elsewhere from H3_REMOTE_URL and H3_REMOTE_TOKEN; None without an address."""
    address = os.environ.get("H3_REMOTE_URL", "").strip()
    return RemoteSettings(url=address, token=os.environ.get("H3_REMOTE_TOKEN", "").strip()) if address else None


def lack_of_address(remote: RemoteSettings | None) -> str | None:
    """Why no server elsewhere can be asked, as far as is known before it is, or None."""
    return "needs the address of a server in H3_REMOTE_URL" if remote is None else remote.flaw


def writer_settings(base_url: str | None = None, model: str | None = None) -> WriterSettings | None:
    """The writer of prompts from arguments first, then H3_WRITER_URL and H3_WRITER_MODEL; None without an address.

    Its key is H3_WRITER_KEY and no argument, because arguments are seen by everybody on the machine.
    """
    address = base_url or os.environ.get("H3_WRITER_URL")
    if not address:
        return None
    name = model or os.environ.get("H3_WRITER_MODEL") or ""
    return WriterSettings(base_url=address, model=name, key=os.environ.get("H3_WRITER_KEY", ""))


_PASSED_ON = {
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH", "LD_PRELOAD"),
    *("PYTHONPATH", "VIRTUAL_ENV", "CC", "CXX", "MALLOC_ARENA_MAX", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_ENDPOINT", "HF_HUB_DISABLE_XET"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "H3_VALIDATE_FINITE"),
}
_PASSED_ON_PREFIXES = (
    *("LC_", "CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "TORCH", "PYTORCH_", "TRITON_"),
    *("OMP_", "MKL_", "OPENBLAS_", "KMP_"),
)


def worker_environment(*, with_token: bool = False) -> dict[str, str]:
    """The variables a child process needs and no other; the Hugging Face token only when asked for."""
    names = _PASSED_ON | ({"HF_TOKEN", "HF_TOKEN_PATH"} if with_token else set())
    return {name: value for name, value in os.environ.items() if name in names or name.startswith(_PASSED_ON_PREFIXES)}


def visible_devices() -> list[str] | None:
    """The GPUs that CUDA_VISIBLE_DEVICES names, in its order; None when it is not set."""
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if text is None else [token.strip() for token in text.split(",") if token.strip()]
