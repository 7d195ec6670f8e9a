"""Seconds and refusals: measured and published times are met, finished jobs correct them, a way out really fits."""

import dataclasses
import re

import pytest
from shapes import machine, shape

from backend import presets
from backend.hardware import rates
from backend.hardware.forecast import FinishedJob, Question, forecast, scaled_shape
from backend.hardware.model_size import ModelSize
from backend.hardware.placement import place
from backend.hardware.report import forecast_lines
from backend.hardware.request_shape import shape_of
from backend.presets import Exchange, HardwarePreset, Offload, Parallel, RuntimeOptions
from backend.types import (
    GenerationRequest,
    Geometry,
    MediaReport,
    Reference,
    ReferenceKind,
    Sampling,
    Stage,
    Task,
)

SIZE = ModelSize()
SHIPPED = presets.hardware_presets()
BASE = HardwarePreset(name="x", title="", description="", source="", checkpoint="")


def ulysses(ranks, **more):
    return dataclasses.replace(BASE, world_size=ranks, parallel=Parallel(ulysses_degree=ranks, **more))


def question(preset, asked, **more):
    return Question(preset=preset, shape=asked, size=SIZE, shape_at=lambda *at: scaled_shape(asked, *at), **more)


def h200(count):
    return machine(count, 140.4, name="NVIDIA H200", links=18)


@pytest.mark.parametrize(
    ("ranks", "canvas", "measured", "tolerance"),
    [
        (1, (960, 544, 124), 2.017, 0.01),  # bench/results/step.json
        (1, (1344, 768, 124), 5.375, 0.01),
        (1, (1344, 768, 209), 12.530, 0.01),
        (1, (1344, 768, 345), 32.7, 0.12),  # performance.md 2, OpenVDN dense: another program, longer than any measured
        (2, (1344, 768, 209), 6.40, 0.02),  # bench/results/parallel-2.json, gathered
        (2, (1344, 768, 124), 2.806, 0.02),
        (4, (1344, 768, 124), 1.464, 0.05),  # performance.md 2, SGLang Ulysses 4 and 8 of a similar kernel
        (8, (1344, 768, 124), (39.7 - 1.3) / 49, 0.05),
    ],
)
def test_steps_take_as_long_as_measured(ranks, canvas, measured, tolerance):
    gpu = h200(1).gpus[0]
    step = rates.step(ulysses(ranks), shape(*canvas), SIZE, gpu)
    assert step.seconds == pytest.approx(measured, rel=tolerance)
    assert "measured on NVIDIA H200 (step.json)" in step.basis


@pytest.mark.parametrize(
    ("parallel", "measured"),
    [
        # bench/results/parallel-2.json: 124 and 209 frames of 1344x768 over two H200s, NVLink
        ({"exchange": Exchange.PACKED}, (2.862, 6.529)),
        ({"exchange": Exchange.OVERLAPPED}, (2.862, 6.467)),
        ({"exchange": Exchange.MAPPED}, (2.786, 6.357)),
        ({"exchange": Exchange.PACKED, "fsdp": True}, (2.905, 6.553)),
        ({"ulysses_degree": 1, "tensor_parallel_size": 2}, (2.846, 6.479)),
    ],
    ids=str,
)
def test_every_way_over_two_ranks_takes_as_long_as_measured(parallel, measured):
    preset = dataclasses.replace(BASE, world_size=2, parallel=Parallel(**{"ulysses_degree": 2, **parallel}))
    for frames, seconds in zip((124, 209), measured, strict=True):
        step = rates.step(preset, shape(1344, 768, frames), SIZE, h200(2).gpus[0])
        assert step.seconds == pytest.approx(seconds, rel=0.02)
        assert "measured on two H200s" in step.basis
    four = rates.step(ulysses(4), shape(1344, 768, 124), SIZE, h200(4).gpus[0])
    assert "extrapolated from two H200s" in four.basis


