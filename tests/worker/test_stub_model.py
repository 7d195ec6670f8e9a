import json
import subprocess
import sys

import av
import numpy as np
import pytest

from backend.events import Succeeded
from backend.presets import Device, Dtype
from backend.process.child import REPOSITORY
from backend.process.messages import Setup
from backend.types import EncoderSettings, GenerationRequest, JobId, PreparedMedia, Render, Sampling
from backend.worker.report import Report
from backend.worker.stub_model import StubModel, parse, tone


def run(folder, checkpoint, frames=107, width=224, height=128):
    sampling = Sampling(num_frames=frames, width=width, height=height, seed=3, num_inference_steps=2)
    render = Render(
        job=JobId("j"),
        request=GenerationRequest(prompt="x", sampling=sampling),
        media=PreparedMedia(),
        folder=folder,
        encoder=EncoderSettings(crf=10),
    )
    setup = Setup(
        run="r",
        rank=0,
        world_size=1,
        model="stub",
        checkpoint=checkpoint,
        device=Device.CPU,
        dtype=Dtype.FLOAT32,
        rendezvous=folder / "none",
        cache_dir=folder,
    )
    model, report = StubModel(), Report(0, lambda event: None)
    model.load(setup, report)
    report.begin(model.agree)
    end = model.generate(render, report)
    assert isinstance(end, Succeeded)
    return end


def test_the_file_has_the_asked_length_canvas_and_tone(tmp_path):
    end = run(tmp_path, "stub:step_s=0")
    with av.open(str(end.video)) as file:
        frames = [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]
    with av.open(str(end.video)) as file:
        sound = np.concatenate([frame.to_ndarray() for frame in file.decode(audio=0)], axis=1)
        assert json.loads(file.metadata["comment"]) == end.details
    assert (len(frames), frames[0].shape) == (107, (128, 224, 3))
    assert np.abs(frames[0].astype(int) - frames[-1].astype(int)).mean() > 5  # the bar has crossed the picture
    spectrum = np.abs(np.fft.rfft(sound[0, :32_000]))
    assert spectrum.argmax() == 440  # Hz, in a second of sound


def test_flat_colours_for_a_quarter_each(tmp_path):
    end = run(tmp_path, "stub:step_s=0,pattern=flat", frames=124)
    with av.open(str(end.video)) as file:
        frames = [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]
    for index, colour in ((5, (255, 0, 0)), (40, (0, 255, 0)), (70, (0, 0, 255)), (120, (128, 128, 128))):
        assert np.abs(frames[index][64, 112].astype(int) - colour).max() <= 4


def test_tone_is_quiet_stereo():
    wave = tone(32_000)
    assert (wave.shape, wave.dtype) == ((2, 32_000), np.float32)
    assert 0.19 < wave.max() <= 0.2
    assert (wave[0] == wave[1]).all()


@pytest.mark.parametrize(
    ("line", "says"),
    [("tiny", "starts with 'stub:'"), ("stub:steps=3", "unknown key 'steps'"), ("stub:step_s=fast", "fast")],
)
def test_a_bad_line_of_settings_is_named(line, says):
    with pytest.raises(ValueError, match=says):
        parse(line)


def test_settings_are_read():
    options = parse("stub:step_s=0.3,load_s=0.2,fail_step=3")
    assert (options.step_s, options.load_s, options.fail, options.at_step) == (0.3, 0.2, "denoise", 3)


def test_the_pretend_rank_never_loads_torch():
    code = (
        "import sys, backend.worker.main, backend.worker.loop, backend.worker.models as m; m.create('stub');"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=False).returncode == 0
