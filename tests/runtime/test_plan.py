import pytest

from backend.errors import Unavailable
from backend.presets import Offload
from backend.runtime.plan import GIB, decide

# GiB of the released model: conditioner cut at layer 50, transformer with tables for projections (h3-facts 1 and 4).
RELEASED = {name: int(size * GIB) for name, size in
            {"text_encoder": 48.4, "transformer": 37.5, "vae": 5.2, "audio_vae": 0.6}.items()}  # fmt: skip


def test_everything_stays_on_a_141_gb_card():
    plan = decide(RELEASED, int(139.8 * GIB), Offload.AUTO)
    assert plan.parked == ()
    assert set(plan.resident) == set(RELEASED)


def test_an_80_gb_card_parks_the_two_large_components():
    plan = decide(RELEASED, int(79.1 * GIB), Offload.AUTO)
    assert plan.parked == ("text_encoder", "transformer")
    assert plan.resident == ("vae", "audio_vae")
    written = plan.as_dict()
    assert written["free_gib"] == 79.1
    assert written["weights_gib"]["text_encoder"] == 48.4
    assert "103" in plan.reason  # 91.7 of weights, 9.6 of work for 362 frames, 1.3 of tables


def test_component_offload_can_be_asked_for_on_a_large_card():
    assert decide(RELEASED, 200 * GIB, Offload.COMPONENT).parked == ("text_encoder", "transformer")


def test_no_offload_on_a_small_card_is_refused_with_the_way_out():
    with pytest.raises(Unavailable, match=r"offload=none: everything needs 103 GiB and 77 GiB are usable; .*component"):
        decide(RELEASED, 79 * GIB, Offload.NONE)


def test_a_card_that_cannot_hold_one_stage_is_refused_by_name():
    with pytest.raises(Unavailable, match=r"gpu_memory=46 GiB usable: encode alone needs 52 GiB"):
        decide(RELEASED, 48 * GIB, Offload.AUTO)


def test_small_components_are_parked_only_when_they_must_be():
    plan = decide(RELEASED, int(57 * GIB), Offload.AUTO)
    assert plan.resident == ()
