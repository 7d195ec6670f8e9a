"""Handing a job in: what is made concrete and copied, and what is refused before there is a row."""

import pytest
from fake_hub import lora
from job_fakes import end_of, request, wait_until

from backend.api import ADMIN, Health, JobState
from backend.errors import InvalidRequest, PresetError, Unavailable
from backend.events import TERMINAL, Queued, Started, StepDone, Succeeded
from backend.types import Adapter, GenerationRequest, Reference, ReferenceKind, Sampling


def references(media, *counts):
    kinds = zip(counts, (".png", ".mp4", ".wav"), strict=True)
    return tuple(Reference(path=media(f"r{index}{suffix}")) for count, suffix in kinds for index in range(count))


def test_submit_events_result(backend):
    job = backend.submit(request(seed=7), owner="ann")
    events = list(backend.events(job, owner="ann"))
    assert isinstance(events[0], Queued)
    assert [type(event) for event in events if isinstance(event, Started | StepDone)] == [Started, *[StepDone] * 3]
    assert isinstance(events[-1], Succeeded)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert sum(isinstance(event, TERMINAL) for event in events) == 1
    record = backend.job(job, owner="ann")
    assert record.state is JobState.SUCCEEDED
    assert record.video.read_bytes() == b"video" * 1000
    assert events[-1].details == {"seed": 7, "job": job}
    assert backend.file(job, "video.mp4", owner="ann") == record.video
    wait_until(lambda: backend.status().health is Health.READY)
    assert list(backend.events(job, after=len(events) - 2, owner="ann")) == events[-2:]
    assert list(backend.events(job, after=len(events), owner="ann")) == []


def test_d20_an_empty_seed_becomes_a_concrete_one_that_can_be_used_again(backend, world):
    first, second = (backend.submit(request(), owner="ann") for _ in range(2))
    end_of(backend, second)
    seeds = [backend.job(job, owner="ann").request.sampling.seed for job in (first, second)]
    assert world.seeds == seeds
    assert seeds[0] != seeds[1]
    assert all(isinstance(seed, int) and 0 <= seed < 2**32 for seed in seeds)
    again = backend.retry(first, owner="ann")
    other = backend.duplicate(first, owner="ann")
    chosen = backend.duplicate(first, owner="ann", seed=5)
    end_of(backend, chosen)
    assert world.seeds[2] == seeds[0] == backend.job(again, owner="ann").request.sampling.seed
    assert world.seeds[3] == backend.job(other, owner="ann").request.sampling.seed != seeds[0]
    assert world.seeds[4] == 5


def test_canvas_follows_ratio_keyframe_and_quality(backend, media):
    plan = backend.plan(request(ratio="1:1"))
    assert (plan.width, plan.height, plan.num_frames, plan.num_forwards) == (128, 128, 107, 49)
    assert plan.duration_s == pytest.approx(4.458, abs=0.001)
    keyframe = GenerationRequest(prompt="x", first_frame=media("a.png"))
    plan = backend.plan(keyframe)  # the fake picture is 640x360, the fake checkpoint's short edge 128
    assert (plan.width, plan.height) == (224, 128)
    half = backend.plan(request(), quality="draft")
    assert (half.width, half.height) == (128, 64)  # 16:9 of 64 px is 114, whose nearest multiple of 32 is 128


def test_turbo_puts_on_the_adapter_with_the_fewest_steps_unless_one_is_there(backend):
    shelf = backend.settings.adapters_dir
    for name, steps in (("b-few", "4"), ("a-few", "4"), ("more", "5"), ("own", "6")):  # the fake recipe has 6
        lora(shelf / f"{name}.safetensors", title=name.title(), num_inference_steps=steps)
    style = Adapter(path=lora(shelf / "style.safetensors"), scale=0.5)
    few = Adapter(path=shelf / "a-few.safetensors")

    def worn(*adapters):
        asked = request(adapters=adapters, num_inference_steps=4)
        return backend.plan(asked, quality="turbo").request.sampling.adapters

    assert worn() == (few,) and worn(style) == (style, few)
    mine = Adapter(path=shelf / "more.safetensors", scale=2.0)
    assert worn(mine) == (mine,)
    plan = backend.plan(request(num_inference_steps=4), quality="turbo")
    assert (plan.width, plan.height) == (224, 128) and plan.notices == ("Turbo uses the adapter A-Few",)
    assert backend.default_steps(request(), "turbo") == 4
    assert backend.default_steps(request(adapters=(mine,)), "turbo") == 5
    assert [backend.default_steps(request(), name) for name in ("draft", "standard", "none")] == [6] * 3
    view = backend.qualities()["turbo"]
    assert (view.adapter.name, view.steps, view.unavailable, view.same) == ("a-few", 4, None, False)


@pytest.mark.parametrize(
    ("preset", "words"),
    [
        (None, "an adapter made for fewer than 6 steps, and none is installed here; add one as docs/adapters.md says"),
        ("2x80gb", "which this setup cannot use: with fsdp each rank"),
        ("2x24gb", "which this setup cannot use: with tensor_parallel_size=2 each rank"),
        ("remote", "LoRA files are not sent to a server elsewhere"),
    ],
)
def test_turbo_says_what_is_missing_with_all_that_is_wrong(backend, preset, words):
    lora(backend.settings.adapters_dir / "style.safetensors")
    if preset is not None:
        lora(backend.settings.adapters_dir / "few.safetensors", num_inference_steps="2")
    with pytest.raises(InvalidRequest) as refused:
        backend.plan(request(prompt=" "), preset=preset, quality="turbo")
    assert words in str(refused.value) and "must not be empty" in str(refused.value)
    assert words.partition(";")[0] in backend.qualities(preset)["turbo"].unavailable.rule


