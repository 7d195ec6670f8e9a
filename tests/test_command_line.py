"""The command line as a script uses it: exit codes, one JSON object on stdout, words on stderr, a real MP4."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

import app
from backend.checkpoints.catalog import TINY_FOLDER
from backend.commands import generation
from backend.jobs.lock import InstanceLock

ROOT = Path(__file__).resolve().parent.parent
OFFICIAL = ROOT.parent / "shared" / "h3-official"
SMALL = ["--duration", "4", "--width", "64", "--height", "64", "--steps", "3"]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory, tiny_checkpoint):
    """A data folder whose built-in model is the one the whole test run shares."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / TINY_FOLDER).symlink_to(tiny_checkpoint)
    return folder


def run(*arguments, data_dir, timeout=240, **kwargs):
    command = [sys.executable, "app.py", arguments[0], "--data-dir", str(data_dir), *map(str, arguments[1:])]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False, **kwargs)


def result_of(done):
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.strip().splitlines()
    return json.loads(line)


def test_generate_writes_a_playable_file_with_sound(tmp_path, data_dir):
    out = tmp_path / "a boat 雨.mp4"
    tensors = tmp_path / "t.safetensors"
    done = run(
        "generate", "--prompt", "a boat", *SMALL, "--seed", 7, "--out", out, "--tensors", tensors, data_dir=data_dir
    )
    result = result_of(done)
    assert result["ok"] and Path(result["video"]) == out
    assert "denoise: step 2 of 2" in done.stderr
    with av.open(str(out)) as container:
        video, audio = container.streams.video[0], container.streams.audio[0]
        assert sum(1 for _ in container.decode(video)) == 107  # 4 s on the 17n+5 grid
        assert (video.codec.name, video.codec_context.pix_fmt, video.average_rate) == ("h264", "yuv420p", 24)
        assert (video.width, video.height) == (64, 64)
        assert (audio.codec.name, audio.rate, audio.channels) == ("aac", 32000, 2)
        embedded = json.loads(container.metadata["comment"])
    sidecar = json.loads(out.with_suffix(".json").read_text("utf-8"))
    assert {**sidecar, "checkpoint": TINY_FOLDER} == embedded  # files by their names, without a path
    assert sidecar["request"]["sampling"]["seed"] == 7
    assert sidecar["request"]["prompt"] == "a boat"
    from safetensors.numpy import load_file

    saved = load_file(tensors)
    assert {name: value.shape for name, value in saved.items()} == {
        "latents": (1, 24, 32, 4, 4),  # 5n+2 latent frames for n=6
        "audio_latents": (2, 32, 178),  # round(107 / 24 * 40)
        "audio": (2, 178 * 800),
    }
    assert all(np.isfinite(value).all() for value in saved.values())


@pytest.mark.thorough
def test_a_sidecar_and_its_mp4_are_requests(tmp_path, data_dir):
    first, second, third = (tmp_path / f"{name}.mp4" for name in "abc")
    Image.new("RGB", (90, 60), (200, 30, 30)).save(tmp_path / "start.png")
    made = run("generate", "--prompt", "x", "--first-frame", tmp_path / "start.png", *SMALL,
               "--out", first, "--tensors", tmp_path / "a.safetensors", data_dir=data_dir)  # fmt: skip
    seed = json.loads(result_of(made)["sidecar"] and first.with_suffix(".json").read_text())["request"]["sampling"][
        "seed"
    ]
    assert isinstance(seed, int)  # an empty seed records the real one
    for source, out, name in ((first.with_suffix(".json"), second, "b"), (first, third, "c")):
        tensors = tmp_path / f"{name}.safetensors"
        result_of(run("generate", "--request", source, "--out", out, "--tensors", tensors, data_dir=data_dir))
        assert tensors.read_bytes() == (tmp_path / "a.safetensors").read_bytes()


