"""Real rank processes with a pretend model, for tests of everything around the model.

Its checkpoint is a line of settings that `backend.worker.stub_model` documents; it needs no particular machine.
"""

from __future__ import annotations

from backend.engines.fleet_engine import FleetEngine


class StubEngine(FleetEngine):
    """Runs anywhere, renders a test pattern."""

    MODEL = "stub"
