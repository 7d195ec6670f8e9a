"""A request as a script: the command line, the `curl` calls and the Python client that make the same video.

Pure; it knows the options of `app.py generate`, the fields of `/v1/videos`, and how a shell and Python quote.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backend.jobs.records import JobRecord
from backend.types import GenerationRequest, Reference, Task

SIMPLE = (str, int, float)  # values that a form field holds as they are; others go into `extra_params` as JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a script asks for. `preset=None` leaves the hardware preset to the machine; `names` are what its files are
    called, by path."""

    request: GenerationRequest
    quality: str = "standard"
    preset: str | None = None
    names: Mapping[Path, str] = field(default_factory=dict)

    def name(self, path: Path) -> str:
        """What the file at `path` is called in a script."""
        return self.names.get(path, path.name)

    @property
    def files(self) -> tuple[Path, ...]:
        """Its media in the order they are sent: keyframes, or references."""
        asked = self.request
        frames = tuple(path for path in (asked.first_frame, asked.last_frame) if path is not None)
        return (*frames, *(reference.path for reference in asked.references))


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """Where a server is reached. `user` is who is logged in there, "" where nobody has to."""

    url: str
    user: str = ""


def call_of(record: JobRecord) -> Call:
    """The call that makes a stored job again; media go by the names they came with."""
    call = Call(request=record.request, quality=record.quality, preset=record.preset)
    return dataclasses.replace(
        call, names=told_apart({path: record.labels.get(path.name, path.name) for path in call.files})
    )


def told_apart(names: Mapping[Path, str]) -> dict[Path, str]:
    """`names`, with a number before each that another file has already: two files cannot lie under one name."""
    taken: set[str] = set()
    found: dict[Path, str] = {}
    for path, name in names.items():
        number, free = 2, name
        while free in taken:
            number, free = number + 1, f"{number}-{name}"
        taken.add(free)
        found[path] = free
    return found


def command_line(record: JobRecord) -> str:
    """`python app.py generate ...` for the same video as a stored job's."""
    return shell(call_of(record))


def shell(call: Call) -> str:
    """`python app.py generate ...` for a call."""
    asked, sampling = call.request, call.request.sampling
    words = _option("--prompt", asked.prompt)
    for option, path in (("--first-frame", asked.first_frame), ("--last-frame", asked.last_frame)):
        words += [] if path is None else _option(option, call.name(path))
    for reference in asked.references:
        words += _option("--reference", call.name(reference.path))
    for number, reference in enumerate(asked.references, 1):
        words += _trim(number, reference)
    words += _option("--frames", sampling.num_frames)
    if sampling.width is not None and sampling.height is not None:
        words += [*_option("--width", sampling.width), *_option("--height", sampling.height)]
    elif sampling.ratio is not None:
        words += _option("--ratio", sampling.ratio)
    words += _option("--steps", sampling.num_inference_steps)
    for option, value in (
        ("--seed", sampling.seed),
        ("--flow-shift", sampling.flow_shift),
        ("--audio-flow-shift", sampling.audio_flow_shift),
    ):
        words += [] if value is None else _option(option, value)
    for adapter in sampling.adapters:
        words += _option("--adapter", f"{call.name(adapter.path)}:{adapter.scale!r}")
    words += _option("--quality", call.quality)
    words += [] if call.preset is None else _option("--preset", call.preset)
    return shlex.join(["python", "app.py", "generate", *words, "--out", "video.mp4"])


def _option(name: str, value: object) -> list[str]:
    """An option with its value; one that begins with a dash would be read as an option itself."""
    text = str(value)
    return [f"{name}={text}"] if text.startswith("-") else [name, text]


def _trim(number: int, reference: Reference) -> list[str]:
    if not reference.start_s and reference.length_s is None:
        return []
    length = "" if reference.length_s is None else f"+{reference.length_s!r}"
    return ["--trim", f"{number}:{reference.start_s!r}{length}"]


