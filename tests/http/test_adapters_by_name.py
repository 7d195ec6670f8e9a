"""LoRA files over HTTP: by the names this server lists, and never by a path."""

from __future__ import annotations

import pytest
from fake_hub import lora

from backend.checkpoints import adapter_shelf
from backend.checkpoints.adapters import NotAnAdapter
from backend.errors import InvalidRequest
from backend.http.forms import asked_by_fields
from backend.settings import Settings
from backend.types import Adapter


@pytest.fixture
def settings(tmp_path) -> Settings:
    made = Settings(data_dir=tmp_path / "data")
    lora(made.adapters_dir / "turbo.safetensors", title="Turbo", num_inference_steps="9", flow_shift="6")
    (made.adapters_dir / "broken.safetensors").write_bytes(b"no")
    return made


def find(settings):
    return lambda name, scale, field: adapter_shelf.pick(settings, name, scale, field)


def test_a_listed_name_becomes_its_file_with_its_scale(settings):
    asked = asked_by_fields({"prompt": "x", "lora": '[{"name": "turbo.safetensors", "scale": 0.8}]'}, [])
    made = asked.with_adapters(find(settings)).sampling.adapters
    assert made == (Adapter(path=settings.adapters_dir / "turbo.safetensors", scale=0.8),)
    assert asked_by_fields({"prompt": "x"}, []).with_adapters(find(settings)).sampling.adapters == ()


@pytest.mark.parametrize(
    "said",
    [
        '{"name": "a", "path": "/etc/passwd"}',
        '{"path": "/etc/passwd"}',
        '{"name": "/etc/passwd"}',
        '{"name": "..\\\\\\\\x"}',
        '{"name": "turbo", "local_path": "x"}',
        '[{"scale": 1}]',
        '{"name": 5}',
    ],
)
def test_a_path_is_never_taken(said):
    with pytest.raises(InvalidRequest):
        asked_by_fields({"prompt": "x", "lora": said}, [])


@pytest.mark.parametrize(("name", "scale"), [("..", 1.0), ("missing", 1.0), ("broken", 1.0), ("turbo", 9.0), ("", 1.0)])
def test_what_is_not_listed_is_refused_with_what_is(settings, name, scale):
    with pytest.raises(InvalidRequest) as refused:
        adapter_shelf.pick(settings, name, scale)
    assert "turbo" in str(refused.value) or "strength" in str(refused.value)


def test_the_shelf_says_what_each_file_is_and_why_one_cannot_be_used(settings):
    broken, turbo = adapter_shelf.listed(settings)
    assert (turbo.name, turbo.card.title, turbo.card.num_inference_steps, turbo.card.flow_shift) == (
        "turbo",
        "Turbo",
        9,
        6.0,
    )
    assert broken.card is None and "safetensors" in broken.problem


def test_an_upload_is_looked_at_before_it_is_kept_and_never_replaces_another(settings, tmp_path):
    sent = lora(tmp_path / "sent" / "line art.safetensors")
    assert adapter_shelf.add(settings, sent, sent.name).path == settings.adapters_dir / "line art.safetensors"
    with pytest.raises(InvalidRequest, match="already"):
        adapter_shelf.add(settings, sent, sent.name)
    with pytest.raises(NotAnAdapter):
        adapter_shelf.add(settings, settings.adapters_dir / "broken.safetensors", "other.safetensors")
    for name in ("../../x.safetensors", ".hidden.safetensors"):
        kept = {path.name for path in settings.data_dir.parent.rglob("*")}
        try:
            adapter_shelf.add(settings, sent, name)
        except InvalidRequest:
            assert {path.name for path in settings.data_dir.parent.rglob("*")} == kept
        else:
            assert (settings.adapters_dir / "x.safetensors").is_file()
    adapter_shelf.remove(settings, "line art")
    assert not (settings.adapters_dir / "line art.safetensors").exists()
