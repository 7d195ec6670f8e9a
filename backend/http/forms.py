"""From a `/v1/videos` body (vLLM-Omni's multipart form or SGLang's JSON) to a GenerationRequest.

Uploads and data URLs become files in a folder of the caller's; no URL is ever fetched and no path is ever taken.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.datastructures import FormData, UploadFile

from backend import limits
from backend.errors import InvalidRequest, Problem
from backend.types import FPS, GenerationRequest, Reference, Sampling

MAX_DATA_URL_CHARS = 96 * 2**20
_DATA_URL = re.compile(r"data:[\w.+-]+/[\w.+-]+(?:;[\w.+=-]+)*;base64,", re.ASCII)
_SIZE = re.compile(r"(\d{1,5})x(\d{1,5})", re.ASCII)
_FILE_FIELDS = ("input_reference", "input_references")
_URL_FIELDS = {"image_reference": "image_url", "video_reference": "video_url", "audio_reference": "audio_url"}


def request_from_form(form: FormData, folder: Path) -> GenerationRequest:
    """The request of a multipart form; fields it does not know are ignored, as ComfyUI's client relies on."""
    fields: dict[str, Any] = {key: value for key, value in form.multi_items() if isinstance(value, str)}
    for name in ("extra_params", "extra_body"):
        fields |= _object(fields.pop(name, None), name)
    files = [
        _save(upload.file, upload.filename or "", folder)
        for name in _FILE_FIELDS
        for upload in form.getlist(name)
        if isinstance(upload, UploadFile)
    ]
    for name, key in _URL_FIELDS.items():
        files += [_from_url(item.get(key), name, folder) for item in _objects(fields.get(name), name)]
    return _request(fields, files)


def request_from_json(body: Any, folder: Path) -> GenerationRequest:
    """The request of a JSON body with `conditions`; raises InvalidRequest."""
    if not isinstance(body, dict):
        raise _bad("body", "", "must be a JSON object")
    fields = dict(body)
    for name in ("extra_params", "extra_body"):
        fields |= _object(fields.pop(name, None), name)
    files = []
    indices = []
    for index, condition in enumerate(_objects(fields.get("conditions"), "conditions")):
        files.append(_from_url(condition.get("uri"), f"conditions[{index}].uri", folder))
        if condition.get("role") == "keyframe":
            indices.append(condition.get("frame_index", 0))
    for name, key in _URL_FIELDS.items():
        files += [_from_url(item.get(key), name, folder) for item in _objects(fields.get(name), name)]
    if indices and len(indices) == len(files):
        fields.setdefault("frame_indices", indices)
    return _request(fields, files)


def _request(fields: Mapping[str, Any], files: list[Path]) -> GenerationRequest:
    target = _object(fields.get("target"), "target")
    merged = {**fields, **target}
    if merged.get("lora"):
        raise _bad("lora", "", "LoRA files are not applied by this server")
    fps = _number(merged, "fps")
    if fps is not None and fps != FPS:
        raise _bad("fps", f"{fps:g}", f"must be {FPS}", "leave it out")
    media = _place(merged, files)
    return GenerationRequest(prompt=str(merged.get("prompt", "")), sampling=_sampling(merged), **media)


def _place(fields: Mapping[str, Any], files: list[Path]) -> dict[str, Any]:
    """Files as keyframes or references: by `task`, else as vLLM-Omni does, pictures alone are keyframes."""
    task = fields.get("task")
    pictures_only = all(_looks_like_picture(path) for path in files)
    if not files or task == "t2va":
        if files:
            raise _bad("task", "t2va", "takes no files", "leave the task out")
        return {}
    if task == "ref2va" or (task is None and not pictures_only):
        return {"references": tuple(Reference(path=path) for path in files)}
    given = fields.get("frame_indices", fields.get("frame_index"))
    indices = given if isinstance(given, list) else [given] if given is not None else [0, -1][: len(files)]
    if len(files) > 2 or len(indices) != len(files) or any(index not in (0, -1) for index in indices):
        raise _bad("frame_indices", str(given), "keyframes are one or two pictures at 0, -1 or both")
    names = {0: "first_frame", -1: "last_frame"}
    return {names[index]: path for index, path in zip(indices, files, strict=True)}