@pytest.fixture(scope="module")
def bad_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad")
    (folder / "text.png").write_text("I am no picture")
    (folder / "folder").mkdir()
    for index in range(10):
        Image.new("RGB", (300, 300), (index * 20, 0, 0)).save(folder / f"{index}.png")
    import soundfile

    soundfile.write(folder / "tone.wav", np.sin(np.arange(96000) / 20) * 0.5, 32000)
    (folder / "deep.json").write_text("[" * 100_000)
    (folder / "clip.mp4").touch()
    (folder / "old.json").write_text('{"request": {"prompt": "x"}}')
    (folder / "stranger.json").write_text('{"mine": 1}')
    (folder / "taken.json").mkdir()
    (folder / "nonsense.json").write_text('{"prompt": "x", "colour": 1}')
    return folder


BAD = {
    "empty prompt": (["--prompt", "  "], "prompt"),
    "ten images": (["--prompt", "x", *(f"--reference={i}.png" for i in range(10))], "at most 9 image"),
    "audio alone": (["--prompt", "x", "--reference=tone.wav"], "audio needs at least one image or video"),
    "text as image": (["--prompt", "x", "--first-frame=text.png"], "text.png"),
    "text as reference": (["--prompt", "x", "--reference=text.png"], "text.png"),
    "3 seconds": (["--prompt", "x", "--duration=3"], "4 to 15 seconds"),
    "16 seconds": (["--prompt", "x", "--duration=16"], "4 to 15 seconds"),
    "width 100": (["--prompt", "x", "--width=100", "--height=64"], "nearest is 96"),
    "negative steps": (["--prompt", "x", "--steps=-5"], "num_inference_steps=-5"),
    "missing file": (["--prompt", "x", "--first-frame=nowhere.png"], "there is no such file"),
    "unknown preset": (["--prompt", "x", "--preset=quantum"], "preset=quantum"),
    "unknown quality": (["--prompt", "x", "--quality=best"], "quality=best"),
    "turbo alone": (["--prompt", "x", "--quality=turbo"], "none is installed here; add one as docs/adapters.md says"),
    "turbo and more": (["--prompt", " ", "--quality=turbo", "--out=nowhere/a.mp4"], "none is installed here"),
    "no checkpoint": (["--prompt", "x", "--checkpoint=folder"], "folder"),
    "strange request": (["--request=nonsense.json"], "unknown key 'colour'"),
    "bad frames": (["--prompt", "x", "--frames=100"], "nearest is 107"),
    "not a number": (["--prompt", "x", "--steps=many"], "invalid int value"),
    "no folder for out": (["--prompt", "x", "--out=nowhere/a.mp4"], "there is no folder"),
    "out is an input": (["--prompt", "x", "--reference=clip.mp4", "--out=clip.mp4"], "is also an input"),
    "sidecar is an input": (["--request=old.json", "--out=old.mp4"], "its sidecar old.json is also an input"),
    "sidecar is a stranger": (["--prompt", "x", "--out=stranger.mp4"], "exists and is not a sidecar"),
    "sidecar is a folder": (["--prompt", "x", "--out=taken.mp4"], "its sidecar taken.json is a folder"),
    "long name": (["--prompt", "x", "--out=" + "n" * 300 + ".mp4"], "File name too long"),
    "long input name": (["--prompt", "x", "--first-frame=" + "n" * 300], "File name too long"),
    "folder as frame": (["--prompt", "x", "--first-frame=folder"], "is a folder, not a file"),
    "ratio and size": (["--prompt", "x", "--ratio=1:1", "--width=64", "--height=64"], "exclude each other"),
    "broken text": (["--prompt", "caf\udce9"], "must be valid Unicode text"),
    "vision token": (["--prompt", "<|image_pad|>", "--first-frame=0.png"], "cannot be written beside pictures"),
    "nested request": (["--request=deep.json"], "is no request"),
    "file as checkpoint": (["--prompt", "x", "--checkpoint=text.png"], "no such folder"),
    "two kinds of problem": (["--prompt", "x", "--duration=3", "--first-frame=text.png"], "text.png"),
}