def fields_of(call: Call) -> dict[str, Any]:
    """A call as fields of `/v1/videos`: JSON values, without its files."""
    asked, sampling = call.request, call.request.sampling
    fields: dict[str, Any] = {"prompt": asked.prompt, "num_frames": sampling.num_frames}
    if sampling.width is not None and sampling.height is not None:
        fields |= {"width": sampling.width, "height": sampling.height}
    elif sampling.ratio is not None:
        fields["aspect_ratio"] = sampling.ratio
    fields["num_inference_steps"] = sampling.num_inference_steps
    for name in ("seed", "flow_shift", "audio_flow_shift"):
        value = getattr(sampling, name)
        fields |= {} if value is None else {name: value}
    fields["quality"] = call.quality
    fields |= {} if call.preset is None else {"preset": call.preset}
    if asked.task is not Task.T2VA:
        fields["task"] = asked.task.value
    if asked.task is Task.FL2VA:
        fields["frame_indices"] = [at for at, path in ((0, asked.first_frame), (-1, asked.last_frame)) if path]
    if any(_trim(0, reference) for reference in asked.references):
        fields["start_time_seconds"] = [reference.start_s for reference in asked.references]
        fields["length_seconds"] = [reference.length_s for reference in asked.references]
    if sampling.adapters:
        fields["lora"] = [{"name": adapter.path.name, "scale": adapter.scale} for adapter in sampling.adapters]
    return fields


def curl(call: Call, door: Door) -> tuple[str, str, str]:
    """Three commands: create the job, ask how it is, fetch the MP4. The last two name the job as JOB."""
    login = ["-u", door.user] if door.user else []
    videos = f"{door.url}/v1/videos"
    words = ["curl", "-s", *login, "-X", "POST", videos]
    fields = fields_of(call)
    more = {name: value for name, value in fields.items() if not isinstance(value, SIMPLE)}
    for name, value in fields.items():
        # `--form-string`: of `-F` curl would read a value that begins with @ or < as a file's name.
        words += [] if name in more else ["--form-string", f"{name}={value}"]
    if more:
        words += ["--form-string", f"extra_params={json.dumps(more, ensure_ascii=False)}"]
    for path in call.files:
        quoted = call.name(path).replace("\\", "\\\\").replace('"', '\\"')
        words += ["-F", f'input_references=@"{quoted}"']
    poll = shlex.join(["curl", "-s", *login, f"{videos}/JOB"])
    fetch = shlex.join(["curl", "-s", *login, "-o", "video.mp4", f"{videos}/JOB/content"])
    return shlex.join(words), poll, fetch


def python(call: Call, door: Door) -> str:
    """A script with `gradio_client` that makes the video and fetches it."""
    asked = call.request
    settings = {name: value for name, value in fields_of(call).items() if name not in _ARGUMENTS}
    frames = (("first_frame", asked.first_frame), ("last_frame", asked.last_frame))
    named = [f"    {name}=handle_file({call.name(path)!r}),\n" for name, path in frames if path is not None]
    if asked.references:
        files = "".join(f"        handle_file({call.name(item.path)!r}),\n" for item in asked.references)
        named.append(f"    references=[\n{files}    ],\n")
    login = f", auth=({door.user!r}, 'PASSWORD')" if door.user else ""
    lines = "".join(f"        {name!r}: {value!r},\n" for name, value in settings.items())
    return (
        "import time\n\n"
        f"from gradio_client import Client{', handle_file' if named else ''}\n\n"
        f"client = Client({door.url + '/'!r}{login})\n"
        "job = client.predict(\n"
        f"    prompt={_text(asked.prompt)},\n{''.join(named)}    settings={{\n{lines}    }},\n"
        '    api_name="/generate",\n)\n'
        'while (status := client.predict(job, api_name="/status"))["status"] in ("queued", "in_progress"):\n'
        '    print(status["status"], status["progress"], "%")\n'
        "    time.sleep(2)\n"
        'print(client.predict(job, api_name="/result"))  # where the MP4 was saved\n'
    )


_ARGUMENTS = ("prompt", "task", "frame_indices")  # said by which argument a file is given for


def _text(text: str) -> str:
    """A Python literal of `text`, a line of it a line."""
    lines = text.split("\n")
    if len(lines) == 1:
        return repr(text)
    parts = [*(f"{line}\n" for line in lines[:-1]), *(lines[-1:] if lines[-1] else [])]
    inside = "".join(f"        {part!r}\n" for part in parts)
    return f"(\n{inside}    )"
