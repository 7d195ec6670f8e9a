"""From a `/v1/videos` body (vLLM-Omni's multipart form or SGLang's JSON) to a GenerationRequest.

Uploads and data URLs become files in a folder of the caller's; no URL is ever fetched and no path is ever taken.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import re
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.datastructures import FormData, UploadFile

from backend import limits
from backend.http.fields import (
    bad,
    json_object,
    json_objects,
    number,
    numbers,
    optional_text,
    refuse_half_characters,
    shown,
    text,
    whole,
)
from backend.types import FPS, Adapter, GenerationRequest, Reference, Sampling

if TYPE_CHECKING:
    from backend.api import Backend

MAX_DATA_URL_CHARS = 96 * 2**20
_DATA_URL = re.compile(r"data:[\w.+-]+/[\w.+-]+(?:;[\w.+=-]+)*;base64,", re.ASCII)
_SIZE = re.compile(r"(\d{1,5})x(\d{1,5})", re.ASCII)
_FILE_FIELDS = ("input_reference", "input_references")
# What vLLM-Omni takes for editing clips: a render that left them out would not be the one that was asked for
_NOT_SERVED = ("source_video", "source_audio", "video_noise_mask", "audio_noise_mask", "control_reference")
_VALUES = ("prompt", "seed", "size", "width", "height", "num_frames", "seconds", "num_inference_steps", "extra_params")
_TASKS = ("t2va", "fl2va", "ref2va")
_ROLES = ("keyframe", "reference")
_OTHERS_QUALITIES = ("lossless", "high", "default", "auto")  # words of other servers: our released recipe
_URL_FIELDS = {"image_reference": "image_url", "video_reference": "video_url", "audio_reference": "audio_url"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a body asks for: the request, the quality preset, and the hardware preset (None: the server's choice)."""

    request: GenerationRequest
    quality: str = "standard"
    preset: str | None = None
    adapters: tuple[tuple[str, float], ...] = ()  # (name, scale) of ones this server lists; a body never has a path
    says_steps: bool = True  # else the request's steps are nobody's

    def complete(self, backend: Backend) -> GenerationRequest:
        """The request with its adapters, and where it says no steps those of adapter or quality. Raises H3Error."""
        found = self.with_adapters(backend.adapter)
        if self.says_steps:
            return found
        return found.with_steps(backend.default_steps(found, self.quality, self.preset))

    def with_adapters(self, find: Callable[[str, float, str], Adapter]) -> GenerationRequest:
        """The request with its adapters, each found by (name, scale, field); raises what `find` raises."""
        found = [find(name, scale, f"lora[{number}]") for number, (name, scale) in enumerate(self.adapters)]
        sampling = dataclasses.replace(self.request.sampling, adapters=tuple(found))
        return dataclasses.replace(self.request, sampling=sampling) if found else self.request


def asked_by_form(form: FormData, folder: Path) -> Asked:
    """What a multipart form asks for; fields it does not know are ignored, as ComfyUI's client relies on."""
    fields: dict[str, Any] = {key: value for key, value in form.multi_items() if isinstance(value, str)}
    refuse_half_characters(fields, "body")
    _unpack(fields)
    for name, value in form.multi_items():
        if isinstance(value, UploadFile) and name in (*_VALUES, *_URL_FIELDS, *_NOT_SERVED):
            way_out = "upload files as input_references" if name not in _VALUES else "send it as a text field"
            raise bad(name, "a file", "takes no uploaded file", way_out)
    files = [
        _save(upload.file, upload.filename or "", folder)
        for name in _FILE_FIELDS
        for upload in form.getlist(name)
        if isinstance(upload, UploadFile)
    ]
    return asked_by_fields(fields, [*files, *_from_urls(fields, folder)])


def asked_by_json(body: Any, folder: Path) -> Asked:
    """What a JSON body with `conditions` asks for; raises InvalidRequest."""
    if not isinstance(body, dict):
        raise bad("body", "", "must be a JSON object")
    refuse_half_characters(body, "body")
    fields = dict(body)
    _unpack(fields)
    conditions = json_objects(fields.get("conditions"), "conditions")
    roles = {_role(condition, f"conditions[{index}]") for index, condition in enumerate(conditions)}
    if len(roles - {None}) > 1:
        raise bad("conditions", "", "keyframes and references do not go together", "send one of the two")
    files = [_from_url(item.get("uri"), f"conditions[{index}].uri", folder) for index, item in enumerate(conditions)]
    files += _from_urls(fields, folder)
    if roles == {"keyframe"} and len(conditions) == len(files):
        fields.setdefault("frame_indices", [condition.get("frame_index", 0) for condition in conditions])
    if roles == {"reference"}:
        fields.setdefault("task", "ref2va")
    for name in ("start_time_seconds", "length_seconds"):
        if len(conditions) == len(files) and any(name in condition for condition in conditions):
            fields.setdefault(name, [condition.get(name) for condition in conditions])
    return asked_by_fields(fields, files)