def test_an_unmeasured_card_is_scaled_by_its_data_sheet_and_says_so():
    h100 = machine(1, name="NVIDIA H100 80GB HBM3").gpus[0]
    step = rates.step(BASE, shape(1344, 768, 209), SIZE, h100)
    assert step.seconds == pytest.approx(12.53, rel=0.06)  # the H200's silicon with other memory
    assert "65% of NVIDIA H100 80GB HBM3's nominal 989" in step.basis
    strange = rates.step(BASE, shape(1344, 768, 209), SIZE, machine(1, name="Voodoo 3").gpus[0])
    assert "a guess" in strange.basis


def test_two_consumer_cards_are_near_what_was_published():
    """vLLM-Omni on two RTX 5090s: 8 min 38 s for 1344x768, 124 frames, 50 steps, everything included."""
    hardware, preset = machine(2, 31.84, name="NVIDIA GeForce RTX 5090"), SHIPPED["2x32gb"]
    answer = forecast(hardware, question(preset, shape(1344, 768, 124), warm=True))
    assert answer.total_s == pytest.approx(8 * 60 + 38, rel=0.25)


def test_streaming_costs_only_what_does_not_hide_behind_work():
    """Blocks of 36.0 GiB at 20 GB/s are 1.93 s a forward: less than a full canvas takes, more than a small one."""
    gpu = dataclasses.replace(h200(1).gpus[0], name="NVIDIA L40S")
    streamed = dataclasses.replace(BASE, runtime=RuntimeOptions(offload=Offload.BLOCKS))
    large, small = shape(1344, 768, 124), shape(224, 128, 107)
    assert rates.step(streamed, large, SIZE, gpu).seconds == rates.step(BASE, large, SIZE, gpu).seconds
    assert rates.step(streamed, small, SIZE, gpu).seconds == pytest.approx(38.54e9 / 20e9, rel=0.01)
    kept = dataclasses.replace(streamed, runtime=RuntimeOptions(offload=Offload.BLOCKS, resident_layers=25))
    assert rates.step(kept, small, SIZE, gpu).seconds == pytest.approx(38.54e9 / 2 / 20e9, rel=0.01)
    assert "20 GB/s, an assumption" in rates.step(streamed, small, SIZE, gpu).basis
    whole = forecast(machine(1, 44.98, name="NVIDIA L40S"), question(SHIPPED["1x48gb"], large, warm=True))
    # forecast-1x24gb.json: an H200 over PCIe 5, 17,000 and 38,000 rows
    h = h200(1).gpus[0]
    for canvas, seconds in (((960, 544, 107), 1.625), ((1344, 768, 124), 5.317)):
        assert rates.step(streamed, shape(*canvas), SIZE, h).seconds == pytest.approx(seconds, rel=0.04)
    assert whole.refusal is None
    assert whole.times[2].seconds > 51.5e9 / 20e9  # the conditioner comes once


def test_slow_links_cost_more_than_fast_ones():
    fast = rates.step(ulysses(4), shape(1344, 768, 209), SIZE, h200(1).gpus[0]).seconds
    slow = rates.step(ulysses(4), shape(1344, 768, 209), SIZE, machine(1, 140.4, name="NVIDIA H200").gpus[0]).seconds
    assert 1.2 * fast < slow < 4 * fast


def test_decoding_takes_as_long_as_measured():
    gpu = h200(1).gpus[0]
    assert rates.decode(BASE, shape(1344, 768, 209), gpu).seconds == pytest.approx(6.61, rel=0.01)  # end_to_end.json
    split = rates.decode(ulysses(2), shape(1344, 768, 209), gpu).seconds
    assert split == pytest.approx(3.254, rel=0.02)  # parallel-2.json


def test_a_whole_job_on_an_h200_is_foreseen_as_measured():
    """bench/results/end_to_end.json: encode, one forward and decode of 209 frames, everything resident."""
    answer = forecast(h200(1), question(SHIPPED["1x141gb"], shape(1344, 768, 209, steps=2), warm=True, tabulated=True))
    seconds = {time.stage: time.seconds for time in answer.times}
    told = seconds[Stage.ENCODE] + seconds[Stage.DENOISE] + seconds[Stage.DECODE]
    assert told == pytest.approx(0.85 + 12.40 + 6.61, rel=0.03)


