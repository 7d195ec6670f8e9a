"""One client for three servers that offer `/v1/videos`: another H3 Studio, vLLM-Omni and SGLang.

Knows HTTP, fields and how these servers differ; whatever goes wrong is an EngineFailure in words without the token.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from backend import limits
from backend.errors import EngineFailure
from backend.settings import RemoteSettings
from backend.types import FPS, GenerationRequest, ReferenceKind, Task

CONNECT_S, ANSWER_S, UPLOAD_S = 10.0, 60.0, 300.0  # vLLM-Omni stalls for seconds while it encodes a file
EVENTS_WAIT_S = 2.0  # as often there is a sign of life
MAX_ANSWER_BYTES = 16 * 2**20
MAX_VIDEO_BYTES = 2 * 2**30  # a clip of 15 s is some tens of MiB
BLOCK_BYTES = 256 * 2**10
MAX_REASON_CHARS = 2000


class Dialect(StrEnum):
    """Whose server it is."""

    STUDIO = "H3 Studio"
    OMNI = "vLLM-Omni"
    SGLANG = "SGLang"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A job as the server tells it. `status` is "queued", "in_progress", "completed" or "failed"."""

    id: str
    status: str
    progress: int = 0
    reason: str = ""
    told: Mapping[str, Any] = field(default_factory=dict)


class OutOfReach(EngineFailure):
    """The server did not answer this time; asking again may help."""


