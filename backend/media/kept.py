"""What a result keeps of how it was made: the sidecar's fields about inputs, and how they are read back with suspicion.

Stdlib only. A video that is passed on names its media by name and SHA-256 and holds no path of its machine.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from backend import codec, limits
from backend.errors import MediaRefused, Problem
from backend.types import GenerationRequest, Sampling

MAX_NAME_CHARS = 255
MAX_WORD_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptInput:
    """One file a result was made from. `field` is as in errors ("references[0]"); `sha256` is "" where it was gone."""

    field: str
    name: str
    sha256: str
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The settings inside an MP4. Media paths of `request` are bare names, in the order of `inputs`.

    `job`, `quality`, `model` and `versions` are what the file claims; "" where it says nothing.
    """

    request: GenerationRequest
    inputs: tuple[KeptInput, ...] = ()
    job: str = ""
    quality: str = ""
    model: str = ""
    versions: tuple[tuple[str, str], ...] = ()


def media_of(request: GenerationRequest) -> Iterator[tuple[str, Path]]:
    """(field, path) of every file of `request`: keyframes first, then references in order."""
    for field, path in (("first_frame", request.first_frame), ("last_frame", request.last_frame)):
        if path is not None:
            yield field, path
    for index, reference in enumerate(request.references):
        yield f"references[{index}]", reference.path


def with_files(request: GenerationRequest, files: Mapping[str, Path]) -> GenerationRequest:
    """`request` with other paths for its media, by field; a field that `files` lacks keeps its own."""
    return replace(
        request,
        first_frame=files.get("first_frame", request.first_frame),
        last_frame=files.get("last_frame", request.last_frame),
        references=tuple(
            replace(item, path=files.get(f"references[{index}]", item.path))
            for index, item in enumerate(request.references)
        ),
    )


def inputs_of(request: GenerationRequest, names: Mapping[str, str]) -> tuple[KeptInput, ...]:
    """The files of `request` as they are now; `names` holds what users called them, by file name."""
    return tuple(_input(field, path, names.get(path.name, path.name)) for field, path in media_of(request))


def sha256_of(path: Path) -> str:
    """Hexadecimal digest of a file; raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def portable(details: Mapping[str, Any]) -> dict[str, Any]:
    """The sidecar `details` as they go into the MP4: files by their names, without a path."""
    made = copy.deepcopy(dict(details))
    if isinstance(made.get("request"), dict):
        _name_media(made["request"], made.get("inputs", ()))
    if isinstance(made.get("checkpoint"), str):
        made["checkpoint"] = _bare(made["checkpoint"])
    return made


def understand(details: Mapping[str, Any], name: str) -> Kept:
    """The settings in `details`, which came out of the file called `name`; raises MediaRefused where they are none."""
    try:
        request = _bare_request(codec.decode(GenerationRequest, details["request"], "request"))
        inputs = codec.decode(_Inputs, {"inputs": details.get("inputs", [])}).inputs
    except (KeyError, ValueError, RecursionError) as error:
        raise _refused(name, f"cannot be read: {str(error)[:MAX_WORD_CHARS]}") from error
    alone = replace(request, first_frame=None, last_frame=None, references=(), sampling=_without_adapters(request))
    problems = limits.validate(alone)  # the files themselves are another question
    if problems or len(request.references) > limits.MAX_REFERENCES:
        raise _refused(name, f"are not possible: {str([*problems, 'too many references'][0])[:MAX_WORD_CHARS]}")
    named = [(field, path.name) for field, path in media_of(request)]
    inputs = tuple(replace(item, name=_bare(item.name)[:MAX_NAME_CHARS]) for item in inputs)
    if [(item.field, item.name) for item in inputs] != named:
        inputs = tuple(KeptInput(field=field, name=called, sha256="") for field, called in named)
    versions = details.get("versions")
    return Kept(
        request=request,
        inputs=inputs,
        job=_word(details.get("job")),
        quality=_word(details.get("quality")),
        model=_word(details.get("checkpoint")),
        versions=tuple((_word(key), _word(value)) for key, value in versions.items())[:50]
        if isinstance(versions, dict)
        else (),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inputs:
    inputs: tuple[KeptInput, ...]


def _input(field: str, path: Path, name: str) -> KeptInput:
    try:
        return KeptInput(field=field, name=name, sha256=sha256_of(path), size_bytes=path.stat().st_size)
    except OSError:  # taken away while the job ran: the result does not depend on it any more
        return KeptInput(field=field, name=name, sha256="")


def _name_media(request: dict[str, Any], inputs: Any) -> None:
    names = {item["field"]: item["name"] for item in inputs}
    for field in ("first_frame", "last_frame"):
        if request.get(field):
            request[field] = _bare(names.get(field, request[field]))
    for index, reference in enumerate(request.get("references", ())):
        reference["path"] = _bare(names.get(f"references[{index}]", reference["path"]))
    for adapter in (request.get("sampling") or {}).get("adapters", ()):
        adapter["path"] = _bare(adapter["path"])


def _bare_request(request: GenerationRequest) -> GenerationRequest:
    """Every path reduced to a name: what a file says must never become a path on this machine."""

    def bare(path: Path | None) -> Path | None:
        return None if path is None else Path(_bare(str(path)))

    sampling = request.sampling
    return replace(
        request,
        first_frame=bare(request.first_frame),
        last_frame=bare(request.last_frame),
        references=tuple(replace(item, path=Path(_bare(str(item.path)))) for item in request.references),
        sampling=replace(
            sampling, adapters=tuple(replace(item, path=Path(_bare(str(item.path)))) for item in sampling.adapters)
        ),
    )


def _without_adapters(request: GenerationRequest) -> Sampling:
    return replace(request.sampling, adapters=())


def _bare(path: str) -> str:
    name = _whole(PureWindowsPath(PurePosixPath(path).name).name.replace("\0", ""))
    return name if name not in ("", ".", "..") else "file"


def _word(value: object) -> str:
    return _whole(str(value)[:MAX_WORD_CHARS]) if isinstance(value, str | int | float) else ""


def _whole(text: str) -> str:
    """Text without half characters, which JSON may hold and nothing after it can write."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _refused(name: str, why: str) -> MediaRefused:
    rule = f"its settings {why}"
    return MediaRefused(Problem(field="file", value=name, rule=rule, way_out="use an MP4 as it was downloaded"))
