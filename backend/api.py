"""The only door into the backend: what the page, the command line and HTTP may ask.

Knows which parts the door has (`backend.door`); how a job runs is `backend.jobs`, how a model runs is the engines'.
"""

from __future__ import annotations

from backend.door.asking import Asking
from backend.door.jobs import Jobs
from backend.door.models import Models
from backend.door.queue import Queue
from backend.door.standing import PresetStatus, Standing, Status
from backend.hardware.choose import Choice
from backend.jobs.caps import SHARED, Caps
from backend.jobs.manager import Health
from backend.jobs.planning import Plan
from backend.jobs.recall import Recalled
from backend.jobs.records import ADMIN, JobRecord, JobState
from backend.jobs.results import DiskUse
from backend.media.finished import Comparison

__all__ = [
    "ADMIN",
    "SHARED",
    "Backend",
    "Caps",
    "Choice",
    "Comparison",
    "DiskUse",
    "Health",
    "JobRecord",
    "JobState",
    "Plan",
    "PresetStatus",
    "Recalled",
    "Status",
]


class Backend(Standing, Asking, Jobs, Queue, Models):
    """Opens the job store of `settings`, alone, and starts its dispatcher; loads no model.

    Jobs that waited when the program ended go on. Raises Unavailable when another program has the data folder,
    PresetError for an unknown `preset`. `fleets` jobs run at once, each on GPUs of its own; 1 gives all to one job,
    0 runs as many as fit, None leaves it to the preset.
    """