class VideosClient:
    """One server. `token` is sent as a bearer token, or as user and password where it holds a colon."""

    def __init__(self, url: str, token: str = "", transport: httpx.BaseTransport | None = None) -> None:
        self._url = _checked(url)
        self._token = token
        login = tuple(token.split(":", 1)) if ":" in token else None
        self._http = httpx.Client(
            base_url=self._url,
            auth=login,  # type: ignore[arg-type]
            headers={"Authorization": f"Bearer {token}"} if token and not login else {},
            timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S, write=UPLOAD_S),
            transport=transport,
            follow_redirects=False,
        )

    @property
    def host(self) -> str:
        """The machine that is asked, without the rest of the address."""
        return urlsplit(self._url).netloc.rpartition("@")[2]

    def close(self) -> None:
        """Give up every connection; a call in progress fails."""
        self._http.close()

    def dialect(self) -> Dialect:
        """Whose server it is; raises OutOfReach where none answers, EngineFailure where it lets nobody in."""
        ready = self._ask("GET", "/ready")
        if ready.status_code in (200, 503) and "ready" in _json(ready):
            self._refuse(self._ask("GET", "/v1/videos", params={"limit": 1}))  # /ready is open to all
            return Dialect.STUDIO
        health = self._ask("GET", "/health")
        if health.status_code == 200 and "status" in _json(health):
            return Dialect.OMNI
        models = self._ask("GET", "/models")
        if models.status_code == 200:
            return Dialect.SGLANG
        self._refuse(models)
        raise OutOfReach(f"{self.host}: no server that makes videos answers there; check H3_REMOTE_URL")

    def create(self, dialect: Dialect, request: GenerationRequest, quality: str) -> Answer:
        """Send a resolved request with its files; the job waits or runs when this returns."""
        if dialect is Dialect.SGLANG:
            answer = self._ask("POST", "/v1/videos", json=body_for(request))
            self._refuse(answer)
            return self._answer(answer)
        fields = fields_for(dialect, request, quality)
        with ExitStack() as opened:
            files = [
                ("input_references", (_sent_name(number, path), opened.enter_context(path.open("rb")), _kind(path)))
                for number, path in enumerate(_files(request))
            ]
            form: Any = files or [("prompt", (None, fields.pop("prompt")))]  # multipart also without files
            answer = self._ask("POST", "/v1/videos", data=fields, files=form)
        self._refuse(answer)
        return self._answer(answer)

    def poll(self, job: str) -> Answer:
        """How a job is. vLLM-Omni answers a failed one with an error status and the job inside."""
        answer = self._ask("GET", f"/v1/videos/{job}")
        body = _json(answer)
        if "status" not in body:
            self._refuse(answer)
        return self._answer(answer)

    def events(self, job: str, after: int) -> list[dict[str, Any]]:
        """What has happened since; waits a while for something. Only another H3 Studio tells."""
        answer = self._ask("GET", f"/v1/videos/{job}/events", params={"after": after, "wait": EVENTS_WAIT_S})
        self._refuse(answer)
        found = _json(answer).get("data")
        return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []

    def fetch(self, path: str, target: Path, stop: Callable[[], bool]) -> bool:
        """Write what lies at `path` to `target`; False when `stop` said so meanwhile, or nothing is there yet (204)."""
        try:
            with self._http.stream("GET", path) as answer, target.open("wb") as file:
                if answer.status_code == 204:
                    return False
                if answer.status_code >= 400:
                    answer.read()
                self._refuse(answer)
                size = 0
                for block in answer.iter_bytes(BLOCK_BYTES):
                    size += len(block)
                    if size > MAX_VIDEO_BYTES:
                        raise EngineFailure(f"{self.host}: its video is larger than {MAX_VIDEO_BYTES >> 30} GiB")
                    if stop():
                        return False
                    file.write(block)
                return True
        except httpx.HTTPError as error:
            raise self._lost(error) from error

    def delete(self, job: str) -> bool:
        """Cancel a job that waits or runs, or remove one that has ended; False where the server needs more time."""
        answer = self._ask("DELETE", f"/v1/videos/{job}")
        return answer.status_code != 409

    def _ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        try:
            return self._http.request(method, path, **more)
        except httpx.HTTPError as error:
            raise self._lost(error) from error
        except RuntimeError as error:  # closed under us
            raise OutOfReach(f"{self.host}: the connection was closed") from error

    def _lost(self, error: httpx.HTTPError) -> OutOfReach:
        if isinstance(error, httpx.ConnectTimeout):
            why = f"did not answer within {CONNECT_S:g} s"
        elif isinstance(error, httpx.TimeoutException):
            why = f"went silent for {ANSWER_S:g} s"
        elif isinstance(error, httpx.ConnectError):
            why = "cannot be reached (offline, or nothing listens there)"
        else:
            why = f"broke off ({type(error).__name__})"
        return OutOfReach(f"{self.host} {why}; check that the server runs and H3_REMOTE_URL is right")

    def _refuse(self, answer: httpx.Response) -> None:
        """Raise EngineFailure for an answer that is a refusal, in the server's own words."""
        status = answer.status_code
        if status < 300:
            return
        said = self._clean(_message(_json(answer)))
        if status in (401, 403):
            token = "set H3_REMOTE_TOKEN" if not self._token else "H3_REMOTE_TOKEN is not the right one"
            raise EngineFailure(f"{self.host} lets nobody in without its password or token ({status}): {token}")
        if status < 400:
            raise EngineFailure(f"{self.host} sends us on to another address ({status}); set H3_REMOTE_URL to that one")
        if status in (502, 503, 504) and not said:
            raise OutOfReach(f"{self.host} answers {status}: the server behind it is not up")
        raise EngineFailure(f"{self.host} refused: {said or f'answer {status}'}")

    def _answer(self, answer: httpx.Response) -> Answer:
        body = _json(answer)
        job = body.get("id")
        if not isinstance(job, str) or not job or "/" in job or len(job) > 200:
            raise EngineFailure(f"{self.host}: its answer names no job")
        progress = body.get("progress")
        return Answer(
            id=job,
            status=str(body.get("status")),
            progress=progress if isinstance(progress, int) else 0,
            reason=self._clean(_message(body)),
            told=body,
        )

    def _clean(self, text: str) -> str:
        """What a server said, without our token should it repeat it."""
        kept = "".join(letter for letter in text if letter.isprintable() or letter == "\n")[:MAX_REASON_CHARS]
        return kept.replace(self._token, "***") if self._token else kept


def fields_for(dialect: Dialect, request: GenerationRequest, quality: str) -> dict[str, str]:
    """A resolved request as text fields of a form, as each kind of server reads them."""
    sampling, task = request.sampling, request.task
    assert sampling.width is not None and sampling.height is not None and sampling.seed is not None
    more: dict[str, Any] = {"task": task.value}
    if task is Task.FL2VA:
        more["frame_indices"] = [at for at, path in ((0, request.first_frame), (-1, request.last_frame)) if path]
    starts = [item.start_s for item in request.references]
    if any(starts) or any(item.length_s is not None for item in request.references):
        more["start_time_seconds"] = starts
        more["length_seconds"] = [item.length_s for item in request.references]
    if sampling.audio_flow_shift is not None:
        more["audio_flow_shift"] = sampling.audio_flow_shift
    fields: dict[str, Any] = {"prompt": request.prompt, "seed": sampling.seed}
    if sampling.flow_shift is not None:
        fields["flow_shift"] = sampling.flow_shift
    steps = sampling.num_inference_steps
    if dialect is Dialect.STUDIO:
        fields |= {"width": sampling.width, "height": sampling.height, "num_frames": sampling.num_frames}
        fields |= {"num_inference_steps": steps, "quality": quality}
    else:  # vLLM-Omni counts forwards since 0.30, and wants a named ratio even beside a size
        fields |= {"width": sampling.width, "height": sampling.height, "num_inference_steps": steps - 1}
        ratio, seconds = _nearest_ratio(sampling.width, sampling.height), _seconds_for(sampling.num_frames)
        more |= {"duration": seconds, "aspect_ratio": ratio}
    fields["extra_params"] = json.dumps(more)
    return {name: str(value) for name, value in fields.items()}


