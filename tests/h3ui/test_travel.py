"""The same settings travel page -> sidecar -> MP4 -> page -> command line, curl, Python -> request, unchanged."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import io
import json
import os
import shlex
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from starlette.datastructures import FormData, UploadFile

import app
from backend import codec, limits
from backend.api import Backend
from backend.engines.videos_client import Dialect, fields_for
from backend.http.forms import Asked, asked_by_form
from backend.jobs.recall import find_media
from backend.jobs.records import JobRecord, JobState
from backend.jobs.services import find_checkpoint
from backend.media import boxes, kept, mp4
from backend.presets import Device, Dtype, quality_presets
from backend.process.messages import Setup
from backend.settings import Settings
from backend.types import (
    Adapter,
    EncoderSettings,
    GenerationRequest,
    JobId,
    MediaReport,
    PreparedMedia,
    ReferenceKind,
    Render,
    Sampling,
)
from backend.worker import sidecar
from backend.worker.report import Report
from h3ui import command, form
from h3ui.command import Call, Door
from h3ui.form import MediaItem, Mode, PanelValues, Size
from h3ui.handlers import Handlers
from h3ui.public_api import asked_by
from tests.fake_hub import lora
from tests.h3ui.test_handlers import Board, data
from tests.job_fakes import World, fake_services

DOOR = Door(url="https://studio.example:7860", user="ann")
ADAPTER = Path("few.safetensors")  # the only one of this server
NAMES = (
    "a",
    "my cat",
    "-dash",
    "~home",
    'it\'s "q"',
    "雨",
    "a:2",
    "x;type=y",
    "$HOME`id`",
    "back\\slash",
    "a,b",
    "same",
)
KINDS = {ReferenceKind.IMAGE: ".png", ReferenceKind.VIDEO: ".mp4", ReferenceKind.AUDIO: ".wav"}
# What a text field can hold: no half characters, and line ends as browsers give them.
PLAIN = st.characters(exclude_categories=("Cs",), exclude_characters="\r\0")
HARD = ("@file", "<in.txt", "-v", "--out x", "a=b;type=c", "'\"\\\n$(id) `id` $HOME !!", "\n\n x \n", "%s {} \\n")
PROMPTS = st.sampled_from(HARD) | st.text(PLAIN, min_size=1, max_size=300).filter(
    lambda text: text.strip() != "" and not any(token in text for token in limits.VISION_TOKENS)
)


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Iterator[Any]:
    """A backend whose media are what their suffix says, a page of names, and an MP4 to carry settings."""
    folder = tmp_path_factory.mktemp("travel")
    before = os.environ.get("GRADIO_TEMP_DIR")
    os.environ["GRADIO_TEMP_DIR"] = str(folder / "uploads")
    services = dataclasses.replace(fake_services(World()), find_checkpoint=find_checkpoint)
    lora(folder / "data" / "adapters" / "few.safetensors", title="Few steps", num_inference_steps="3")
    backend = Backend(Settings(data_dir=folder / "data"), preset="tiny-cpu", services=services)
    with mp4.Mp4Writer(folder / "bare.mp4", 64, 64, EncoderSettings(x264_preset="ultrafast")) as writer:
        writer.write_frames(np.zeros((3, 64, 64, 3), np.uint8))
        writer.close({})
    yield backend, Handlers(backend, Board()), folder / "bare.mp4"  # type: ignore[arg-type]
    backend.close()
    os.environ.pop("GRADIO_TEMP_DIR")
    if before is not None:
        os.environ["GRADIO_TEMP_DIR"] = before


@st.composite
def items(draw: st.DrawFn, kind: ReferenceKind) -> tuple[str, ReferenceKind, float, float | None]:
    """(name, kind, start, length) of a file of 4 seconds, used for 2 seconds or more."""
    start, length = 0.0, None
    if kind is not ReferenceKind.IMAGE:
        start = draw(st.floats(0, 1.9, allow_subnormal=False))
        length = draw(st.none() | st.floats(2, 4 - start))
    return (
        draw(st.sampled_from([name for name in NAMES if not {"\\", ":"} & set(name)])) + KINDS[kind],
        kind,
        start,
        length,
    )


@st.composite
def pages(draw: st.DrawFn) -> dict[str, Any]:
    """What a person may leave on the page: valid, of any of the three ways."""
    mode = draw(st.sampled_from(Mode))
    image = items(ReferenceKind.IMAGE)
    references = draw(
        st.lists(items(ReferenceKind.IMAGE), min_size=1, max_size=3).flatmap(
            lambda found: st.tuples(
                st.lists(items(ReferenceKind.VIDEO), max_size=3), st.lists(items(ReferenceKind.AUDIO), max_size=3)
            ).flatmap(lambda more: st.permutations([*found, *more[0], *more[1]]))
        )
    )
    first, last = draw(st.tuples(st.none() | image, st.none() | image).filter(lambda pair: pair != (None, None)))
    size = draw(st.sampled_from(Size))
    width, height = draw(
        st.tuples(st.integers(4, 40), st.integers(4, 30))
        .map(lambda pair: (pair[0] * 32, pair[1] * 32))
        .filter(lambda pair: 0.25 <= pair[0] / pair[1] <= 4 and pair[0] * pair[1] <= limits.MAX_CANVAS_PIXELS)
    )
    return {
        "prompt": draw(PROMPTS),
        "mode": mode,
        "first": first,
        "last": last,
        "references": tuple(references),
        "ratio": draw(st.sampled_from(form.RATIO_CHOICES)),
        "size": size,
        "width": width,
        "height": height,
        "duration_s": draw(st.integers(8, 30)) / 2,
        "steps": draw(st.integers(limits.MIN_STEPS, limits.MAX_STEPS)),
        "seed": draw(st.just("") | st.integers(0, limits.MAX_SEED).map(str)),
        "quality": draw(st.sampled_from(sorted(quality_presets()))),
        "preset": draw(st.sampled_from((None, "tiny-cpu"))),
        "adapter": draw(st.none() | st.floats(-4, 4).map(lambda scale: Adapter(path=ADAPTER, scale=scale))),
    }


def on_page(drawn: dict[str, Any], folder: Path) -> PanelValues:
    """`drawn` with real files, each in a folder of its own, as uploads are."""
    count = 0

    def item(told: tuple[str, ReferenceKind, float, float | None] | None) -> MediaItem | None:
        nonlocal count
        if told is None:
            return None
        count += 1
        name, kind, start, length = told
        path = folder / str(count) / name
        path.parent.mkdir()
        path.write_bytes(b"content %d" % count)
        seconds = None if kind is ReferenceKind.IMAGE else 4.0
        report = MediaReport(name=name, kind=kind, container="X", duration_s=seconds, width=640, height=360)
        return MediaItem(path=path, report=report, start_s=start, length_s=length)

    media = {"first_frame": item(drawn["first"]), "last_frame": item(drawn["last"])}
    media["references"] = tuple(item(told) for told in drawn["references"])  # type: ignore[assignment]
    rest = {name: value for name, value in drawn.items() if name not in ("first", "last", "references", "preset")}
    return PanelValues(**media, **rest)


def same(request: GenerationRequest) -> dict[str, Any]:
    """A request with files by their content; what kind a file is, its content says."""
    told = codec.encode(request)
    for name in ("first_frame", "last_frame"):
        told[name] = Path(told[name]).read_bytes().decode() if told[name] else None
    for adapter in told["sampling"]["adapters"]:
        adapter["path"] = Path(adapter["path"]).name
    for reference in told["references"]:
        reference |= {"path": Path(reference["path"]).read_bytes().decode(), "kind": None}
    return told


def by_command_line(call: Call, folder: Path) -> Asked:
    words = shlex.split(command.shell(call))
    assert words[:3] == ["python", "app.py", "generate"]
    with contextlib.chdir(folder):
        options = app._parser().parse_args(words[2:])
        problems, request = app._request(options)
    assert not problems
    return Asked(request=request, quality=options.quality, preset=options.preset)


def by_curl(call: Call, folder: Path) -> Asked:
    words = shlex.split(command.curl(call, DOOR)[0])
    assert words[:7] == ["curl", "-s", "-u", "ann", "-X", "POST", "https://studio.example:7860/v1/videos"]
    parts: list[tuple[str, Any]] = []
    for option, value in zip(words[7::2], words[8::2], strict=True):
        name, _, text = value.partition("=")
        if option == "--form-string":
            parts.append((name, text))
            continue
        assert option == "-F" and text[:2] == '@"' and text[-1] == '"'
        file = text[2:-1].replace('\\"', '"').replace("\\\\", "\\")
        parts.append((name, UploadFile(io.BytesIO((folder / file).read_bytes()), filename=file)))
    return asked_by_form(FormData(parts), Path(tempfile.mkdtemp(dir=folder)))


def by_python(call: Call, folder: Path) -> Asked:
    tree = ast.parse(command.python(call, DOOR))
    (predict,) = [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and any(k.arg == "prompt" for k in node.keywords)
    ]
    given = {keyword.arg: keyword.value for keyword in predict.keywords}
    assert ast.literal_eval(given.pop("api_name")) == "/generate"

    def handled(node: ast.expr) -> Path:
        assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "handle_file"
        return folder / ast.literal_eval(node.args[0])

    frames = {name: handled(given[name]) for name in ("first_frame", "last_frame") if name in given}
    files = [handled(node) for node in getattr(given.get("references"), "elts", ())]
    return asked_by(ast.literal_eval(given["prompt"]), frames, files, ast.literal_eval(given["settings"]))


def by_remote_engine(call: Call, folder: Path) -> Asked:
    fields = fields_for(Dialect.STUDIO, call.request, call.quality)
    files = [("input_references", UploadFile(io.BytesIO(path.read_bytes()), filename="x")) for path in call.files]
    return asked_by_form(FormData([*fields.items(), *files]), Path(tempfile.mkdtemp(dir=folder)))


def assert_scripts_say(request: GenerationRequest, call: Call, folder: Path) -> None:
    place = Path(tempfile.mkdtemp(dir=folder))
    for path in call.files:
        (place / call.name(path)).write_bytes(path.read_bytes())
    for read in (by_command_line, by_curl, by_python):
        asked = read(call, place)
        assert same(asked.with_adapters(listed)) == same(request), read.__name__
        assert (asked.quality, asked.preset) == (call.quality, call.preset), read.__name__


def listed(name: str, scale: float, _field: str) -> Adapter:
    """What a server makes of an adapter's name."""
    return Adapter(path=Path(f"{name}.safetensors"), scale=scale)


