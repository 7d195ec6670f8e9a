"""The tray and the frames as handlers see them: order, tags that follow, trimming, files that other parts hand over."""

import dataclasses
import html
import shlex
import types
from pathlib import Path

import gradio as gr
import numpy as np
import pytest
from gradio.data_classes import FileData, ListFiles
from PIL import Image

from backend.api import Backend
from backend.jobs.services import find_checkpoint
from backend.media.prepare import prepare_request
from backend.settings import Settings
from backend.types import GenerationRequest, Geometry, MediaReport, ReferenceKind, Sampling
from h3ui import command, form, planned
from h3ui.form import MediaItem, Mode, PanelValues
from h3ui.handlers import Handlers
from h3ui.panels import keyframes, media, references
from tests.h3ui.test_handlers import Board, click
from tests.job_fakes import World, fake_services


@pytest.fixture
def studio(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "uploads"))
    services = dataclasses.replace(fake_services(World()), find_checkpoint=find_checkpoint)
    backend = Backend(Settings(data_dir=tmp_path / "data"), preset="tiny-cpu", services=services)
    yield types.SimpleNamespace(uploads=Handlers(backend, Board()).uploads, backend=backend, board=Board())
    backend.close()


def item(name: str, kind: ReferenceKind = ReferenceKind.IMAGE, seconds: float | None = None, **found) -> MediaItem:
    report = MediaReport(name=name, kind=kind, container="X", duration_s=seconds, **found)
    return MediaItem(path=Path("/up") / name, report=report, key=name)


A, B = item("a"), item("b")
CLIP = item("clip", ReferenceKind.VIDEO, 6.0, audio_codec="aac")
TONE = item("tone", ReferenceKind.AUDIO, 4.0)


def test_tags_follow_a_move_through_every_kind_they_touch():
    assert form.renumbering((A, CLIP, TONE), (TONE, A, CLIP)) == {"<Audio 1>": "<Audio 2>", "<Audio 2>": "<Audio 1>"}
    assert form.renumbering((A, B), (B, A)) == {"<Picture 1>": "<Picture 2>", "<Picture 2>": "<Picture 1>"}
    assert form.renumbering((A, B), (B,)) == {"<Picture 1>": None, "<Picture 2>": "<Picture 1>"}
    assert form.renumbering((A, B), (A, B, TONE)) == {}


def test_another_tray_brings_its_own_prompt_and_renumbers_nothing(studio):
    assert form.renumbering((A, B), (item("c"), item("d"))) == {}
    prompt, known = studio.uploads.follow("<Picture 2>", (item("c"),), (A, B))
    assert prompt == gr.skip() and [each.key for each in known] == ["c"]


def test_the_prompt_follows_several_changes_at_once(studio):
    prompt, known = studio.uploads.follow("<Picture 1> and <Picture 2>", (B, CLIP, A), (A, B, CLIP))
    assert prompt == "<Picture 2> and <Picture 1>" and known == (B, CLIP, A)
    assert studio.uploads.follow("no tags", (B, A), (A, B))[0] == gr.skip()  # nothing is written, so no cursor jumps


def test_rows_are_named_by_key_so_that_an_old_page_never_hits_another_row(studio):
    p = studio.board.references
    moved = studio.uploads.edit_tray(click(action="move", item="tone", to="0"), (A, CLIP, TONE))
    assert moved[p.items] == (TONE, A, CLIP)
    gone = studio.uploads.edit_tray(click(action="remove", item="a"), moved[p.items])
    assert gone[p.items] == (TONE, CLIP)
    assert studio.uploads.edit_tray(click(action="remove", item="a"), gone[p.items]) == gr.skip()
    for nonsense in ("-1", "99", "x", "9" * 5000):
        assert studio.uploads.edit_tray(click(action="move", item="tone", to=nonsense), (A, TONE))[p.items] == (A, TONE)