def body_for(request: GenerationRequest) -> dict[str, Any]:
    """A resolved request as SGLang's JSON body, files as data URLs inside it."""
    sampling, task = request.sampling, request.task
    assert sampling.width is not None and sampling.height is not None
    conditions = [
        {"type": "image", "uri": _data_url(path), "role": "keyframe", "frame_index": at}
        for at, path in ((0, request.first_frame), (-1, request.last_frame))
        if path is not None
    ]
    conditions += [
        {"type": (item.kind or ReferenceKind.IMAGE).value, "uri": _data_url(item.path), "role": "reference"}
        for item in request.references
    ]
    body: dict[str, Any] = {
        "task": task.value,
        "prompt": request.prompt,
        "conditions": conditions,
        "target": {
            "short_edge": min(sampling.width, sampling.height),
            "aspect_ratio": _nearest_ratio(sampling.width, sampling.height),
            "duration_seconds": _seconds_for(sampling.num_frames),
        },
        "seed": sampling.seed,
        "num_inference_steps": sampling.num_inference_steps,
    }
    shifts = {"flow_shift": sampling.flow_shift, "audio_flow_shift": sampling.audio_flow_shift}
    return body | {name: value for name, value in shifts.items() if value is not None}


def _data_url(path: Path) -> str:
    return f"data:{_kind(path)};base64,{base64.b64encode(path.read_bytes()).decode()}"


def unfit(dialect: Dialect, request: GenerationRequest) -> str | None:
    """Why a server of this kind would make something else than `request`, or None."""
    if dialect is Dialect.STUDIO:
        return None
    if any(item.length_s is not None for item in request.references):
        return f"{dialect} cannot end a reference early; cut the file, or use it to its end"
    if dialect is Dialect.SGLANG and any(item.start_s for item in request.references):
        return f"{dialect} takes files from their start here; cut the file"
    return None


def _nearest_ratio(width: int, height: int) -> str:
    return min(limits.RATIOS, key=lambda name: abs(limits.RATIOS[name][0] / limits.RATIOS[name][1] - width / height))


def _seconds_for(num_frames: int) -> float:
    """Seconds that a server which rounds up to 17n+5 makes `num_frames` of."""
    return max(limits.MIN_DURATION_S, min(limits.MAX_DURATION_S, (num_frames - 5) / FPS))


def _files(request: GenerationRequest) -> Iterator[Path]:
    for path in (request.first_frame, request.last_frame):
        if path is not None:
            yield path
    for reference in request.references:
        yield reference.path


_KINDS = {
    **{".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp"},
    **{
        ".heic": "image/heic",
        ".heif": "image/heif",
        ".gif": "image/gif",
        ".mp4": "video/mp4",
        ".mov": "video/quicktime",
    },
    **{".wav": "audio/wav", ".mp3": "audio/mpeg", ".m4a": "audio/mp4", ".flac": "audio/flac", ".ogg": "audio/ogg"},
}


def _kind(path: Path) -> str:
    return _KINDS.get(path.suffix.lower(), "application/octet-stream")


def _sent_name(number: int, path: Path) -> str:
    """Not what a person called the file: that is nobody's business elsewhere."""
    return f"reference_{number}{path.suffix.lower() if path.suffix.lower() in _KINDS else ''}"


def _json(answer: httpx.Response) -> dict[str, Any]:
    """The answer's JSON object; {} for anything else, and for what is far too long."""
    try:
        if len(answer.content) > MAX_ANSWER_BYTES:
            return {}
        found = answer.json()
    except (ValueError, RecursionError, httpx.ResponseNotRead):
        return {}
    return found if isinstance(found, dict) else {}


def _message(body: Mapping[str, Any]) -> str:
    """What a server says is wrong: {"error": {"message"}}, {"error": "..."} or {"detail": ...}."""
    error = body.get("error", body.get("detail"))
    if isinstance(error, dict):
        error = error.get("message")
    return error if isinstance(error, str) else "" if error is None else json.dumps(error)


def _checked(url: str) -> str:
    """The address without `/v1` and slashes at its end. Raises EngineFailure for what is none."""
    flaw = RemoteSettings(url=url.strip()).flaw
    if flaw is not None:
        raise EngineFailure(flaw)
    return url.strip().rstrip("/").removesuffix("/v1").rstrip("/")
