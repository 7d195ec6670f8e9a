"""Panel values become requests and come back unchanged; every mistake is told at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend import limits
from backend.errors import InvalidRequest
from backend.types import MediaReport, Reference, ReferenceKind, Task
from h3ui import form
from h3ui.form import MediaItem, Mode, PanelValues, Size

KINDS = {"png": ReferenceKind.IMAGE, "mp4": ReferenceKind.VIDEO, "wav": ReferenceKind.AUDIO}


def item(tmp_path: Path, name: str, duration_s: float | None = None, **trim: float) -> MediaItem:
    path = tmp_path / name
    path.write_bytes(b"x")
    kind = KINDS[name.split(".")[1]]
    sound = "aac" if kind is not ReferenceKind.IMAGE else None
    report = MediaReport(
        name=name, kind=kind, container="X", width=640, height=960, duration_s=duration_s, audio_codec=sound
    )
    return MediaItem(path=path, report=report, **trim)


def fields_of(error: pytest.ExceptionInfo[InvalidRequest]) -> list[str]:
    return [problem.field for problem in error.value.problems]


def test_text_alone_is_t2va_with_seconds_snapped_and_seed_left_open():
    request = form.to_request(PanelValues(prompt="a boat", duration_s=4.0, steps=4))
    assert request.task is Task.T2VA
    assert request.sampling.num_frames == 107  # h3-facts 2: 4 s -> 107
    assert request.sampling.num_inference_steps == 4
    assert (request.sampling.width, request.sampling.height, request.sampling.ratio) == (None, None, None)
    assert request.sampling.seed is None


@pytest.mark.parametrize(("seconds", "frames"), [(4, 107), (5, 124), (8, 192), (8.7, 209), (10, 243), (15, 362)])
def test_duration_gives_the_published_frame_counts(seconds, frames):
    assert form.to_request(PanelValues(prompt="x", duration_s=seconds)).sampling.num_frames == frames


@pytest.mark.parametrize("text", ["", "-1", "  ", " -1 "])
def test_no_seed_means_a_drawn_one(text):
    assert form.to_request(PanelValues(prompt="x", seed=text)).sampling.seed is None


def test_large_seeds_stay_exact():
    assert form.to_request(PanelValues(prompt="x", seed="9007199254740993")).sampling.seed == 2**53 + 1


def test_shape_and_size_are_alternatives():
    shaped = form.to_request(PanelValues(prompt="x", ratio="9:16"))
    assert (shaped.sampling.ratio, shaped.sampling.width) == ("9:16", None)
    sized = form.to_request(PanelValues(prompt="x", ratio="9:16", size=Size.CUSTOM, width=224.0, height=128.0))
    assert (sized.sampling.width, sized.sampling.height, sized.sampling.ratio) == (224, 128, None)


def test_every_mistake_is_told_at_once():
    wrong = PanelValues(
        prompt="  ", duration_s=16, steps=-3, seed="abc", size=Size.CUSTOM, width=100, height=None, mode=Mode.TEXT
    )
    with pytest.raises(InvalidRequest) as error:
        form.to_request(wrong)
    assert {"prompt", "duration", "num_inference_steps", "seed", "height"} <= set(fields_of(error))
    told = str(error.value)
    assert "4 to 15 seconds" in told and "abc" in told


@pytest.mark.parametrize(
    "values", [{"duration_s": None}, {"steps": None}, {"steps": 4.5}, {"duration_s": float("nan")}]
)
def test_emptied_and_broken_numbers_are_told_in_words(values):
    with pytest.raises(InvalidRequest) as error:
        form.to_request(PanelValues(prompt="x", **values))
    assert fields_of(error)[0] in ("duration", "steps")


def test_width_that_is_no_multiple_of_32_names_the_nearest():
    with pytest.raises(InvalidRequest) as error:
        form.to_request(PanelValues(prompt="x", size=Size.CUSTOM, width=100, height=128))
    assert "nearest is 96" in str(error.value)


def test_the_mode_decides_which_media_are_sent(tmp_path):
    values = PanelValues(
        prompt="x", first_frame=item(tmp_path, "a.png"), references=(item(tmp_path, "b.png"),), mode=Mode.FRAMES
    )
    frames = form.to_request(values)
    assert (frames.task, frames.references) == (Task.FL2VA, ())
    text = form.to_request(PanelValues(prompt="x", first_frame=values.first_frame, references=values.references))
    assert text.task is Task.T2VA


def test_references_keep_order_kind_and_trim(tmp_path):
    clip = item(tmp_path, "clip.mp4", 10.0, start_s=1.5, length_s=4.0)
    picture = item(tmp_path, "p.png", start_s=3.0)  # a trim typed before is meaningless for a picture
    request = form.to_request(PanelValues(prompt="x", mode=Mode.REFERENCES, references=(clip, picture)))
    assert request.references == (
        Reference(path=clip.path, kind=ReferenceKind.VIDEO, start_s=1.5, length_s=4.0),
        Reference(path=picture.path, kind=ReferenceKind.IMAGE),
    )
    assert form.tags((clip, picture)) == (("<Audio 1>", "<Video 1>"), ("<Picture 1>",))


def test_rules_of_references_are_told(tmp_path):
    ten = tuple(item(tmp_path, f"{index}.png") for index in range(10))
    with pytest.raises(InvalidRequest, match="at most 9 image files"):
        form.to_request(PanelValues(prompt="x", mode=Mode.REFERENCES, references=ten))
    with pytest.raises(InvalidRequest, match="audio needs at least one image or video"):
        form.to_request(PanelValues(prompt="x", mode=Mode.REFERENCES, references=(item(tmp_path, "a.wav", 5.0),)))
    with pytest.raises(InvalidRequest, match="at most 15 seconds of video"):
        clips = (item(tmp_path, "a.mp4", 9.0), item(tmp_path, "b.mp4", 8.0))
        form.to_request(PanelValues(prompt="x", mode=Mode.REFERENCES, references=clips))


@pytest.mark.parametrize("num_frames", range(limits.MIN_FRAMES, limits.MAX_FRAMES + 1, limits.FRAMES_PER_CHUNK))
def test_every_frame_count_comes_back_through_the_slider(num_frames):
    seconds = form.duration_for_frames(num_frames)
    assert seconds * 2 == int(seconds * 2)
    assert limits.num_frames_for_duration(seconds) == num_frames


def test_a_stored_request_fills_the_panels_and_makes_the_same_request_again(tmp_path):
    values = PanelValues(
        prompt="x",
        mode=Mode.REFERENCES,
        references=(item(tmp_path, "a.mp4", 10.0, start_s=2.0, length_s=5.0),),
        size=Size.CUSTOM,
        width=224,
        height=128,
        duration_s=8,
        steps=12,
        seed="77",
    )
    request = form.to_request(values)
    stored = form.from_request(request)
    assert (stored.mode, stored.size, stored.duration_s, stored.seed) == (Mode.REFERENCES, Size.CUSTOM, 8.0, "77")
    again = form.to_request(
        PanelValues(
            prompt=stored.prompt,
            mode=stored.mode,
            references=values.references,
            size=stored.size,
            width=stored.width,
            height=stored.height,
            duration_s=stored.duration_s,
            steps=stored.steps,
            seed=stored.seed,
        )
    )
    assert again == request


def test_moving_keeps_everything_and_stops_at_the_ends(tmp_path):
    a, b, c = (item(tmp_path, f"{name}.png") for name in "abc")
    assert form.move((a, b, c), 2, 1) == (a, c, b)
    assert form.move((a, b, c), 0, 1) == (b, a, c)
    assert form.move((a, b, c), 0, -1) == (a, b, c)
    assert form.move((a, b, c), 2, 3) == (a, b, c)


def test_trim_reads_numbers_as_people_type_them(tmp_path):
    clip = item(tmp_path, "clip.mp4", 10.0)
    assert form.trim(clip, "start", " 2,5 ").start_s == 2.5
    assert form.trim(form.trim(clip, "length", "4"), "length", "").length_s is None
    for wrong in ("abc", "-1", "nan", "inf"):
        with pytest.raises(InvalidRequest, match="must be seconds"):
            form.trim(clip, "start", wrong)


@pytest.mark.parametrize(("mode", "field"), [(Mode.FRAMES, "first_frame"), (Mode.REFERENCES, "references")])
def test_a_mode_without_its_media_is_a_problem_and_no_text_video(mode, field):
    with pytest.raises(InvalidRequest) as refused:
        form.to_request(PanelValues(prompt="a boat", mode=mode))
    assert [problem.field for problem in refused.value.problems] == [field]
    assert "choose Text" in str(refused.value)


@pytest.mark.parametrize("text", ["1_0", "٣", "1e3", "0x10", "9" * 5000])
def test_a_seed_is_plain_digits(text):
    with pytest.raises(InvalidRequest, match="seed"):
        form.to_request(PanelValues(prompt="a boat", seed=text))
