"""The four endpoints for scripts, `generate`, `status`, `result` and `cancel`: typed, on the same jobs as the page.

It knows Gradio's requests and files; fields mean what they mean for `/v1/videos`, and nobody reaches another's jobs.
"""

# No `from __future__ import annotations` here: Gradio reads the types of what an endpoint returns as they stand.
import os
import re
import secrets
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict
from urllib.parse import unquote

import gradio as gr
from gradio import FileData

from backend.errors import H3Error, InvalidRequest, JobNotFound, NotNow
from backend.http.fields import bad, optional_text, refuse_half_characters, shown
from backend.http.forms import Asked, asked_by_fields
from backend.http.videos import describe
from backend.jobs.records import JobState
from backend.types import VIDEO_NAME, JobId
from h3ui.panels import licence

if TYPE_CHECKING:
    from backend.api import Backend

EVERYBODY = "api"  # who sends a request where nobody logs in, as in backend.http.login
_UPLOAD = "send it with handle_file(PATH), or give what /gradio_api/upload answered"
_JOB = re.compile(r"[\w-]{1,64}", re.ASCII)  # what ids of jobs are made of


class Settings(TypedDict, total=False):
    """How a video is made; every key may be left out. Names and meanings are those of `/v1/videos`."""

    seconds: float
    num_frames: int
    width: int
    height: int
    aspect_ratio: str
    num_inference_steps: int
    seed: int
    flow_shift: float
    audio_flow_shift: float
    start_time_seconds: list[float | None]
    length_seconds: list[float | None]
    quality: str
    preset: str
    lora: list[dict[str, Any]]


class Video(TypedDict):
    """A job as a script sees it: `status` is queued, in_progress, completed or failed; `progress` is per cent."""

    id: str
    status: str
    progress: int
    position: int | None
    error: str | None
    seed: int | None
    size: str
    num_frames: int
    preset: str


class PublicApi:
    """The endpoints of one program. `strangers` says that the page is open to all: each client has its own jobs then,
    else all who need no login share theirs."""

    def __init__(self, backend: "Backend", *, strangers: bool = False) -> None:
        self._backend = backend
        self._strangers = strangers

    def generate(
        self,
        request: gr.Request,
        prompt: str,
        first_frame: FileData | None = None,
        last_frame: FileData | None = None,
        references: list[FileData] | None = None,
        settings: Settings | None = None,
    ) -> str:
        """Make a video with sound. Returns the id of the job, which waits in the queue or runs.

        Args:
            prompt: what to see and hear; references are named <Picture 1>, <Video 1>, <Audio 1> in their order
            first_frame: picture the video starts from
            last_frame: picture the video ends on
            references: up to 12 pictures, clips and sounds; their order is their number; not together with frames
            settings: any of seconds (4 to 15), num_frames, width, height, aspect_ratio, num_inference_steps (sigma points), seed, flow_shift, audio_flow_shift, quality, preset; for trimmed references start_time_seconds and length_seconds, a number or null for each
        """  # noqa: E501 - a client shows one line an argument
        frames = {"first_frame": first_frame, "last_frame": last_frame}
        owner = self._owner(request)

        def submit() -> str:
            wanted = _checked(prompt, references, settings)
            _ask_licence(self._backend, optional_text(wanted, "preset"))
            given = {name: self._upload(file, name) for name, file in frames.items() if file not in (None, "")}
            clips = [self._upload(file, f"references[{at}]") for at, file in enumerate(references or [])]
            asked = asked_by(prompt, given, clips, wanted)
            return self._backend.submit(
                asked.complete(self._backend), owner=owner, quality=asked.quality, preset=asked.preset
            )

        return _in_words(submit)

    def status(self, request: gr.Request, job: str) -> Video:
        """How a job is: status (queued, in_progress, completed or failed), progress in per cent, and the error.

        Args:
            job: what generate returned
        """
        return _in_words(lambda: self._told(_job(job), self._owner(request)))

    def result(self, request: gr.Request, job: str) -> FileData:
        """The finished MP4 of a job; while it is not there, an error that says why.

        Args:
            job: what generate returned
        """

        def finished() -> FileData:
            owner = self._owner(request)
            record = self._backend.job(_job(job), owner=owner)
            if record.state is not JobState.SUCCEEDED:
                raise NotNow(f"job={job}: it is {record.state}" + (f": {record.error}" if record.error else ""))
            video = self._backend.file(record.id, VIDEO_NAME, owner=owner)
            return FileData(path=str(self._shared(video)), orig_name=f"h3-{job}.mp4", mime_type="video/mp4")

        return _in_words(finished)

    def cancel(self, request: gr.Request, job: str) -> Video:
        """Stop a job that waits or runs, and no other; a running one stops at its next step.

        Args:
            job: what generate returned
        """

        def stop() -> Video:
            owner = self._owner(request)
            self._backend.cancel(_job(job), owner=owner)
            return self._told(_job(job), owner)

        return _in_words(stop)

    def publish(self) -> None:
        """Add the endpoints to the page that is being built."""
        for endpoint in (self.generate, self.status, self.result, self.cancel):
            gr.api(endpoint, api_name=endpoint.__name__, concurrency_limit=4)

    def _owner(self, request: gr.Request) -> str:
        """The user who logged in; else everybody as one, or on a page open to strangers this client alone."""
        if getattr(request, "username", None):
            return f"user:{request.username}"
        return f"client:{request.session_hash}" if self._strangers else EVERYBODY

    def _told(self, job: JobId, owner: str) -> Video:
        told = describe(self._backend, self._backend.job(job, owner=owner))
        error = told["error"]["message"] if told["error"] else None
        return Video(**{**{name: told[name] for name in Video.__annotations__}, "error": error})  # type: ignore[typeddict-item]

    def _upload(self, file: Any, field: str) -> Path:
        """The uploaded file; whatever a client calls its path, only what lies among the uploads is taken."""
        told = file.get("path") if isinstance(file, dict) else getattr(file, "path", file)
        told = told if isinstance(told, str) else ""
        address, _, path_of_it = told.rpartition("/gradio_api/file=")  # as assistants give a file; nothing is fetched
        told = unquote(path_of_it) if address else told
        try:
            path = Path(told).resolve()
            taken = path.is_relative_to(self._backend.settings.uploads_dir.resolve()) and path.is_file()
        except (OSError, ValueError):  # a name too long, or one with a character that no name has
            taken = False
        if not taken:
            raise bad(field, shown(Path(told).name), "is no uploaded file", _UPLOAD)
        return path

    def _shared(self, video: Path) -> Path:
        """The result where Gradio may serve it, under a name nobody guesses, until uploads are swept."""
        folder = self._backend.settings.uploads_dir / "results" / secrets.token_urlsafe(18)
        folder.mkdir(parents=True, mode=0o700)
        try:
            os.link(video, folder / VIDEO_NAME)
        except OSError:  # another disk, or one without links
            shutil.copyfile(video, folder / VIDEO_NAME)
        return folder / VIDEO_NAME


