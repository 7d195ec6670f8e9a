"""The shipped model from the command line, without GPU and weights, judged by the world's own detectors."""

import json
import os
import subprocess
import sys
from pathlib import Path

import av
import numpy as np
import torch

from backend.checkpoints.catalog import NANO_EXAMPLES
from bench.nano import detectors, hearing

ROOT = Path(__file__).resolve().parents[2]


def test_a_sentence_becomes_a_clip_that_follows_it(tmp_path):
    prompt = dict(NANO_EXAMPLES)["Rising triangle"]
    environment = {name: value for name, value in os.environ.items() if name != "H3_CHECKPOINT"}
    out = tmp_path / "clip.mp4"
    command = [sys.executable, "app.py", "generate", "--prompt", prompt, "--duration", "4", "--seed", "1"]
    done = subprocess.run(
        [*command, "--data-dir", str(tmp_path / "data"), "--out", str(out)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["width"], told["height"], told["num_frames"]) == (224, 128, 107)
    assert told["steps"]["forwards"] == 11
    assert Path(told["checkpoint"]) == ROOT / "assets" / "nano"
    with av.open(str(out)) as container:
        frames = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    with av.open(str(out)) as container:
        wave = np.concatenate([frame.to_ndarray() for frame in container.decode(audio=0)], axis=1)
    seen, heard = detectors.look(torch.from_numpy(frames)), hearing.listen(torch.from_numpy(wave))
    assert (seen.color, seen.shape, seen.motion) == ("purple", "triangle", "up")
    assert hearing.pitch_class("E", heard.note)  # the world gives a triangle the third note
    assert not (tmp_path / "data" / "checkpoints").exists()  # read where it lies
