"""Handlers on a real backend with a fake engine: owners, submitting, mistakes, media, and watching that lets go."""

from __future__ import annotations

import asyncio
import dataclasses
import html.parser
import json
import shutil
import types

import gradio as gr
import huggingface_hub.constants as hub_constants
import pytest

from backend.api import Backend
from backend.checkpoints import licence
from backend.checkpoints.catalog import NANO_FOLDER
from backend.jobs.records import ADMIN, JobState
from backend.jobs.services import find_checkpoint
from backend.settings import Settings
from backend.types import GenerationRequest, Task
from h3ui import kept_form, watch
from h3ui.form import Mode
from h3ui.handlers import Handlers, owner_of
from h3ui.keeping import Keeping
from h3ui.model_shelf import ModelShelf
from h3ui.panels import hardware
from h3ui.uploads import clicked
from tests.fake_hub import lora
from tests.job_fakes import World, fake_services, wait_until

EVERY_FIELD = {
    "mode": "text",
    "ratio": "auto",
    "size": "auto",
    "width": 224,
    "height": 128,
    "duration": 4,
    "quality": "standard",
    "steps": 4,
    "seed": "7",
    "override": "auto",
    "search": "",
    "shown": "all",
    "count": 24,
}


def tab(name: str = "t1", username: str | None = None, **query: str) -> types.SimpleNamespace:
    return types.SimpleNamespace(session_hash=name, username=username, query_params=query)


class Board:
    """Names stand in for components: handlers only use them as keys."""

    def __init__(self, path: str = "") -> None:
        self._path = path

    def __getattr__(self, name: str) -> Board:
        if name.startswith("__"):
            raise AttributeError(name)
        return Board(f"{self._path}.{name}" if self._path else name)

    def __getitem__(self, name: str) -> Board:
        return Board(f"{self._path}[{name}]")

    def __hash__(self) -> int:
        return hash(self._path)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Board) and other._path == self._path


@pytest.fixture
def studio(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "uploads"))
    world = World()
    services = dataclasses.replace(fake_services(world), find_checkpoint=find_checkpoint)
    backend = Backend(Settings(data_dir=tmp_path / "data"), preset="tiny-cpu", services=services)
    handlers = Handlers(backend, Board())
    yield types.SimpleNamespace(
        handlers=handlers, keeping=Keeping(backend, handlers), backend=backend, world=world, board=Board()
    )
    backend.close()


def data(board: Board, **changes: object) -> dict:
    values = {**EVERY_FIELD, **changes}
    p = board
    return {
        p.prompt.text: values.get("prompt", "a red boat"),
        p.mode: values["mode"],
        p.keyframes.slots["first"].item: values.get("first"),
        p.keyframes.slots["last"].item: values.get("last"),
        p.references.items: values.get("references", ()),
        p.canvas.ratio: values["ratio"],
        p.canvas.size: values["size"],
        p.canvas.width: values["width"],
        p.canvas.height: values["height"],
        p.canvas.duration: values["duration"],
        p.sampling.quality: values["quality"],
        p.sampling.steps: values["steps"],
        p.sampling.seed: values["seed"],
        p.hardware.override: values["override"],
        p.session: values.get("session", "abc"),
        p.last_job: values.get("last_job"),
        p.kept: values.get("kept"),
        p.job: values.get("job"),
        p.gallery.search: values["search"],
        p.gallery.shown: values["shown"],
        p.gallery.count: values["count"],
        p.gallery.mark: values.get("mark", ""),
        p.gallery.compare.pair: values.get("pair"),
        p.queue.editing.job: values.get("editing"),
    }


class Collector(html.parser.HTMLParser):
    """The attributes of every button."""

    def __init__(self, markup_text: str) -> None:
        super().__init__()
        self.buttons: list[dict[str, str | None]] = []
        self.feed(markup_text)

    def handle_starttag(self, tag, attrs):
        if tag == "button":
            self.buttons.append(dict(attrs))


def click(**said: str) -> types.SimpleNamespace:
    return types.SimpleNamespace(_data=said)


@pytest.mark.parametrize("claimed", [ADMIN, "", None, "user:anna"])
def test_what_a_browser_claims_never_makes_it_admin_or_somebody_else(claimed):
    owner = owner_of(claimed, tab())
    assert owner != ADMIN and owner.startswith("session:")


def test_a_login_decides_whose_jobs_they_are():
    assert owner_of("abc", tab(username="anna")) == "user:anna"


