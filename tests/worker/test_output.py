import dataclasses
import json
import time

import numpy as np
import pytest
from PIL import Image

from backend import codec
from backend.errors import UnusableResult, WriteFailure
from backend.events import Notice, PreviewReady
from backend.presets import Device, Dtype
from backend.process.messages import Setup
from backend.types import (
    EncoderSettings,
    GenerationRequest,
    JobId,
    MediaReport,
    PreparedMedia,
    Reference,
    ReferenceKind,
    Render,
    Sampling,
    Stage,
)
from backend.worker import sidecar
from backend.worker.output import Output
from backend.worker.report import Report


def order(folder, **kwargs):
    sampling = Sampling(num_frames=30, width=64, height=32, seed=12, num_inference_steps=5)
    return Render(
        job=JobId("j"),
        request=GenerationRequest(
            prompt="ein „Leuchtturm“ 灯台",
            references=(Reference(path=folder / "ref.png", kind=ReferenceKind.IMAGE),),
            sampling=sampling,
        ),
        media=PreparedMedia(reports=(MediaReport(name="ref.png", kind=ReferenceKind.IMAGE, container="PNG"),)),
        folder=folder,
        **kwargs,
    )


def frames(count):
    return np.full((count, 32, 64, 3), 90, np.uint8)


def test_the_file_holds_the_asked_number_of_frames_though_the_model_decodes_more(tmp_path):
    import av

    said = []
    with Output(order(tmp_path, encoder=EncoderSettings(save_last_frame=True, save_wav=True))) as output:
        output.audio(np.zeros((2, 40_000), np.float32))
        output.video(frames(17))
        output.video(frames(17))
        output.video(frames(17))
        end = output.seal({"a": 1}, said.append)
    with av.open(str(end.video)) as file:
        assert sum(1 for _ in file.decode(video=0)) == 30
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "audio.wav",
        "last_frame.png",
        "video.json",
        "video.mp4",
    ]


def test_an_odd_result_is_said_and_recorded(tmp_path):
    said = []
    with Output(order(tmp_path)) as output:
        output.audio(np.zeros((2, 40_000), np.float32))
        output.video(frames(30))
        end = output.seal({"a": 1}, said.append)
    assert any("silent" in line for line in said) and any("flat colour" in line for line in said)
    stored = json.loads(end.sidecar.read_text("utf-8"))
    assert stored["a"] == 1 and stored["warnings"] == said
    assert stored["checks"]["video_frames"] == 30
    assert stored["checks"]["video_mean"] == 90.0  # the level the frames were filled with


def test_a_result_with_nothing_in_it_is_no_success(tmp_path):
    with pytest.raises(UnusableResult, match=r"every frame is black.*no number"), Output(order(tmp_path)) as output:
        output.audio(np.full((2, 40_000), np.nan, np.float32))
        output.video(np.zeros((30, 32, 64, 3), np.uint8))
        output.seal({}, print)
    assert list(tmp_path.iterdir()) == []


def test_left_early_nothing_remains(tmp_path):
    with pytest.raises(RuntimeError), Output(order(tmp_path)) as output:
        output.video(frames(17))
        raise RuntimeError("model broke")
    assert list(tmp_path.iterdir()) == []


def test_a_sidecar_that_cannot_be_written_takes_the_video_with_it(tmp_path):
    (tmp_path / "video.json").mkdir()
    with pytest.raises(WriteFailure, match=r"video\.json could not be written"), Output(order(tmp_path)) as output:
        output.video(frames(30))
        output.seal({}, print)
    assert [path.name for path in tmp_path.iterdir()] == ["video.json"]


def test_a_render_without_canvas_or_seed_is_a_bug_not_a_video(tmp_path):
    render = order(tmp_path)
    bare = codec.decode(Render, codec.encode(render) | {"request": codec.encode(GenerationRequest(prompt="x"))})
    with pytest.raises(ValueError, match="concrete canvas and seed"):
        Output(bare)


