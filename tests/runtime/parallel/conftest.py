import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from team import Team


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """As the ranks have: with another number of threads a product may sum in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def teams(tmp_path_factory):
    """The ranks of a size; once there, they stay for the module: eight of them hold gigabytes."""
    made = {}

    def get(size):
        if size not in made:
            made[size] = Team(size, tmp_path_factory.mktemp(f"team{size}"))
        return made[size]

    yield get
    for team in made.values():
        team.close()