def test_generate_submits_and_shows_the_job(studio):
    updates = studio.handlers.generate(data(studio.board), tab())
    job = updates[studio.board.job]
    record = studio.backend.job(job, owner="session:abc")
    assert (record.request.prompt, record.request.sampling.seed) == ("a red boat", 7)
    assert record.request.sampling.num_frames == 107
    assert updates[studio.board.last_job] == job
    assert f'data-shown="{job}"' in updates[studio.board.result.live]
    wait_until(lambda: studio.backend.job(job, owner="session:abc").state is JobState.SUCCEEDED)


def test_mistakes_are_shown_and_nothing_is_submitted(studio):
    updates = studio.handlers.generate(data(studio.board, prompt=" ", seed="x", duration=20), tab())
    shown = updates[studio.board.problems]
    for words in ("must not be empty", "must be a whole number", "4 to 15 seconds"):
        assert words in shown
    assert studio.board.job not in updates
    assert studio.backend.history(owner=ADMIN) == []


def test_an_unknown_preset_is_told_in_words(studio):
    updates = studio.handlers.generate(data(studio.board, override="nonsense"), tab())
    assert "there is no such preset" in updates[studio.board.problems]


def test_a_quality_tells_and_sets_the_steps_of_the_model_that_would_run(studio):
    own = json.loads((NANO_FOLDER / "modular_model_index.json").read_text())["default_steps"]
    assert own < 50
    here, released = data(studio.board), data(studio.board, override="1x141gb")
    assert f"Here {own} sigma points, {own - 1} forwards." in studio.handlers.quality_about(here)
    assert studio.handlers.quality_chosen(here) == {studio.board.sampling.steps: own}
    assert "Here 50 sigma points, 49 forwards." in studio.handlers.quality_about(released)
    assert studio.handlers.quality_chosen(released) == {studio.board.sampling.steps: 50}  # MiniMax's model card
    assert studio.handlers.quality_about(data(studio.board, override="nonsense")) == gr.skip()
    opened = studio.handlers.restore(data(studio.board), tab())
    assert f"<b>{own - 1}</b> forwards" in opened[studio.board.canvas.plan]


def test_turbo_puts_its_adapter_on_and_another_quality_takes_off_only_that(studio):
    s, shelf = studio.board.sampling, ModelShelf(studio.backend, studio.board)
    adapters = studio.backend.settings.adapters_dir
    lora(adapters / "few.safetensors", title="Few steps", num_inference_steps="3")
    lora(adapters / "style.safetensors")

    def chosen(quality, adapter="", lent=""):
        return studio.handlers.quality_chosen({**data(studio.board, quality=quality), s.adapter: adapter, s.lent: lent})

    assert chosen("turbo", "style") == {s.steps: 3, s.strength: 1.0, s.adapter: "few", s.lent: "few"}
    assert "Turbo uses the adapter Few steps." in (
        about := studio.handlers.quality_about(data(studio.board, quality="turbo"))
    )
    assert "Here 3 sigma points, 2 forwards." in about and "was not measured" in about
    off, kept = chosen("draft", "few", "few"), chosen("draft", "style", "few")
    assert (off[s.adapter], off[s.lent], kept[s.lent]) == ("", "", "") and s.adapter not in kept
    by_hand = chosen("turbo", "few")
    assert s.lent not in by_hand and s.adapter not in chosen("draft", "few")
    assert ("Turbo", "turbo") in shelf.choices("", "standard")[s.quality]["choices"]
    stored = studio.backend.plan(GenerationRequest(prompt="x"), quality="turbo").request
    filled = studio.handlers.fill_request(stored, "turbo", {})
    assert (filled[s.quality], filled[s.adapter], filled[s.lent]) == ("turbo", "few", "few")
    fields = {"quality": "turbo", "adapter": "few", "steps": 3}
    back = studio.handlers.restore(
        data(studio.board, kept={"owner": "session:abc", "job": "", "fields": fields}), tab()
    )
    assert (back[s.quality], back[s.adapter], back[s.lent]) == ("turbo", "few", "few")


