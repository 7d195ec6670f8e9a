"""The only door into the backend: what the page, the command line and HTTP may ask.

Knows which parts the door has (`backend.door`); how a job runs is `backend.jobs`, how a model runs is the engines'.
"""

from __future__ import annotations

from backend.checkpoints.adapter_shelf import ListedAdapter
from backend.checkpoints.catalog import Checkpoint
from backend.checkpoints.licence import Licence
from backend.checkpoints.weights import Activity, BundleView, ModelView, Shelf
from backend.door.asking import Asking
from backend.door.jobs import Jobs
from backend.door.models import Models
from backend.door.queue import Queue
from backend.door.standing import PresetStatus, QualityView, Standing, Status
from backend.hardware.choose import Choice
from backend.hardware.forecast import Forecast
from backend.hardware.machine_view import GpuView, MachineView, PresetView
from backend.hardware.placement import Part, RankPlace
from backend.hardware.topology import RankView
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
    "Activity",
    "Backend",
    "BundleView",
    "Caps",
    "Checkpoint",
    "Choice",
    "Comparison",
    "DiskUse",
    "Forecast",
    "GpuView",
    "Health",
    "JobRecord",
    "JobState",
    "Licence",
    "ListedAdapter",
    "MachineView",
    "ModelView",
    "Part",
    "Plan",
    "PresetStatus",
    "PresetView",
    "QualityView",
    "RankPlace",
    "RankView",
    "Recalled",
    "Shelf",
    "Status",
]


class Backend(Standing, Asking, Jobs, Queue, Models):
    """Opens the job store of `settings`, alone, and starts its dispatcher; loads no model.

    Jobs that waited when the program ended go on. Raises Unavailable when another program has the data folder,
    PresetError for an unknown `preset`. `fleets` jobs run at once, each on GPUs of its own; 1 gives all to one job,
    0 runs as many as fit, None leaves it to the preset.
    """