def test_the_sidecar_says_what_was_asked_and_what_it_took(tmp_path):
    render = order(tmp_path)
    report = Report(0, lambda event: None)
    report.seconds = {Stage.ENCODE: 1.23456, Stage.DENOISE: 60.0}
    report.stage(Stage.MUX)
    setup = Setup(
        run="r",
        rank=0,
        world_size=2,
        model="native",
        checkpoint="/models/h3",
        device=Device.CUDA,
        dtype=Dtype.BFLOAT16,
        rendezvous=tmp_path / "x",
        cache_dir=tmp_path,
    )
    details = sidecar.describe(render, setup, {"attention": "fa3", "versions": {"torch": "2.14"}}, report)
    assert json.loads(json.dumps(details)) == details
    assert codec.decode(GenerationRequest, details["request"]) == render.request
    assert details["task"] == "ref2va"
    assert (details["seed"], details["num_frames"], details["width"], details["height"]) == (12, 30, 64, 32)
    assert details["steps"] == {"sigma_points": 5, "forwards": 4}
    assert (details["device"], details["dtype"], details["world_size"]) == ("cuda", "bfloat16", 2)
    assert details["attention"] == "fa3"
    assert details["seconds"] | {"mux": 0} == {"encode": 1.235, "denoise": 60.0, "mux": 0}
    assert details["media"][0]["container"] == "PNG"
    sidecar.write(tmp_path / "s.json", details)
    assert json.loads((tmp_path / "s.json").read_text(encoding="utf-8")) == details


def test_versions_name_what_is_installed_only():
    found = sidecar.versions(("numpy", "no-such-distribution"))
    assert found["numpy"] == np.__version__
    assert set(found) == {"python", "numpy"}


def watched(folder, count=107):
    """An output that tells, and what it told."""
    told = []
    report = Report(0, told.append)
    render = order(folder)
    sampling = dataclasses.replace(render.request.sampling, num_frames=count)
    render = dataclasses.replace(render, request=dataclasses.replace(render.request, sampling=sampling))
    return render, report, told


def test_a_picture_is_whole_told_and_gone_at_the_end(tmp_path):
    render, report, told = watched(tmp_path)
    ramp = np.arange(8 * 16 * 3, dtype=np.uint8).reshape(8, 16, 3)
    with Output(render, report) as output:
        for step in (1, 2):
            output.preview(step, ramp + step)
            assert np.array_equal(np.asarray(Image.open(tmp_path / "preview.png")), ramp + step)
    assert told == [PreviewReady(path=tmp_path / "preview.png", step=step) for step in (1, 2)]
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_takes_no_picture_is_said_once_and_ends_the_pictures_only(tmp_path):
    render, report, told = watched(tmp_path)
    (tmp_path / "preview.png").mkdir()  # nothing can be put in its place
    with Output(render, report) as output:
        output.preview(1, np.zeros((8, 16, 3), np.uint8))
        output.preview(2, np.zeros((8, 16, 3), np.uint8))
        assert [type(event) for event in told] == [Notice]
        assert "preview.png could not be written" in told[0].message
        (tmp_path / "preview.png").rmdir()


def test_the_first_seconds_are_told_while_the_rest_comes_and_their_time_is_recorded(tmp_path):
    render, report, told = watched(tmp_path)
    report.stage(Stage.DECODE)
    with Output(render, report) as output:
        output.audio(np.full((2, round(107 / 24 * 32000)), 0.1, np.float32))
        for _ in range(7):
            output.video(frames(17))
        wait_until(lambda: PreviewReady(path=tmp_path / "stream.mp4", step=4) in told)
        assert (tmp_path / "stream.mp4").stat().st_size > 1000
        wait_until(lambda: output._writer.first_second_at is not None)
        end = output.seal({}, print)
    assert 0 < end.details["first_second_s"] < 60
    assert {path.name for path in tmp_path.iterdir()} == {"video.mp4", "video.json"}


def test_a_quality_preset_can_do_without(tmp_path):
    render, report, told = watched(tmp_path)
    render = dataclasses.replace(render, encoder=EncoderSettings(stream=False))
    with Output(render, report) as output:
        output.audio(np.full((2, 140_000), 0.1, np.float32))
        output.video(frames(107))
        end = output.seal({}, print)
    assert not told and "first_second_s" not in end.details


def wait_until(holds, timeout_s=20.0):
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)