def test_turbo_is_not_offered_without_its_adapter_nor_kept_after_it(studio):
    s, shelf = studio.board.sampling, ModelShelf(studio.backend, studio.board)
    lora(studio.backend.settings.adapters_dir / "style.safetensors", num_inference_steps="200")  # not few
    assert "turbo" not in [name for _, name in shelf.choices("", "draft")[s.quality]["choices"]]
    own = studio.backend.checkpoint().default_steps
    for adapter, stays in (("few", ""), ("style", "style")):
        gone = shelf.choices(adapter, "turbo")  # a page that is open while the adapter is removed
        assert (gone[s.quality]["value"], gone[s.adapter]["value"], gone[s.steps]) == ("standard", stays, own)
    kept = {"owner": "session:abc", "job": "", "fields": {"quality": "turbo"}}
    assert s.quality not in studio.handlers.restore(data(studio.board, kept=kept), tab())
    told = hardware.table_html(studio.backend.machine(), studio.backend.qualities(), may_see=True)
    assert f"Not here: it needs an adapter made for fewer than {own} steps, and none is installed here." in told
    assert "docs/adapters.md" in told
    pressed = studio.handlers.generate(data(studio.board, quality="turbo"), tab())
    assert "none is installed here" in pressed[studio.board.problems]


def test_a_download_that_does_not_fit_cannot_be_pressed_until_there_is_room(studio, tmp_path, monkeypatch):
    monkeypatch.setattr(hub_constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    licence.accept(studio.backend.settings, "test")
    shelf, m, usage = ModelShelf(studio.backend, studio.board), studio.board.models, shutil.disk_usage(tmp_path)

    def tick(free_gib, seen):
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=free_gib * 2**30))
        return shelf.tick("abc", seen, tab())

    full = tick(10, "")
    assert full[m.rows].count('data-action="download"') == full[m.rows].count("<button disabled ") == 3
    assert "The disk lacks" in full[m.rows]
    assert m.rows not in tick(10, full[m.seen])  # nothing changed, so nothing is drawn
    roomy = tick(150, full[m.seen])
    assert roomy[m.rows].count("<button disabled ") == 1  # everything needs 196 GiB, text or references 134


def test_another_persons_job_looks_like_none(studio):
    job = studio.handlers.generate(data(studio.board), tab())[studio.board.job]
    updates = studio.handlers.restore(data(studio.board, session="somebody"), tab(job=job))
    assert "This job is not here" in updates[studio.board.result.live]["value"]
    assert studio.board.prompt.text not in updates
    stolen = studio.keeping.act(click(action="cancel", job=job), data(studio.board, session="somebody"), tab())
    assert "there is no such job" in stolen[studio.board.problems]


def test_a_first_visit_gets_an_unguessable_session(studio):
    one, two = (studio.handlers.restore(data(studio.board, session=None), tab())[studio.board.session] for _ in "ab")
    assert one != two and len(one) >= 20


def test_fields_come_back_as_they_were_left_beside_their_job_and_for_their_owner(studio):
    p = studio.board
    left = {"prompt": "half a sen", "mode": "frames", "size": "custom", "width": 160, "steps": None, "seed": "4"}
    kept = {"owner": "session:abc", "job": "", "fields": left}
    back = studio.handlers.restore(data(p, kept=kept), tab())
    assert {name: back[part] for name, part in kept_form.parts(p).items() if part in back} == left
    shown = [back[part]["visible"] for part in (p.keyframes.group, p.references.group, p.canvas.custom)]
    assert shown == [True, False, True] and back[p.kept] == kept
    job = studio.handlers.generate(data(p), tab())[p.job]
    asked = studio.handlers.restore(data(p, kept=kept), tab(job=job))
    assert asked[p.prompt.text] == "a red boat"  # the page of another job than the one they were typed beside
    typed = studio.handlers.restore(data(p, kept={**kept, "job": job}), tab(job=job))
    assert (typed[p.job], typed[p.prompt.text]) == (job, "half a sen")
    other = studio.handlers.restore(data(p, kept=kept), tab(username="bea"))
    assert p.prompt.text not in other and other[p.kept] == {"owner": "user:bea"}


@pytest.mark.parametrize("kept", [None, 7, "x", [], {"fields": 3}, {"fields": {"prompt": 7}}])
def test_what_a_browser_keeps_is_text_from_outside(studio, kept):
    p = studio.board
    if isinstance(kept, dict):
        kept |= {"owner": "session:abc", "job": None}
    back = studio.handlers.restore(data(p, kept=kept), tab())
    assert p.prompt.text not in back
    wrong = {"mode": "x", "ratio": [], "size": 3, "quality": "best", "adapter": "/etc/passwd", "preset": "8x80gb"}
    wrong |= {"width": "9", "height": True, "duration": 1e300, "steps": float("nan"), "strength": {}, "seed": "1" * 999}
    wrong |= {"prompt": "x" * 10**6}
    kept = {"owner": "session:abc", "fields": wrong}
    back = studio.handlers.restore(data(p, kept=kept), tab())
    assert [name for name, part in kept_form.parts(p).items() if part in back] == []