def test_handles_set_start_and_length_together(studio):
    p = studio.board.references
    cut = studio.uploads.edit_tray(click(action="trim", item="clip", start="1.5", length="3"), (A, CLIP))
    assert (cut[p.items][1].start_s, cut[p.items][1].length_s) == (1.5, 3.0)
    assert "3.0 of 15 s" in cut[p.tray] and "--from:25.000%;--to:75.000%" in cut[p.tray]
    back = studio.uploads.edit_tray(click(action="trim", item="clip", start="0", length=""), cut[p.items])
    assert (back[p.items][1].start_s, back[p.items][1].length_s) == (0.0, None)
    wrong = studio.uploads.edit_tray(click(action="trim", item="clip", length="a"), cut[p.items])
    assert wrong[p.items] == cut[p.items] and "must be seconds" in wrong[p.tray]
    assert "<code>clip (a)</code>" in wrong[p.tray]


def test_a_part_that_no_reference_may_have_is_refused_in_its_own_row(studio):
    p = studio.board.references
    short = studio.uploads.edit_tray(click(action="trim", item="clip", length="1"), (A, CLIP))
    assert "must use 2 to 15 seconds" in short[p.tray]
    assert "must use" not in studio.uploads.edit_tray(click(action="up", item="clip"), (A, CLIP))[p.tray]


def test_a_long_clip_starts_with_as_much_as_a_reference_may_use():
    assert form.fitted(item("long", ReferenceKind.VIDEO, 40.0)).length_s == 15.0
    assert form.fitted(item("ours", ReferenceKind.VIDEO, 15.083)).length_s is None  # one of our own clips is whole
    assert form.fitted(A) == A


def test_a_file_that_arrives_joins_the_tray_of_then_not_of_before(studio, tmp_path):
    p = studio.board.references
    (tmp_path / "late.png").write_bytes(b"data")
    looked = studio.uploads.look_at([str(tmp_path / "late.png")])
    kept = studio.uploads.arrive(looked[p.arrived], (B, A))[p.items]  # reordered while the file was looked at
    assert [each.path.name for each in kept] == ["b", "a", "late.png"]
    assert studio.uploads.arrive(((), ()), kept) == gr.skip()


@pytest.mark.parametrize(
    ("stored", "given", "called"),
    [
        ("bportrait & %22q%22.png", 'b"portrait & %22q%22.png', 'b"portrait & %22q%22.png'),
        ("qpicture.png", "q<picture>|?.png", "q<picture>|?.png"),
        ("%22q%22.png", None, '"q".png'),  # a client that sends no name beside the file
        ("passwd", "../../etc/passwd", "passwd"),
        ("x.png", "..", "x.png"),
        ("aexe.png", "a\u202egnp\nx.exe", "agnpx.exe"),
        ("long.png", "Ö" * 300 + ".png", "Ö" * 98 + ".png"),  # 200 bytes
        ("家 👩\u200d🚀.png", "家 👩\u200d🚀.png", "家 👩\u200d🚀.png"),
    ],
)
def test_a_file_is_called_as_its_owner_calls_it_everywhere(studio, tmp_path, stored, given, called):
    with gr.Blocks():
        zones = [references.build().drop, *(slot.drop for slot in keyframes.build().slots.values())]
    path = tmp_path / "uploads" / "0a1b" / stored
    path.parent.mkdir(parents=True)
    path.write_bytes(b"data")
    for _ in range(2):  # the same file is sent again
        (several,) = zones[0].preprocess(ListFiles(root=[FileData(path=str(path), orig_name=given)]))
        assert zones[1].preprocess(FileData(path=str(path), orig_name=given)) == several
    assert Path(several) == path.with_name(called) and Path(several).read_bytes() == b"data"
    shown = references.tray_html((item(Path(several).name),))
    assert html.unescape(shown).count(called) >= 2 and ("<picture>" in called) == ("&lt;picture&gt;" in shown)
    asked = GenerationRequest(prompt="x", first_frame=Path(several), sampling=Sampling())
    assert shlex.split(command.shell(command.Call(request=asked)))[6] == called


