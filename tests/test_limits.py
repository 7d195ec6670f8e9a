"""Limits against the released model's own arithmetic (diffusers) and the numbers MiniMax and vLLM-Omni publish."""

import dataclasses
import random
from pathlib import Path

import pytest

from backend import limits
from backend.errors import InvalidRequest
from backend.types import GenerationRequest, Geometry, MediaReport, Reference, ReferenceKind, Sampling, Task

IMAGE, VIDEO, AUDIO = ReferenceKind.IMAGE, ReferenceKind.VIDEO, ReferenceKind.AUDIO


def fields(problems):
    return [problem.field for problem in problems]


def request_of(tmp_path: Path, kinds=(), **sampling) -> GenerationRequest:
    references = []
    for index, kind in enumerate(kinds):
        path = tmp_path / f"{index}-{kind}"
        path.touch()
        references.append(Reference(path=path, kind=kind))
    return GenerationRequest(prompt="a boat", references=tuple(references), sampling=Sampling(**sampling))


# vLLM-Omni publishes 4, 5, 6, 8, 10, 12 and 15 s; h3-facts adds 8.7 s
@pytest.mark.parametrize(
    ("seconds", "frames"), [(4, 107), (5, 124), (6, 158), (8, 192), (8.7, 209), (10, 243), (12, 294), (15, 362)]
)
def test_durations_snap_to_published_frame_counts(seconds, frames):
    assert limits.num_frames_for_duration(seconds) == frames


def test_every_duration_lands_within_one_chunk_of_the_request():
    for tenths in range(40, 151):
        frames = limits.num_frames_for_duration(tenths / 10)
        assert frames % 17 == 5
        assert abs(frames - tenths / 10 * 24) <= 17


@pytest.mark.parametrize(("seconds", "nearest"), [(3, "4"), (3.99, "4"), (16, "15"), (float("nan"), "4"), (-1, "4")])
def test_durations_outside_are_refused_with_the_nearest(seconds, nearest):
    with pytest.raises(InvalidRequest, match=f"4 to 15 seconds; nearest is {nearest} seconds"):
        limits.num_frames_for_duration(seconds)


def test_geometry_equals_diffusers():
    h3 = pytest.importorskip("diffusers.modular_pipelines.minimax_h3.modular_pipeline")
    rng = random.Random(0)
    for _ in range(2000):
        ratio = rng.uniform(0.25, 4)
        expected = h3.resolve_canvas_size(ratio, 1, 32, 768, 768 * 1344)
        assert limits.canvas_for_ratio(ratio, 1, Geometry()) == expected[::-1]
    for n in range(1, 400):
        assert limits.snap_num_frames(n) == h3.align_num_frames(n, 17, 5)
    for n in range(107, 363, 17):
        assert limits.num_latent_frames(n) == h3.video_latent_num_frames(n, 17, 5)
        assert limits.num_audio_latents(n) == h3.audio_latent_num_frames(n)


def test_published_canvases():
    sizes = {name: limits.canvas_for_ratio(*ratio, Geometry()) for name, ratio in limits.RATIOS.items()}
    assert sizes == {
        "21:9": (1536, 672),
        "16:9": (1344, 768),
        "4:3": (1024, 768),
        "1:1": (768, 768),
        "3:4": (768, 1024),
        "9:16": (768, 1344),
    }


def test_every_canvas_of_a_ratio_is_itself_valid(tmp_path):
    for step in range(25, 401):
        width, height = limits.canvas_for_ratio(step, 100, Geometry())
        problems = limits.validate(request_of(tmp_path, width=width, height=height))
        # rounding to 32 px may push a ratio at the very end past 4:1; nothing else may happen
        assert fields(problems) in ([], ["width:height"])
        assert not problems or step in (25, 400) or max(width / height, height / width) > 4


def test_the_canvas_follows_size_then_ratio_then_keyframe_then_16_9():
    g = Geometry()
    assert limits.canvas_of(Sampling(width=64, height=96, ratio="1:1"), g, (10, 20)) == (64, 96)
    assert limits.canvas_of(Sampling(ratio="1:1"), g, (10, 20)) == (768, 768)
    assert limits.canvas_of(Sampling(), g, (1080, 1920)) == (768, 1344)
    assert limits.canvas_of(Sampling(), g, None) == (1344, 768)


def test_all_problems_are_reported_at_once():
    request = GenerationRequest(
        prompt=" \n",
        first_frame=Path("nowhere.png"),
        sampling=Sampling(
            num_frames=100, width=100, height=64, num_inference_steps=-4, seed=-3, flow_shift=0.0, audio_flow_shift=-1
        ),
    )
    problems = limits.validate(request)
    assert set(fields(problems)) == {
        "prompt",
        "num_frames",
        "width",
        "num_inference_steps",
        "seed",
        "flow_shift",
        "audio_flow_shift",
        "first_frame",
    }
    assert "num_frames=100: must be 17n+5; nearest is 107" in [str(problem) for problem in problems]
    assert "width=100: must be a positive multiple of 32; nearest is 96" in [str(problem) for problem in problems]


