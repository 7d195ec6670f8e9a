"""Files for requests to the door: the fakes tell what they are by their names."""

import pytest


@pytest.fixture
def media(tmp_path):
    def make(name, content=b"content"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    return make