def in_process(capsys, *arguments, data_dir):
    """What `python app.py` would do, without the cost of a process: exit code, stdout, stderr."""
    try:
        code = app.main([arguments[0], "--data-dir", str(data_dir), *map(str, arguments[1:])])
    except SystemExit as end:
        code = end.code
    return code, *capsys.readouterr()


@pytest.mark.parametrize("case", BAD, ids=lambda case: case.replace(" ", "-"))
def test_bad_input_exits_2_with_the_reason_before_anything_loads(case, bad_files, data_dir, tmp_path, capsys):
    arguments, said = BAD[case]
    arguments = [
        f"{a.split('=')[0]}={bad_files / a.split('=', 1)[1]}"
        if a.startswith(("--reference=", "--first-frame=", "--checkpoint=", "--request=", "--out="))
        else a
        for a in arguments
    ]
    out = tmp_path / "never.mp4"
    given = arguments if any(a.startswith("--out") for a in arguments) else [*arguments, "--out", str(out)]
    code, _, errors = in_process(capsys, "generate", *given, data_dir=data_dir)
    assert code == 2, errors
    assert said in errors
    assert "Traceback" not in errors and "load" not in errors.splitlines()[0]
    assert not out.exists()


def test_a_refusal_is_the_same_from_outside(data_dir, bad_files, tmp_path):
    done = run("generate", "--prompt", "x", "--first-frame", bad_files / "text.png", "--out", tmp_path / "a.mp4",
               data_dir=data_dir)  # fmt: skip
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "text.png" in done.stderr and json.loads(done.stdout)["ok"] is False


@pytest.mark.parametrize("command", ["doctor", "generate", "ui"])
def test_a_data_folder_that_cannot_be_written_is_said(command, tmp_path, capsys):
    (tmp_path / "file").touch()
    extra = ["--prompt", "x", "--out", tmp_path / "a.mp4"] if command == "generate" else []
    code, _, errors = in_process(capsys, command, *extra, data_dir=tmp_path / "file")
    assert code == 2
    assert "cannot be written" in errors and "--data-dir" in errors


def test_a_finished_video_is_kept_where_its_place_is_gone(tmp_path, data_dir, capsys, monkeypatch):
    def full(source, destination):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(generation, "_place", full)
    code, output, errors = in_process(
        capsys, "generate", "--prompt", "x", *SMALL, "--out", tmp_path / "a.mp4", data_dir=data_dir
    )
    result = json.loads(output)
    assert code == 1 and "No space left" in result["error"] and "No space left" in errors
    with av.open(result["video"]) as container:
        assert container.streams.video[0].frames == 107


def test_options_change_the_request_of_a_file(tmp_path):
    sidecar = tmp_path / "a.json"
    sidecar.write_text('{"request": {"prompt": "old", "sampling": {"seed": 7, "width": 64, "height": 96}}}')
    options = app._parser().parse_args(
        ["generate", "--request", str(sidecar), "--seed", "8", "--ratio", "1:1", "--duration", "4", "--out", "x.mp4"]
    )
    problems, request = app._request(options)
    sampling = request.sampling
    assert problems == () and request.prompt == "old"
    assert (sampling.seed, sampling.num_frames, sampling.width, sampling.ratio) == (8, 107, None, "1:1")