def test_watching_follows_to_the_end_and_a_newer_job_takes_over(studio):
    studio.world.step_s = 0.05

    async def follow_first() -> list[dict]:
        seen = []
        async for updates in studio.handlers.watch(first, "abc", tab()):
            seen.append(updates)
        return seen

    first = studio.handlers.generate(data(studio.board), tab())[studio.board.job]
    seen = asyncio.run(follow_first())
    assert "Your video is ready" in seen[-2][studio.board.result.live]
    assert "video.mp4?token=" in seen[-2][studio.board.result.player]["value"]
    studio.world.step_s = 0.5
    first = studio.handlers.generate(data(studio.board), tab())[studio.board.job]

    async def overtaken() -> list[dict]:
        seen = []
        async for updates in studio.handlers.watch(first, "abc", tab()):
            seen.append(updates)
            studio.handlers.watchers.begin("t1")  # the tab shows another job now
        return seen

    seen = asyncio.run(overtaken())
    assert studio.board.result.live not in seen[-1]  # its last word must not be a picture
    studio.backend.cancel(first, owner="session:abc")


def test_watching_nothing_leaves_the_panel_alone(studio):
    async def run(job: str | None) -> list[dict]:
        return [updates async for updates in studio.handlers.watch(job, "abc", tab())]

    for job in (None, "no-such-job"):
        (only,) = asyncio.run(run(job))
        assert studio.board.result.live not in only


def test_the_timer_helps_a_tab_that_lost_its_watcher_and_only_once(studio):
    job = studio.handlers.generate(data(studio.board), tab())[studio.board.job]
    wait_until(lambda: studio.backend.beat_at(job, owner="session:abc") is None)  # stored, and told to everybody
    helped = studio.handlers.tick(data(studio.board, job=job), tab("fresh"))
    assert "Your video is ready" in helped[studio.board.result.live]
    assert studio.board.result.live not in studio.handlers.tick(data(studio.board, job=job), tab("fresh"))


def test_watchers_forget_old_tabs():
    watchers = watch.Watchers()
    for number in range(watch.MAX_TABS + 5):
        watchers.begin(f"tab{number}")
    assert watchers.needs_help("tab0", "job") and not watchers.needs_help(f"tab{watch.MAX_TABS}", "job")


def test_dropped_files_are_probed_kept_or_refused(studio, tmp_path):
    good, bad, sound = tmp_path / "a.png", tmp_path / "b.txt", tmp_path / "c.wav"
    for path in (good, bad, sound):
        path.write_bytes(b"data")
    p = studio.board
    looked = studio.handlers.uploads.look_at([str(good), str(bad)])
    updates = studio.handlers.uploads.arrive(looked[p.references.arrived], ())
    assert [item.path for item in updates[p.references.items]] == [good]
    assert "is no picture" in updates[p.references.tray]
    refused = studio.handlers.uploads.drop_frame("first", str(sound))
    slot = p.keyframes.slots["first"]
    assert refused[slot.item] is None and "must be a picture" in refused[slot.card]["value"]


def test_use_settings_brings_back_everything_with_media(studio, tmp_path):
    picture = tmp_path / "mine.png"
    picture.write_bytes(b"data")
    item = studio.handlers.uploads.probe(picture)
    job = studio.handlers.generate(
        data(studio.board, mode=Mode.REFERENCES.value, references=(item,), seed="99", steps=9), tab()
    )[studio.board.job]
    picture.unlink()
    record = studio.backend.job(job, owner="session:abc")
    assert record.request.task is Task.REF2VA
    updates = studio.keeping.act(click(action="settings", job=job), data(studio.board), tab())
    p = studio.board
    assert (updates[p.prompt.text], updates[p.sampling.seed], updates[p.sampling.steps]) == ("a red boat", "99", 9)
    assert (updates[p.canvas.width], updates[p.canvas.height], updates[p.canvas.size]) == (224, 128, "custom")
    (again,) = updates[p.references.items]
    assert again.path.name == "mine.png" and again.path.is_relative_to(tmp_path / "uploads")