def test_media_are_copied_under_random_names_and_labels_kept(backend, media, world):
    backend.pause()
    ours = media("mine/../holiday photo <b>.png", b"ann's")
    theirs = media("other/holiday photo <b>.png", b"bob's")
    jobs = [
        backend.submit(GenerationRequest(prompt="x", first_frame=path, last_frame=path), owner=owner)
        for owner, path in (("ann", ours), ("bob", theirs))
    ]
    for job, content in zip(jobs, (b"ann's", b"bob's"), strict=True):
        record = backend.job(job, owner=ADMIN)
        copy = record.request.first_frame
        assert copy.parent == record.folder / "inputs"
        assert copy == record.request.last_frame
        assert copy.read_bytes() == content
        assert record.labels == {copy.name: "holiday photo <b>.png"}
        assert copy.name != ours.name
    ours.unlink()
    backend.resume()
    assert isinstance(end_of(backend, jobs[0]), Succeeded)


def test_tags_name_the_references_in_order(backend, media):
    job = backend.submit(GenerationRequest(prompt="x", references=references(media, 2, 1, 1)), owner="ann")
    record = backend.job(job, owner="ann")
    assert record.tags == (("<Picture 1>",), ("<Picture 2>",), ("<Video 1>",), ("<Audio 1>",))
    assert [item.kind for item in record.request.references] == [*["image"] * 2, "video", "audio"]


def test_the_kinds_of_a_reference_come_from_its_content(backend, media):
    wrong = GenerationRequest(prompt="x", references=(Reference(path=media("a.png"), kind=ReferenceKind.AUDIO),))
    plan = backend.plan(wrong)
    assert plan.request.references[0].kind is ReferenceKind.IMAGE
    assert any("used as image" in notice for notice in plan.notices)


@pytest.mark.parametrize(
    ("counts", "words"),
    [((0, 0, 1), "audio needs at least one image or video"), ((10, 0, 0), "at most 9"), ((7, 3, 3), "at most 12")],
)
def test_d08_refused_before_queueing(backend, media, counts, words):
    bad = GenerationRequest(prompt="x", references=references(media, *counts))
    with pytest.raises(InvalidRequest, match=words):
        backend.submit(bad, owner="ann")
    assert words in backend.check(bad)
    assert backend.history(owner=ADMIN) == []
    assert list((backend.settings.jobs_dir).iterdir()) == []


def test_all_problems_are_named_at_once(backend, media, tmp_path):
    bad = GenerationRequest(
        prompt=" ",
        first_frame=media("a.png", b"text file"),
        last_frame=tmp_path / "absent.png",
        sampling=Sampling(num_frames=100, width=100, height=128, num_inference_steps=-1),
    )
    with pytest.raises(InvalidRequest) as caught:
        backend.submit(bad, owner="ann")
    text = str(caught.value)
    for part in ("prompt", "a.png", "absent.png", "num_frames=100", "107", "width=100", "num_inference_steps=-1"):
        assert part in text
    assert backend.history(owner=ADMIN) == []


def test_a_clip_is_no_keyframe(backend, media):
    reason = backend.check(GenerationRequest(prompt="x", first_frame=media("a.mp4")))
    assert "must be a picture" in reason


def test_unknown_and_impossible_presets(backend):
    with pytest.raises(PresetError, match="choose one of"):
        backend.submit(request(), owner="ann", preset="no-such")
    with pytest.raises(PresetError):
        backend.submit(request(), owner="ann", quality="no-such")
    with pytest.raises(Unavailable, match="needs 1 GPU with 78 GiB, found none"):
        backend.submit(request(), owner="ann", preset="one-gpu")
    assert backend.history(owner=ADMIN) == []
    assert {status.preset.name: bool(status.unavailable) for status in backend.presets()}["tiny-cpu"] is False


def test_what_the_engine_rejects_is_refused_before_queueing(backend, media):
    file = media("a.safetensors")
    header = b'{"proj_in.lora_A.weight":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    adapted = request(adapters=(Adapter(path=file),))
    with pytest.raises(InvalidRequest, match="adapters: not applied"):
        backend.submit(adapted, owner="ann")
    assert "adapters: not applied" in backend.check(adapted)
    assert backend.history(owner=ADMIN) == []


def test_a_full_disk_refuses_in_words_and_leaves_nothing(backend, media, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("backend.jobs.artifacts.shutil.copyfile", full)
    with pytest.raises(Exception, match="disk is full"):
        backend.submit(GenerationRequest(prompt="x", first_frame=media("a.png")), owner="ann")
    monkeypatch.undo()
    monkeypatch.setattr("backend.jobs.intake.disk_free", lambda _: 2**20)
    assert "free some space" in backend.check(request())
    assert backend.history(owner=ADMIN) == []
    assert list(backend.settings.jobs_dir.iterdir()) == []
