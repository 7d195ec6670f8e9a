"""The command line that makes a stored job again, ready to copy.

Pure; it knows the options of `app.py generate` and shell quoting.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from backend.jobs.records import JobRecord


def command_line(record: JobRecord) -> str:
    """`python app.py generate ...` for the same video. Media go by the names they came with.

    Trimmed clips and shifts have no option of their own, so such a job goes by its saved details file.
    """
    request = record.request
    sampling = request.sampling
    trimmed = any(reference.start_s or reference.length_s is not None for reference in request.references)
    if trimmed or sampling.flow_shift or sampling.audio_flow_shift or sampling.adapters:
        words = ["--request", f"h3-{record.id}.json"]
    else:
        dashed = request.prompt.startswith("-")  # would be read as an option
        words = [f"--prompt={request.prompt}"] if dashed else ["--prompt", request.prompt]
        for option, path in (("--first-frame", request.first_frame), ("--last-frame", request.last_frame)):
            words += [option, _name(record, path)] if path is not None else []
        for reference in request.references:
            words += ["--reference", _name(record, reference.path)]
        words += [
            "--frames",
            str(sampling.num_frames),
            "--width",
            str(sampling.width),
            "--height",
            str(sampling.height),
        ]
        words += ["--steps", str(sampling.num_inference_steps), "--seed", str(sampling.seed)]
        words += ["--quality", record.quality]
    return shlex.join(["python", "app.py", "generate", *words, "--preset", record.preset, "--out", "video.mp4"])


def _name(record: JobRecord, path: Path) -> str:
    return record.labels.get(path.name, path.name)