def test_buttons_of_the_gallery(studio):
    job = studio.handlers.generate(data(studio.board), tab())[studio.board.job]
    wait_until(lambda: studio.backend.job(job, owner="session:abc").state.ended)
    p = studio.board
    starred = studio.keeping.act(click(action="favourite", job=job), data(studio.board), tab())
    assert "Take from favourites" in starred[p.gallery.cards]
    reseeded = studio.keeping.act(click(action="reseed", job=job), data(studio.board), tab())[p.job]
    seeds = {studio.backend.job(each, owner=ADMIN).request.sampling.seed for each in (job, reseeded)}
    assert len(seeds) == 2
    gone = studio.keeping.act(click(action="delete", job=job), data(studio.board, job=job), tab())
    assert gone[p.job] is None and 'data-shown=""' in gone[p.result.live]
    assert studio.keeping.act(click(action="nonsense", job=job), data(studio.board), tab()) == gr.skip()


def test_clicks_are_text_whatever_the_page_sends():
    assert clicked(types.SimpleNamespace(_data={"job": 5, "x": None})) == {"job": "5", "x": "None"}
    assert clicked(types.SimpleNamespace(_data=None)) == {}
    assert clicked(types.SimpleNamespace()) == {}


def ended(studio, **changes):
    job = studio.handlers.generate(data(studio.board, **changes), tab())[studio.board.job]
    wait_until(lambda: studio.backend.job(job, owner="session:abc").state.ended)
    return job


def press(studio, changes=None, **said):
    return studio.keeping.act(click(**said), data(studio.board, **(changes or {})), tab())


def test_a_waiting_job_is_changed_from_the_panels_or_left_as_it_was(studio):
    p, editing = studio.board, studio.board.queue.editing
    studio.backend.pause()
    job = studio.handlers.generate(data(studio.board), tab())[p.job]
    began = press(studio, action="edit", job=job)
    assert (began[p.prompt.text], began[editing.job]) == ("a red boat", job)
    assert "Save the change" in began[editing.bar]["value"] and began[editing.bar]["visible"]
    changed = data(studio.board, prompt="a blue boat", seed="9", quality="draft", editing=job)
    saved = studio.keeping.save_edit(click(action="save-edit"), changed, tab())
    assert saved[editing.job] is None and "a blue boat" in saved[p.queue.rows]
    record = studio.backend.job(job, owner="session:abc")
    assert (record.request.prompt, record.request.sampling.seed, record.quality) == ("a blue boat", 9, "draft")
    wrong = studio.keeping.save_edit(click(action="save-edit"), data(studio.board, prompt="", editing=job), tab())
    assert "must not be empty" in wrong[p.problems] and editing.job not in wrong
    left = studio.keeping.save_edit(click(action="stop-edit"), data(studio.board, prompt="no", editing=job), tab())
    assert left[editing.job] is None
    theirs = data(studio.board, prompt="mine now", editing=job, session="somebody")
    assert "no such job" in studio.keeping.save_edit(click(action="save-edit"), theirs, tab())[p.problems]
    assert studio.backend.job(job, owner="session:abc").request.prompt == "a blue boat"
    studio.backend.resume()
    wait_until(lambda: studio.backend.job(job, owner="session:abc").state.ended)
    late = studio.keeping.save_edit(click(action="save-edit"), data(studio.board, editing=job), tab())
    assert "only a waiting job can be edited" in late[p.problems]
    assert "waits no longer" in press(studio, action="edit", job=job)[p.problems]


def test_the_queue_is_saved_once_an_owner_and_loaded_by_another(studio, tmp_path):
    p = studio.board
    assert "nothing to save" in press(studio, action="save-queue")[p.queue.told]["value"]
    studio.backend.pause()
    for prompt in ("one", "two"):
        studio.handlers.generate(data(studio.board, prompt=prompt), tab())
    for _ in range(2):
        saved = press(studio, action="save-queue")[p.queue.told]["value"]
    assert "2 waiting jobs" in saved
    (file,) = (tmp_path / "uploads" / "queues").rglob("*.zip")  # the first one is gone
    assert file.parent.name in saved
    loaded = studio.keeping.load_queue(str(file), data(studio.board, session="else"), tab())
    assert "2 jobs were added" in loaded[p.queue.told]["value"]
    assert [record.title for record in studio.backend.queue(owner="session:else")] == ["one", "two"]
    for job in studio.backend.queue(owner="session:abc"):
        studio.backend.cancel(job.id, owner="session:abc")
    studio.backend.export_queue(tmp_path / "empty.zip", owner="session:abc")
    nothing = press(studio, action="save-queue")
    assert "note warn" in nothing[p.queue.told]["value"] and "nothing to save" in nothing[p.queue.told]["value"]
    assert p.problems not in nothing  # nobody did anything wrong
    empty = studio.keeping.load_queue(str(tmp_path / "empty.zip"), data(studio.board), tab())
    assert "note warn" in empty[p.queue.told]["value"] and "no job" in empty[p.queue.told]["value"]
    file.write_bytes(b"no zip")
    told = studio.keeping.load_queue(str(file), data(studio.board), tab())[p.queue.told]["value"]
    assert "is no queue file" in told