def asked_by(prompt: str, frames: dict[str, Path], references: Sequence[Path], settings: dict[str, Any]) -> Asked:
    """What `generate` asks for; raises InvalidRequest, also for a setting that does not exist."""
    unknown = sorted(set(settings) - set(Settings.__annotations__))
    if unknown:
        way_out = f"known are {', '.join(Settings.__annotations__)}"
        raise bad("settings", shown(unknown[0]), "is no setting", way_out)
    if frames and references:
        raise bad("references", "", "frames and references do not go together", "send one of the two")
    for name in ("start_time_seconds", "length_seconds"):
        if not references and settings.get(name) not in (None, "", []):
            rule = "is a number or null for each reference, and there is none"
            raise bad(name, shown(settings[name]), rule, "leave it out")
    fields: dict[str, Any] = {**settings, "prompt": prompt}
    files = list(references)
    if frames:
        order = {"first_frame": 0, "last_frame": -1}
        files = [frames[name] for name in order if name in frames]
        fields |= {"task": "fl2va", "frame_indices": [at for name, at in order.items() if name in frames]}
    elif references:
        fields["task"] = "ref2va"
    return asked_by_fields(fields, files)


def _checked(prompt: Any, references: Any, settings: Any) -> dict[str, Any]:
    """The settings; a client may send anything, and what is of another kind is refused by its name."""
    if not isinstance(prompt, str):
        raise bad("prompt", shown(prompt), "must be text")
    if not isinstance(references, list | None):
        raise bad("references", shown(references), "must be a list of files")
    if not isinstance(settings, dict | None):
        raise bad("settings", shown(settings), "must be an object", 'such as {"seconds": 4}')
    refuse_half_characters(prompt, "prompt")
    refuse_half_characters(settings, "settings")
    return dict(settings or {})


def _job(told: Any) -> JobId:
    """The id of a job; what cannot be one never reaches the database."""
    if not isinstance(told, str) or _JOB.fullmatch(told) is None:
        raise bad("job", shown(told), "is no id of a job", "send what generate returned")
    return JobId(told)


def _ask_licence(backend: "Backend", preset: str | None) -> None:
    asked = backend.licence(preset)
    if asked is not None and not asked.accepted:
        raise InvalidRequest((licence.problem(asked),))


def _in_words(work: Callable[[], Any]) -> Any:
    """Call `work`; an error for people reaches the client as the message of Gradio's own."""
    try:
        return work()
    except JobNotFound as error:
        raise gr.Error(f"{error}. It was deleted, or it is somebody else's.", print_exception=False) from error
    except H3Error as error:
        raise gr.Error(str(error), print_exception=False) from error
