"""The copied command line is read by the program itself as the same request."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

import app
from backend.types import GenerationRequest, Reference, ReferenceKind, Sampling
from h3ui.command import command_line
from tests.h3ui.test_panels import EVIL, record

SAMPLING = Sampling(width=224, height=128, num_frames=192, num_inference_steps=9, seed=2**40)


def read_back(made, folder: Path, monkeypatch) -> GenerationRequest:
    monkeypatch.chdir(folder)
    words = shlex.split(command_line(made))
    assert words[:2] == ["python", "app.py"]
    options = app._parser().parse_args(words[2:])
    assert (options.preset, options.quality) == (made.preset, made.quality)
    problems, request = app._request(options)
    assert not problems
    return request


def test_text_with_quotes_and_markup_survives_the_shell(tmp_path, monkeypatch):
    request = GenerationRequest(prompt=EVIL + "\nsecond 'line' $HOME `id`", sampling=SAMPLING)
    assert read_back(record(request=request), tmp_path, monkeypatch) == request
    dashed = dataclasses.replace(request, prompt="- a list of shots")
    assert read_back(record(request=dashed), tmp_path, monkeypatch) == dashed


def test_media_go_by_the_names_they_came_with(tmp_path, monkeypatch):
    names = {"0.png": "my picture.png", "1.wav": "voice.wav"}
    for name in names.values():
        (tmp_path / name).write_bytes(b"x")
    references = (
        Reference(path=Path("/jobs/x/0.png"), kind=ReferenceKind.IMAGE),
        Reference(path=Path("/jobs/x/1.wav"), kind=ReferenceKind.AUDIO),
    )
    made = record(request=GenerationRequest(prompt="x", references=references, sampling=SAMPLING), labels=names)
    read = read_back(made, tmp_path, monkeypatch)
    assert [reference.path.name for reference in read.references] == list(names.values())
    frames = GenerationRequest(prompt="x", first_frame=Path("/jobs/x/0.png"), sampling=SAMPLING)
    assert read_back(record(request=frames, labels=names), tmp_path, monkeypatch).first_frame.name == "my picture.png"


def test_trims_and_shifts_have_options_and_two_files_never_share_a_name(tmp_path, monkeypatch):
    (tmp_path / "voice.wav").write_bytes(b"x")
    parts = [
        Reference(path=Path(f"/jobs/x/{number}.wav"), kind=ReferenceKind.AUDIO, start_s=start, length_s=length)
        for number, (start, length) in enumerate([(1.5, None), (0.0, 2.25), (1e-05, 3.1)])
    ]
    shifted = dataclasses.replace(SAMPLING, flow_shift=6.5, audio_flow_shift=3.0)
    made = record(
        request=GenerationRequest(prompt="x", references=tuple(parts), sampling=shifted),
        labels={"0.wav": "voice.wav", "1.wav": "-v.wav", "2.wav": "voice.wav"},
    )
    read = read_back(made, tmp_path, monkeypatch)
    assert read.sampling == shifted
    assert [(item.start_s, item.length_s) for item in read.references] == [(1.5, None), (0.0, 2.25), (1e-05, 3.1)]
    assert [item.path.name for item in read.references] == ["voice.wav", "-v.wav", "2-voice.wav"]