def test_cards_are_drawn_again_only_when_something_changed(studio):
    p = studio.board
    job = ended(studio)
    assert studio.keeping.shelf.tick(data(studio.board), tab()) == gr.skip()  # the gallery was never opened
    drawn = studio.keeping.shelf.gallery(data(studio.board), tab())
    mark = drawn[p.gallery.mark]
    assert studio.keeping.shelf.tick(data(studio.board, mark=mark), tab()) == gr.skip()
    studio.backend.rename(job, "Another name", owner="session:abc")
    again = studio.keeping.shelf.tick(data(studio.board, mark=mark), tab())
    assert "Another name" in again[p.gallery.cards] and again[p.gallery.mark] != mark
    studio.backend.delete(job, owner="session:abc")
    gone = studio.keeping.shelf.tick(data(studio.board, mark=mark, job=job, pair=(job, job)), tab())
    assert gone[p.job] is None and gone[p.gallery.compare.pair] is None and "No videos yet" in gone[p.gallery.cards]


def test_a_job_deleted_elsewhere_is_said_by_the_clock(studio):
    job = ended(studio)
    studio.backend.delete(job, owner="session:abc")
    ticked = studio.handlers.tick(data(studio.board, job=job), tab())
    assert "This job is not here" in ticked[studio.board.result.live]["value"]


def test_ticked_jobs_of_mine_are_deleted_and_nobody_elses(studio):
    p = studio.board
    mine, theirs = [ended(studio), ended(studio)], ended(studio)
    studio.backend.pause()
    waiting = studio.handlers.generate(data(studio.board), tab())[p.job]
    press(studio, {"session": "somebody"}, action="delete-many", jobs=",".join([*mine, "nonsense", ""]))
    assert len(studio.backend.history(owner="session:abc")) == 4
    press(studio, action="delete-many", jobs=",".join([*mine, waiting]))
    assert [record.id for record in studio.backend.history(owner="session:abc")] == [theirs]


def test_titles_are_kept_short_and_places_are_numbers(studio):
    job = ended(studio)
    press(studio, action="rename", job=job, value="x" * 100_000)
    assert len(studio.backend.job(job, owner="session:abc").title) <= 200
    for position in ("", "-1", "x", "9" * 50):
        press(studio, action="reorder", job=job, position=position)  # nothing happens, nothing breaks


def test_presses_of_one_drawn_button_add_up(studio):
    studio.backend.pause()
    for prompt in ("one", "two", "three", "four"):
        studio.handlers.generate(data(studio.board, prompt=prompt), tab())
    drawn = studio.handlers.queue_html("session:abc", None)
    earlier = [at for at in Collector(drawn).buttons if at.get("aria-label") == "Move earlier"]
    said = {name.removeprefix("data-"): value for name, value in earlier[-1].items() if name.startswith("data-")}
    for _ in range(2):  # the second one comes before the answer to the first is drawn
        press(studio, **said)
    assert [record.title for record in studio.backend.queue(owner="session:abc")] == ["one", "four", "two", "three"]


def test_only_two_finished_videos_are_compared(studio):
    p = studio.board
    jobs = [ended(studio) for _ in range(2)]
    for named in ("", jobs[0], f"{jobs[0]},{jobs[0]}", f"{jobs[0]},{jobs[1]},x"):
        assert "two videos are compared" in press(studio, action="compare", jobs=named)[p.gallery.told]["value"]
    shown = press(studio, action="compare", jobs=",".join(jobs))
    assert shown[p.gallery.compare.pair] == tuple(jobs) and "data-compare" in shown[p.gallery.compare.view]["value"]
    stolen = press(studio, {"session": "somebody"}, action="compare", jobs=",".join(jobs))
    assert "no such job" in stolen[p.gallery.told]["value"]
    updates = list(studio.keeping.shelf.measure(data(studio.board, pair=tuple(jobs)), tab()))
    assert "Measuring" in updates[0][p.gallery.compare.view]
    assert "complete MP4" in updates[1][p.gallery.compare.view] or "must be" in updates[1][p.gallery.compare.view]