def through_an_mp4(request: GenerationRequest, drawn: dict[str, Any], bare: Path, names: dict[str, str]) -> kept.Kept:
    """Sidecar and MP4 as a job leaves them, read back."""
    render = Render(
        job=JobId("j"),
        request=request,
        media=PreparedMedia(),
        folder=bare.parent,
        quality=drawn["quality"],
        names=names,
    )
    setup = Setup(
        run="r",
        rank=0,
        world_size=1,
        model="stub",
        checkpoint="/models/x",
        device=Device.CPU,
        dtype=Dtype.FLOAT32,
        rendezvous=Path("/r"),
        cache_dir=Path("/c"),
    )
    details = sidecar.describe(render, setup, {}, Report(0, lambda event: None))
    written = json.loads(json.dumps(details, ensure_ascii=False).encode())
    assert codec.decode(GenerationRequest, written["request"]) == request
    made = bare.with_name("made.mp4")
    with bare.open("rb") as source, made.open("wb") as target:
        boxes.put_index_first(source, target, {"comment": json.dumps(kept.portable(details), ensure_ascii=False)})
    with made.open("rb") as file:
        return kept.understand(json.loads(boxes.metadata(file)["comment"]), made.name)


@given(drawn=pages())
@settings(
    max_examples=40, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
def test_settings_come_round(world, drawn):
    backend, handlers, bare = world
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        values = on_page(drawn, folder)
        if values.adapter is not None:
            values = dataclasses.replace(values, adapter=backend.adapter("few", values.adapter.scale))
        asked = form.to_request(values)
        names = command.told_apart({path: path.name for path in Call(request=asked).files})
        call = Call(request=asked, quality=drawn["quality"], preset=drawn["preset"], names=names)
        assert_scripts_say(asked, call, folder)

        planned = backend.plan(asked, probed=form.reports(values), quality=drawn["quality"]).request
        turbo = drawn["quality"] == "turbo"
        assert [each.path.name for each in planned.sampling.adapters] == [ADAPTER.name] * (
            turbo or bool(asked.sampling.adapters)
        )
        record = _record(planned, drawn["quality"])
        inside = through_an_mp4(planned, drawn, bare, {})
        recalled = find_media(inside, record)
        assert (recalled.missing(), inside.quality) == ((), drawn["quality"])
        assert same(recalled.request()) == same(planned)

        filled = {**data(Board()), **handlers.fill_request(recalled.request(), inside.quality, recalled.labels())}
        again = form.to_request(handlers.values({key: _value(update) for key, update in filled.items()}))
        assert same(again) == same(planned)
        names = command.told_apart({path: path.name for path in Call(request=again).files})
        assert list(names.values()) == list(command.told_apart({p: p.name for p in call.files}).values())
        call = Call(request=again, quality=drawn["quality"], preset="tiny-cpu", names=names)
        assert_scripts_say(planned, call, folder)
        if not planned.sampling.adapters:  # LoRA files are not sent elsewhere
            assert same(by_remote_engine(call, folder).request) == same(planned)
        assert_scripts_say(planned, command.call_of(_record(again, drawn["quality"])), folder)


@pytest.mark.parametrize("quality", ["turbo", "draft", "fast", "standard"])
def test_a_quality_alone_is_the_same_job_by_every_door(world, quality):
    """What the page makes of one press on a quality, a bare command line and a bare body of HTTP ask for too."""
    backend, handlers, _ = world
    fields = data(Board(), prompt="x", seed="7", quality=quality)
    s = handlers.panels.sampling
    pressed = {**fields, s.adapter: "", s.strength: 0.3} | handlers.quality_chosen(fields)
    jobs = [form.to_request(handlers.values(pressed))]
    words = ["generate", "--prompt=x", "--frames=107", "--seed=7", f"--quality={quality}", "--out=a.mp4"]
    options = app._parser().parse_args(words)
    _, typed = app._request(options)
    jobs.append(typed.with_steps(backend.default_steps(typed, options.quality)))
    said = {"num_frames": 107, "seed": 7, "quality": quality}
    jobs.append(asked_by("x", {}, [], said).complete(backend))
    jobs.append(
        asked_by_form(
            FormData([("prompt", "x"), *((name, str(value)) for name, value in said.items())]), Path()
        ).complete(backend)
    )
    planned = [backend.plan(job, quality=quality).request for job in jobs]
    assert planned == [planned[0]] * 4
    few = Adapter(path=backend.settings.adapters_dir / ADAPTER)
    assert planned[0].sampling.adapters == ((few,) if quality == "turbo" else ())
    assert (planned[0].sampling.num_inference_steps == 3) == (quality == "turbo")


def _value(update: Any) -> Any:
    return update["value"] if isinstance(update, dict) and "value" in update else update


def _record(request: GenerationRequest, quality: str) -> JobRecord:
    return JobRecord(
        id=JobId("j"),
        owner="session:x",
        state=JobState.SUCCEEDED,
        position=None,
        request=request,
        preset="tiny-cpu",
        quality=quality,
        title="t",
        favourite=False,
        created_at=0.0,
        started_at=None,
        finished_at=None,
        video=None,
        sidecar=None,
        error=None,
        folder=Path("/nowhere"),
        num_events=0,
    )


@pytest.fixture(scope="module")
def listener() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """A server that keeps what is posted to it."""
    got: list[tuple[str, bytes]] = []

    class Keep(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((self.headers["content-type"], self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Keep)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", got
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("prompt", ["@/etc/passwd", "<x\n'\"\\ ;type=text/html, 雨 $HOME"])
def test_a_real_curl_sends_what_is_shown(listener, tmp_path, name, prompt):
    import asyncio
    import shutil

    from starlette.requests import Request

    if shutil.which("curl") is None:
        pytest.skip("no curl on this machine")
    url, got = listener
    path = tmp_path / f"{name}.png"
    path.write_bytes(b"\x89PNG content")
    request = GenerationRequest(prompt=prompt, last_frame=path)
    shown = command.curl(Call(request=request), Door(url=url))[0]
    done = subprocess.run(["bash", "-c", shown], cwd=tmp_path, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, done.stderr
    kind, body = got.pop()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def read() -> Asked:
        scope = {"type": "http", "method": "POST", "headers": [(b"content-type", kind.encode())]}
        return asked_by_form(await Request(scope, receive).form(), tmp_path)

    asked = asyncio.run(read())
    assert asked.request.prompt == prompt
    assert asked.request.last_frame is not None and asked.request.last_frame.read_bytes() == b"\x89PNG content"
    assert asked.request.first_frame is None


@pytest.mark.parametrize("scale", [1.0, -0.1, 1e-07, 2 / 3])
def test_an_adapter_goes_by_its_name_and_exact_strength(tmp_path, scale):
    adapter = Adapter(path=tmp_path / "turbo: fast.safetensors", scale=scale)
    call = Call(request=GenerationRequest(prompt="x", sampling=Sampling(adapters=(adapter,))))
    for read in (by_curl, by_python):
        assert read(call, tmp_path).adapters == (("turbo: fast", scale),)
    assert by_command_line(call, tmp_path).request.sampling.adapters == (adapter,)