def test_every_number_has_a_basis():
    answer = forecast(h200(4), question(SHIPPED["4x141gb"], shape(1344, 768, 124)))
    assert [time.stage for time in answer.times] == list(Stage)
    assert all(time.basis and time.seconds >= 0 for time in answer.times)
    assert all(part.basis for rank in answer.placement.ranks for stage in rank.stages for part in stage.parts)
    assert all(part.basis for part in (*answer.disk, *answer.placement.host))
    assert answer.refusal is None
    assert answer.total_s == sum(time.seconds for time in answer.times)
    text = "\n".join(forecast_lines(answer))
    assert "rank 3 on GPU 3 (NVIDIA H200)" in text
    assert "in all" in text


def test_finished_jobs_correct_each_stage():
    preset, asked = SHIPPED["1x141gb"], shape(1344, 768, 209)
    plain = {time.stage: time for time in forecast(h200(1), question(preset, asked, tabulated=True)).times}
    past = shape(960, 544, 124)

    def slower(**more):
        times = forecast(h200(1), question(preset, past, **more)).times
        return {time.stage: 1.3 * time.seconds for time in times}

    slow = FinishedJob(shape=past, seconds=slower())  # the first one: it made the tables
    warm = FinishedJob(shape=past, seconds={**slower(tabulated=True), Stage.LOAD: 0.0})
    for history, words in (((slow,), "from one of your"), ((warm, warm, slow), "from 3 of your finished jobs")):
        told = {time.stage: time for time in forecast(h200(1), question(preset, asked, history=history)).times}
        for stage in (Stage.ENCODE, Stage.DENOISE, Stage.DECODE, Stage.LOAD):
            assert told[stage].seconds == pytest.approx(
                1.3 * plain[stage].seconds
            )  # a warm job says nothing of loading
        assert words in told[Stage.DENOISE].basis
    loaded = {time.stage: time for time in forecast(h200(1), question(preset, asked, warm=True)).times}
    assert loaded[Stage.LOAD].seconds == 0
    assert "loaded already" in loaded[Stage.LOAD].basis


def test_a_server_elsewhere_takes_as_long_as_its_finished_jobs_say():
    """Nothing of this machine tells its seconds, so there are none, and not 0, before the first job."""
    asked, past = shape(1344, 768, 209), shape(1344, 768, 107)

    def remote(**more):
        return forecast(machine(0, ram=2.0), question(SHIPPED["remote"], asked, **more))

    for unknown in (remote(), remote(warm=True)):
        assert (unknown.times, unknown.total_s, unknown.step_s) == ((), None, None)
        assert (unknown.placement.ranks, unknown.gpu_gib, unknown.host_gib, unknown.refusal) == ((), 0, 0, None)
        lines = forecast_lines(unknown)
        assert lines[-1] == "  seconds are not known yet: the first job that the server finishes will tell"
        assert not any(" s " in line or "RAM" in line for line in lines[1:])
    seconds = {Stage.LOAD: 9.0, Stage.DENOISE: 300.0, Stage.MUX: 2.0}  # what servers that tell no steps are heard of
    job = FinishedJob(shape=past, seconds=seconds)
    again = forecast(machine(0), question(SHIPPED["remote"], past, history=(job,), warm=True))
    assert {time.stage: time.seconds for time in again.times} == pytest.approx(seconds)
    assert again.total_s == pytest.approx(311)
    assert 2 * 311 < remote(history=(job,)).total_s < 4 * 311  # twice as many frames, attention grows faster than they
    full = dataclasses.replace(machine(0), disk_free_gib=0.001)
    assert "free on the disk" in str(forecast(full, question(SHIPPED["remote"], asked)).refusal)