def test_other_parts_hand_over_a_reference_or_a_frame_as_copies(studio, tmp_path):
    p = studio.board
    (tmp_path / "video.mp4").write_bytes(b"data")
    (tmp_path / "last_frame.png").write_bytes(b"data")
    updates = studio.uploads.add_reference(tmp_path / "video.mp4", (A,), name="boat.mp4")
    assert updates[p.mode] == Mode.REFERENCES.value
    added = updates[p.references.items][1].path
    assert added.name == "boat.mp4" and added.is_relative_to(tmp_path / "uploads")
    framed = studio.uploads.set_frame("first", tmp_path / "last_frame.png")
    assert framed[p.mode] == Mode.FRAMES.value
    assert framed[p.keyframes.slots["first"].item].path.name == "last_frame.png"
    lost = studio.uploads.add_reference(tmp_path / "gone.mp4", (A,))
    assert lost[p.references.items] == (A,) and "is not there any more" in lost[p.references.tray]
    assert "<code>gone.mp4</code>" in lost[p.references.tray]  # a name stands where nothing translates it


def test_a_waveform_is_mirrored_and_silence_is_flat():
    drawn = media.waveform((1.0, 0.5, 0.0))
    assert 'points="0,0 1,25 2,50 2,50 1,75 0,100"' in drawn
    assert 'points="0,50 1,50 1,50 0,50"' in media.waveform((0.0, 0.0))
    assert 'points="0,40 1,40 1,60 0,60"' in media.waveform((0.02, 0.02))  # soft stays small
    assert media.waveform(()) == ""


def test_the_kept_part_of_a_cropped_frame_is_that_of_the_jobs_arithmetic():
    # 640x360 covers 128x160 at 284x160 (`images.onto_canvas`), of which 128 columns stay
    whole = MediaReport(name="a", kind=ReferenceKind.IMAGE, container="X", width=640, height=360)
    placed = dataclasses.replace(whole, prepared_width=128, prepared_height=160)
    assert keyframes.kept_share(whole, placed) == (pytest.approx(128 / 284.4, abs=1e-3), 1.0)
    tall = dataclasses.replace(placed, prepared_width=224, prepared_height=96)
    assert keyframes.kept_share(whole, tall) == (1.0, pytest.approx(96 / (224 * 360 / 640)))
    assert keyframes.kept_share(whole, whole) == (1.0, 1.0)


def test_frames_on_the_page_are_bit_for_bit_those_of_the_job(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "uploads"))
    noise = np.random.default_rng(5).integers(0, 256, (90, 160, 3), dtype=np.uint8)
    for name, size in (("first.png", (300, 420)), ("last.png", (500, 260))):
        Image.fromarray(noise).resize(size).save(tmp_path / name)
    services = dataclasses.replace(fake_services(World()), find_checkpoint=find_checkpoint, prepare=prepare_request)
    backend = Backend(Settings(data_dir=tmp_path / "data"), preset="tiny-cpu", services=services)
    try:
        reports = [backend._services.probe_file(tmp_path / name, name, True) for name in ("first.png", "last.png")]
        frames = [MediaItem(path=tmp_path / report.name, report=report) for report in reports]
        asked = PanelValues(mode=Mode.FRAMES, first_frame=frames[0], last_frame=frames[1], ratio="1:1")
        kept = planned.Planned(backend, Board())
        cards = kept.frames(asked, None)
        (seen,) = kept._prepared.values()
    finally:
        backend.close()
    request = GenerationRequest(
        prompt="x", first_frame=frames[0].path, last_frame=frames[1].path, sampling=Sampling(width=128, height=128)
    )
    job = prepare_request(request, Geometry(), tmp_path / "job")
    assert seen.first_frame.read_bytes() == job.first_frame.read_bytes()
    assert seen.last_frame.read_bytes() == job.last_frame.read_bytes()
    shown = [card for card in cards.values() if "128 × 128" in card]
    assert len(shown) == 2 and seen.first_frame.is_relative_to(tmp_path / "data" / "uploads")