def _sampling(fields: Mapping[str, Any]) -> Sampling:
    width, height = _number(fields, "width"), _number(fields, "height")
    if fields.get("size"):
        match = _SIZE.fullmatch(str(fields["size"]))
        if match is None:
            raise _bad("size", str(fields["size"])[:40], "must be WIDTHxHEIGHT", "such as 1344x768")
        width, height = float(match[1]), float(match[2])
    sized = width is not None and height is not None
    ratio = fields.get("aspect_ratio")
    defaults = Sampling()
    seed = _number(fields, "seed")
    return Sampling(
        num_frames=_num_frames(fields, defaults.num_frames),
        width=int(width) if sized and width is not None else None,
        height=int(height) if sized and height is not None else None,
        ratio=None if sized or ratio in (None, "", "auto", "adaptive") else str(ratio),
        num_inference_steps=int(_number(fields, "num_inference_steps") or defaults.num_inference_steps),
        seed=None if seed is None or seed < 0 else int(fields["seed"]),
        flow_shift=_number(fields, "flow_shift"),
        audio_flow_shift=_number(fields, "audio_flow_shift"),
    )


def _num_frames(fields: Mapping[str, Any], default: int) -> int:
    for name in ("duration_seconds", "duration", "seconds"):
        seconds = _number(fields, name)
        if seconds is not None:
            return limits.num_frames_for_duration(seconds)
    frames = _number(fields, "num_frames")
    if frames is None:
        return default
    if not 1 <= frames <= limits.MAX_FRAMES:
        raise _bad("num_frames", f"{frames:g}", f"must be 1 to {limits.MAX_FRAMES}")
    return max(limits.MIN_FRAMES, limits.snap_num_frames(int(frames)))  # clients of other models send 41 by default


def _number(fields: Mapping[str, Any], name: str) -> float | None:
    value = fields.get(name)
    if value is None or value == "":
        return None
    try:
        number = float(value) if not isinstance(value, bool) else float("nan")
    except (TypeError, ValueError):
        number = float("nan")
    if not abs(number) <= 2**63:
        raise _bad(name, str(value)[:40], "must be a number")
    return number


def _object(value: Any, name: str) -> dict[str, Any]:
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise _bad(name, value[:40], "must be a JSON object") from error
    if not isinstance(value, dict):
        raise _bad(name, str(value)[:40], "must be a JSON object")
    return value


def _objects(value: Any, name: str) -> list[dict[str, Any]]:
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise _bad(name, value[:40], "must be JSON") from error
    items = value if isinstance(value, list) else [value] if value else []
    if len(items) > limits.MAX_REFERENCES:
        raise _bad(name, f"{len(items)} files", f"at most {limits.MAX_REFERENCES} in all")
    return [_object(item, name) for item in items]


def _from_url(url: Any, name: str, folder: Path) -> Path:
    """The file inside a data URL; any other URL is refused, because this server fetches nothing for a client."""
    header = _DATA_URL.match(url) if isinstance(url, str) and len(url) <= MAX_DATA_URL_CHARS else None
    if not isinstance(url, str) or header is None:
        shown = str(url)[:40]
        raise _bad(name, shown, "must be a base64 data URL; this server fetches no URL", "upload the file")
    try:
        data = base64.b64decode(url[header.end() :], validate=True)
    except (binascii.Error, ValueError) as error:
        raise _bad(name, "", "is no valid base64") from error
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


def _bad(field: str, value: str, rule: str, way_out: str = "") -> InvalidRequest:
    return InvalidRequest((Problem(field=field, value=value, rule=rule, way_out=way_out),))