def test_tables_of_a_new_schedule_are_read_once():
    """26.1 GB of projections at 2 GB/s; a finished job of the same schedule left its tables on the disk."""
    preset, asked = SHIPPED["1x141gb"], shape(1344, 768, 124)

    def denoise(**more):
        return next(t for t in forecast(h200(1), question(preset, asked, **more)).times if t.stage is Stage.DENOISE)

    plain = denoise(tabulated=True)
    assert denoise().seconds - plain.seconds == pytest.approx(13.04, abs=0.01)
    assert "13 s once for the tables of a schedule that is new here" in denoise().basis
    first = FinishedJob(shape=asked, seconds={Stage.DENOISE: denoise().seconds})
    assert denoise(history=(first,)).seconds == pytest.approx(plain.seconds)
    again = FinishedJob(shape=asked, seconds={Stage.DENOISE: plain.seconds})
    assert denoise(history=(again, first)).seconds == pytest.approx(plain.seconds)
    other = FinishedJob(shape=shape(1344, 768, 124, steps=20), seconds={})
    assert denoise(history=(other,)).seconds == denoise().seconds
    told = forecast(h200(1), question(preset, asked, history=(first,)))
    assert told.step_s == pytest.approx(5.34, rel=0.01)  # bench/results/step.json, whatever else the stage holds


# The tiny model on one thread, seconds of that thread's CPU time (which other programs do not disturb) for denoising
# and decoding: (width, height, frames, sigma points), denoise, decode. Taken from the worker's own code, run here.
TINY_TIMES = [
    ((224, 128, 107, 6), 0.448, 0.504),
    ((320, 192, 124, 6), 1.774, 1.360),
    ((224, 128, 124, 6), 0.587, 0.670),
    ((224, 128, 209, 6), 1.435, 1.254),
    ((320, 192, 107, 6), 1.374, 1.098),
    ((448, 256, 107, 4), 2.216, 1.786),
    ((224, 128, 362, 4), 2.454, 2.107),
    ((320, 192, 209, 4), 2.700, 2.317),
    ((448, 256, 209, 3), 5.392, 4.484),
    ((128, 128, 107, 6), 0.262, 0.460),
    ((256, 256, 124, 4), 1.086, 1.103),
]


@pytest.mark.parametrize("speed", [0.5, 1.0, 3.0])
def test_the_tiny_model_is_foreseen_within_15_percent_after_two_jobs(speed):
    """On a machine of any speed: two finished jobs say how fast it is, formulas how jobs differ."""

    def tiny(size):
        width, height, frames, steps = size
        return dataclasses.replace(shape(width, height, frames, steps=steps), text_rows=52)

    preset, cpu = SHIPPED["tiny-cpu"], machine(0)
    jobs = [
        (tiny(size), {Stage.DENOISE: speed * first, Stage.DECODE: speed * second}) for size, first, second in TINY_TIMES
    ]
    history = [FinishedJob(shape=asked, seconds=seconds) for asked, seconds in jobs[:2]]
    for asked, seconds in jobs[2:]:
        told = forecast(cpu, question(preset, asked, history=history, warm=True)).times
        foreseen = sum(time.seconds for time in told if time.stage in seconds)
        assert foreseen == pytest.approx(sum(seconds.values()), rel=0.15), asked


def test_a_refusal_names_changes_that_really_fit():
    """Many references on four cards of 24 GB: the longest clip is too much, and each way out that is named fits."""
    hardware, preset = machine(4, 23.99, name="NVIDIA GeForce RTX 4090"), SHIPPED["4x24gb"]
    asked = question(preset, shape(1344, 768, 362, condition_rows=140_000), others=(SHIPPED["8x80gb"],))
    problem = forecast(hardware, asked).refusal
    assert problem is not None
    assert problem.field == "memory"
    assert problem.value == "1344x768, 362 frames on 4x24gb"
    assert "rank 0 needs" in problem.rule
    frames = re.search(r"(\d+) frames \(", problem.way_out)
    canvas = re.search(r"a canvas of (\d+)x(\d+)", problem.way_out)
    assert place(hardware, preset, asked.shape_at(1344, 768, int(frames[1])), SIZE).lacks is None
    assert place(hardware, preset, asked.shape_at(1344, 768, int(frames[1]) + 17), SIZE).lacks is not None
    assert place(hardware, preset, asked.shape_at(int(canvas[1]), int(canvas[2]), 362), SIZE).lacks is None
    assert "8x80gb" not in problem.way_out  # it would need eight cards of 80 GB