def request_from_form(form: FormData, folder: Path) -> GenerationRequest:
    """The request of a multipart form."""
    return asked_by_form(form, folder).request


def request_from_json(body: Any, folder: Path) -> GenerationRequest:
    """The request of a JSON body."""
    return asked_by_json(body, folder).request


def _unpack(fields: dict[str, Any]) -> None:
    """Put what stands in `extra_params` beside the other fields, over which it goes."""
    for name in ("extra_params", "extra_body"):
        fields |= json_object(fields.pop(name, None), name)
    _refuse_misplaced(fields)


def _role(condition: Mapping[str, Any], name: str) -> str | None:
    role = optional_text(condition, "role")
    if role not in (None, *_ROLES):
        raise bad(f"{name}.role", shown(role), f"must be one of {', '.join(_ROLES)}")
    return role


def _refuse_misplaced(fields: Mapping[str, Any]) -> None:
    """InvalidRequest for a path or an address where a file belongs: without its file the render would be another."""
    for name in (*_FILE_FIELDS, *_NOT_SERVED):
        value = fields.get(name)
        if value in (None, "", []):
            continue
        if name in _NOT_SERVED:
            raise bad(name, shown(value), "editing a clip is not offered by this server", "leave it out")
        way_out = "upload the file in a multipart form (curl: -F input_reference=@FILE)"
        raise bad(name, shown(value), "must be an uploaded file, not text", way_out)


def _from_urls(fields: Mapping[str, Any], folder: Path) -> list[Path]:
    return [
        _from_url(item.get(key), name, folder)
        for name, key in _URL_FIELDS.items()
        for item in json_objects(fields.get(name), name)
    ]