def test_adapters_are_named_with_their_scales(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = ["--adapter", "a.safetensors:0.75", "--adapter", "b:2.safetensors", "--adapter", "c.safetensors"]
    options = app._parser().parse_args(["generate", "--prompt", "x", *given, "--out", "x.mp4"])
    adapters = app._request(options)[1].sampling.adapters
    assert [(each.path.name, each.scale) for each in adapters] == [
        ("a.safetensors", 0.75),
        ("b:2.safetensors", 1.0),
        ("c.safetensors", 1.0),
    ]
    assert all(each.path.parent == tmp_path for each in adapters)


def test_all_problems_are_said_at_once(data_dir, tmp_path):
    done = run("generate", "--prompt", "", "--duration", 3, "--width", 100, "--height", 64, "--steps", -1,
               "--out", tmp_path / "a.mp4", data_dir=data_dir)  # fmt: skip
    assert done.returncode == 2
    problems = json.loads(done.stdout)["problems"]
    assert {problem["field"] for problem in problems} == {"duration", "prompt", "width", "num_inference_steps"}


def test_ctrl_c_stops_the_job_and_leaves_nothing_behind(data_dir, tmp_path):
    out = tmp_path / "a.mp4"
    command = [sys.executable, "app.py", "generate", "--data-dir", str(data_dir), "--prompt", "x", "--duration", "15",
               "--width", "448", "--height", "256", "--steps", "150", "--out", str(out)]  # fmt: skip
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for line in process.stderr:
        if line.startswith("denoise: step"):
            break
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "cancelled in denoise" in errors
    assert list(tmp_path.iterdir()) == []
    assert list((data_dir / "run").glob("command-*")) == []


def test_what_a_killed_command_left_is_swept_and_a_living_one_is_not(data_dir):
    dead, living, young = (data_dir / "run" / f"command-{name}" for name in ("dead", "living", "young"))
    for folder in (dead, living, young):
        (folder / "jobs").mkdir(parents=True)
    lock = InstanceLock(living)
    for folder in (dead, living):
        os.utime(folder, (0, 0))
    run("doctor", data_dir=data_dir)
    assert [folder.is_dir() for folder in (dead, living, young)] == [False, True, True]
    lock.release()


def test_doctor_chooses_a_preset_and_says_why(data_dir):
    done = run("doctor", "--json", data_dir=data_dir)
    report = json.loads(done.stdout)
    assert report["chosen"] in {preset["name"] for preset in report["presets"]}
    assert report["reason"]
    for preset in report["presets"]:
        assert preset["fits"] or preset["reason"]
    assert report["hardware"]["ram_total_gib"] > 0
    text = run("doctor", data_dir=data_dir).stdout
    assert report["reason"] in text


def test_models_list_names_every_checkpoint(data_dir):
    models = json.loads(subprocess.run(
        [sys.executable, "app.py", "models", "list", "--json", "--data-dir", str(data_dir)],
        cwd=ROOT, capture_output=True, text=True, check=True).stdout)["models"]  # fmt: skip
    by_name = {model["name"]: model for model in models}
    assert {"tiny", "MiniMaxAI/MiniMax-H3"} <= set(by_name)
    assert by_name["tiny"]["state"] == "ready"
    assert set(by_name["tiny"]) >= {"name", "folder", "layout", "tasks", "bytes", "state"}
    assert set(by_name["tiny"]["tasks"]) == {"t2va", "fl2va", "ref2va"}


@pytest.mark.thorough
@pytest.mark.parametrize("task", ["t2va", "fl2va", "ref2va"])
def test_the_official_example_requests_run(task, tmp_path, data_dir):
    """The three public example prompts, with stand-in media taken from the official clips."""
    if not OFFICIAL.is_dir():
        pytest.skip("the official example requests are not beside the repository")
    example = json.loads((OFFICIAL / "requests" / f"{task}.json").read_text("utf-8"))
    arguments = ["--prompt", example["prompt"], "--seed", example["seed"], *SMALL]
    clip = OFFICIAL / "clips" / f"{task}.mp4"
    if task == "fl2va":
        with av.open(str(clip)) as container:
            next(container.decode(video=0)).to_image().save(tmp_path / "first.png")
        arguments += ["--first-frame", tmp_path / "first.png"]
    if task == "ref2va":
        import soundfile

        soundfile.write(tmp_path / "voice.wav", np.sin(np.arange(3 * 32000) / 30) * 0.3, 32000)
        arguments += ["--reference", clip, "--reference", tmp_path / "voice.wav"]
    result = result_of(run("generate", *arguments, "--out", tmp_path / "a.mp4", data_dir=data_dir))
    sidecar = json.loads(Path(result["sidecar"]).read_text("utf-8"))
    assert sidecar["task"] == task
    assert sidecar["request"]["prompt"] == example["prompt"]