def test_another_preset_is_the_way_out_where_only_that_helps():
    hardware = machine(4, 79.65)
    asked = question(BASE, shape(1344, 768, 124), others=(SHIPPED["4x80gb"],))
    problem = forecast(hardware, asked).refusal
    assert str(problem) == (
        "memory=1344x768, 124 frames on x: rank 0 needs 96.0 GiB in stage denoise, H100 has 78.2 GiB usable; "
        "what fits: preset 4x80gb"
    )
    alone = forecast(hardware, question(BASE, shape(1344, 768, 124))).refusal
    assert "no preset of this machine holds it" in str(alone)


def test_a_full_disk_is_told_before_the_job():
    full = machine(1, 140.4, disk=0.5)
    problem = forecast(full, question(SHIPPED["1x141gb"], shape(1344, 768, 124))).refusal
    assert str(problem) == "disk=0.9 GiB: 0.5 GiB are free on the disk; free some space"


# -- shapes -----------------------------------------------------------------------------------------------------


def ask(tmp_path, frames=209, first=False, references=(), width=1344, height=768):
    sampling = Sampling(num_frames=frames, width=width, height=height)
    keyframe = tmp_path / "k.png" if first else None
    return GenerationRequest(prompt="x" * 400, first_frame=keyframe, references=references, sampling=sampling)


@pytest.mark.parametrize(
    ("canvas", "frames", "video", "audio", "tiles", "chunks"),
    [
        ((1344, 768), 209, 62_496, 696, 28, 12),  # h3-facts 3 and 6
        ((1344, 768), 124, 37_296, 414, 28, 7),
        ((960, 544), 124, 18_870, 414, 15, 7),
    ],
)
def test_rows_of_the_facts(tmp_path, canvas, frames, video, audio, tiles, chunks):
    found = shape_of(ask(tmp_path, frames, width=canvas[0], height=canvas[1]), Geometry(), {})
    assert (found.video_rows, found.audio_rows, found.tiles, found.chunks) == (video, audio, tiles, chunks)
    assert found.timesteps == 2
    assert found.text_rows == 140  # 400 bytes at four a token, and the template


def test_keyframes_and_references_add_rows_and_timesteps(tmp_path):
    keyed = shape_of(ask(tmp_path, first=True), Geometry(), {})
    assert (keyed.task, keyed.timesteps, keyed.condition_rows) == (Task.FL2VA, 3, 42 * 24)
    paths = [tmp_path / name for name in ("a.png", "b.mp4", "c.wav")]
    media = {
        paths[0]: MediaReport(name="a", kind=ReferenceKind.IMAGE, container="PNG", width=1000, height=1000),
        paths[1]: MediaReport(
            name="b", kind=ReferenceKind.VIDEO, container="MP4", width=1920, height=1080, duration_s=5
        ),
        paths[2]: MediaReport(name="c", kind=ReferenceKind.AUDIO, container="WAV", duration_s=4),
    }
    counts = []
    for amount in (1, 2, 3):
        references = tuple(Reference(path=path) for path in paths[:amount])
        counts.append(shape_of(ask(tmp_path, references=references), Geometry(), media))
    assert [item.timesteps for item in counts] == [3, 3, 4]  # a silent video and a picture share theirs: h3-facts 3
    assert counts[0].condition_rows == 64 * 64  # 2048 px short edge, 32 px a row
    # 5 s are 120 frames, cut to 107: 5 * 6 + 2 latents of 42 x 24 rows
    assert counts[1].condition_rows - counts[0].condition_rows == 32 * 42 * 24
    assert counts[2].condition_rows - counts[1].condition_rows == 2 * 160  # 40 latents a second, two channels