def _adapters(fields: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    """Names and scales in `lora`: [{"name": "turbo", "scale": 0.8}]."""
    named = []
    for number_of, item in enumerate(json_objects(fields.get("lora"), "lora")):
        name, field = optional_text(item, "name"), f"lora[{number_of}]"
        if name is None or set(item) - {"name", "scale"} or "/" in name or "\\" in name:
            rule = "takes the name of a LoRA file that this server lists, and a scale"
            raise bad(field, shown(item), rule, 'such as {"name": "turbo", "scale": 1}')
        scale = number(item, "scale")
        named.append((name.removesuffix(".safetensors"), 1.0 if scale is None else scale))
    return tuple(named)


def asked_by_fields(fields: Mapping[str, Any], files: Sequence[Path]) -> Asked:
    """What single fields ask for, with their files in order; raises InvalidRequest."""
    target = json_object(fields.get("target"), "target")
    merged = {**fields, **target}
    fps = number(merged, "fps")
    if fps is not None and fps != FPS:
        raise bad("fps", f"{fps:g}", f"must be {FPS}", "leave it out")
    media = _place(merged, files)
    quality = optional_text(merged, "quality")
    return Asked(
        adapters=_adapters(merged),
        request=GenerationRequest(prompt=text(merged, "prompt") or "", sampling=_sampling(merged), **media),
        quality="standard" if quality in (None, *_OTHERS_QUALITIES) else quality,
        preset=optional_text(merged, "preset"),
        says_steps=whole(merged, "num_inference_steps") is not None,
    )


def _place(fields: Mapping[str, Any], files: Sequence[Path]) -> dict[str, Any]:
    """Files as keyframes or references: by `task`, else as vLLM-Omni does, pictures alone are keyframes."""
    task = optional_text(fields, "task")
    if task not in (None, *_TASKS):
        raise bad("task", shown(task), f"must be one of {', '.join(_TASKS)}")
    pictures_only = all(_looks_like_picture(path) for path in files)
    if not files or task == "t2va":
        if files:
            raise bad("task", "t2va", "takes no files", "leave the task out")
        return {}
    if task == "ref2va" or (task is None and not pictures_only):
        starts = numbers(fields, "start_time_seconds", len(files))
        lengths = numbers(fields, "length_seconds", len(files))
        parts = zip(files, starts, lengths, strict=True)
        return {
            "references": tuple(Reference(path=path, start_s=at or 0.0, length_s=length) for path, at, length in parts)
        }
    given = fields.get("frame_indices", fields.get("frame_index"))
    indices = given if isinstance(given, list) else [given] if given is not None else [0, -1][: len(files)]
    if (
        len(files) > 2
        or len(indices) != len(files)
        or any(isinstance(index, bool) or index not in (0, -1) for index in indices)
    ):
        raise bad("frame_indices", shown(given), "keyframes are one or two pictures at 0, -1 or both")
    names = {0: "first_frame", -1: "last_frame"}
    return {names[index]: path for index, path in zip(indices, files, strict=True)}


def _sampling(fields: Mapping[str, Any]) -> Sampling:
    width, height = whole(fields, "width"), whole(fields, "height")
    size = optional_text(fields, "size")
    if size:
        match = _SIZE.fullmatch(size)
        if match is None:
            raise bad("size", shown(size), "must be WIDTHxHEIGHT", "such as 1344x768")
        width, height = int(match[1]), int(match[2])
    sized = width is not None and height is not None
    ratio = optional_text(fields, "aspect_ratio")
    defaults = Sampling()
    seed = whole(fields, "seed")
    if seed is not None and seed < -1:
        raise bad("seed", shown(seed), "must be 0 or more, or -1 for a random one")
    steps = whole(fields, "num_inference_steps")
    return Sampling(
        num_frames=_num_frames(fields, defaults.num_frames),
        width=width if sized else None,
        height=height if sized else None,
        ratio=None if sized or ratio in (None, "auto", "adaptive") else ratio,
        num_inference_steps=defaults.num_inference_steps if steps is None else steps,
        seed=None if seed == -1 else seed,
        flow_shift=number(fields, "flow_shift"),
        audio_flow_shift=number(fields, "audio_flow_shift"),
    )


def _num_frames(fields: Mapping[str, Any], default: int) -> int:
    for name in ("duration_seconds", "duration", "seconds"):
        seconds = number(fields, name)
        if seconds is not None:
            return limits.num_frames_for_duration(seconds)
    frames = whole(fields, "num_frames")
    if frames is None:
        return default
    if not 1 <= frames <= limits.MAX_FRAMES:
        raise bad("num_frames", shown(frames), f"must be 1 to {limits.MAX_FRAMES}")
    return max(limits.MIN_FRAMES, limits.snap_num_frames(frames))  # clients of other models send 41 by default


def _from_url(url: Any, name: str, folder: Path) -> Path:
    """The file inside a data URL; any other URL is refused, because this server fetches nothing for a client."""
    header = _DATA_URL.match(url) if isinstance(url, str) and len(url) <= MAX_DATA_URL_CHARS else None
    if not isinstance(url, str) or header is None:
        raise bad(name, shown(url), "must be a base64 data URL; this server fetches no URL", "upload the file")
    try:
        data = base64.b64decode(url[header.end() :], validate=True)
    except (binascii.Error, ValueError) as error:
        raise bad(name, "", "is no valid base64") from error
    path = folder / secrets.token_hex(8)
    path.write_bytes(data)
    return path


def _save(source: Any, name: str, folder: Path) -> Path:
    """An upload under a folder of its own, so that its name cannot meet another's; only the last part is kept."""
    safe = re.sub(r"[^\w .()-]", "_", Path(name.replace("\\", "/")).name)[-80:].lstrip(".") or "upload"
    place = folder / secrets.token_hex(8)
    place.mkdir()
    with (place / safe).open("xb") as sink:
        shutil.copyfileobj(source, sink)
    return place / safe


def _looks_like_picture(path: Path) -> bool:
    """By content: the first bytes of JPEG, PNG, WebP or HEIF; what the file really is, the sandbox finds out."""
    with path.open("rb") as file:
        head = file.read(16)
    heif = head[4:8] == b"ftyp" and head[8:12] in (b"heic", b"heix", b"mif1", b"msf1", b"avif")
    webp = head[:4] == b"RIFF" and head[8:12] == b"WEBP"
    return head.startswith((b"\xff\xd8\xff", b"\x89PNG", b"GIF8")) or webp or heif