@pytest.mark.parametrize(
    ("sampling", "field"),
    [
        ({"width": 640}, "width"),
        ({"height": 640}, "height"),
        ({"width": 32, "height": 160}, "width:height"),
        ({"width": 1920, "height": 1088}, "width x height"),
        ({"ratio": "5:1"}, "ratio"),
        ({"ratio": "wide"}, "ratio"),
        ({"ratio": "0:0"}, "ratio"),
        ({"ratio": "inf:1"}, "ratio"),
        ({"num_frames": 379}, "num_frames"),
        ({"num_frames": 90}, "num_frames"),
        ({"num_inference_steps": 1}, "num_inference_steps"),
        ({"num_inference_steps": 201}, "num_inference_steps"),
        ({"seed": 2**63}, "seed"),
    ],
)
def test_single_rules(tmp_path, sampling, field):
    assert fields(limits.validate(request_of(tmp_path, **sampling))) == [field]


@pytest.mark.parametrize(("length", "count"), [(7000, 0), (7001, 1)])
def test_prompt_length(length, count):
    assert len(limits.validate(GenerationRequest(prompt="x" * length))) == count


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        ([AUDIO], "audio needs at least one image or video"),
        ([IMAGE] * 10, "at most 9 image files; remove 1"),
        ([IMAGE] * 7 + [VIDEO] * 3 + [AUDIO] * 3, "at most 12 in all"),
        ([VIDEO] * 4, "at most 3 video files"),
    ],
)
def test_reference_counts(tmp_path, kinds, said):
    problems = limits.validate(request_of(tmp_path, kinds))
    assert any(said in str(problem) for problem in problems), problems


def test_full_house_of_references_is_accepted(tmp_path):
    assert limits.validate(request_of(tmp_path, [IMAGE] * 9 + [VIDEO] * 1 + [AUDIO] * 2)) == ()


def report(kind, duration):
    return MediaReport(name="clip", kind=kind, container="MP4", duration_s=duration)


def test_video_and_audio_have_budgets_of_their_own_and_count_what_is_used(tmp_path):
    request = request_of(tmp_path, [VIDEO, VIDEO, AUDIO])
    media = {r.path: report(r.kind, 10.0) for r in request.references}
    assert [str(p) for p in limits.validate(request, media)] == [
        "references=20.0 s of video: at most 15 seconds of video in all; trim or remove clips"
    ]
    first = dataclasses.replace(request.references[0], start_s=3.0, length_s=5.0)
    trimmed = dataclasses.replace(request, references=(first, *request.references[1:]))
    assert limits.validate(trimmed, media) == ()


@pytest.mark.parametrize(("start", "length", "bad"), [(0, 1.5, True), (9, None, True), (11, None, True), (-1, 3, True)])
def test_trims_must_leave_two_seconds_inside_the_clip(tmp_path, start, length, bad):
    request = request_of(tmp_path, [VIDEO])
    cut = dataclasses.replace(request.references[0], start_s=start, length_s=length)
    media = {cut.path: report(VIDEO, 10.0)}
    assert bool(limits.validate(dataclasses.replace(request, references=(cut,)), media)) is bad


def test_tags_number_by_modality_and_a_soundtrack_takes_an_audio_number():
    kinds = [(IMAGE, False), (VIDEO, True), (AUDIO, True), (VIDEO, False), (IMAGE, False)]
    assert limits.reference_tags(kinds) == (
        ("<Picture 1>",),
        ("<Audio 1>", "<Video 1>"),
        ("<Audio 2>",),
        ("<Video 2>",),
        ("<Picture 2>",),
    )


def test_task_follows_from_what_is_present(tmp_path):
    assert GenerationRequest(prompt="x").task is Task.T2VA
    assert GenerationRequest(prompt="x", last_frame=Path("a")).task is Task.FL2VA
    assert request_of(tmp_path, [IMAGE]).task is Task.REF2VA


def test_keyframes_and_references_do_not_mix(tmp_path):
    request = dataclasses.replace(request_of(tmp_path, [IMAGE]), first_frame=Path(__file__))
    assert fields(limits.validate(request)) == ["first_frame"]


def test_resolve_makes_canvas_and_seed_concrete(tmp_path):
    resolved = limits.resolve(request_of(tmp_path, ratio="9:16"), Geometry(), None, seed=5)
    assert (resolved.sampling.width, resolved.sampling.height, resolved.sampling.seed) == (768, 1344, 5)
    kept = limits.resolve(request_of(tmp_path, seed=7), Geometry(), (100, 100), seed=5)
    assert (kept.sampling.width, kept.sampling.seed) == (768, 7)
