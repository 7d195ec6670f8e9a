"""Who may share the page, with which limits, and who rules over it."""

import dataclasses

import pytest
from job_fakes import FakeCheckpoint, World, fake_services, open_backend, request

from backend.api import ADMIN, SHARED, Backend, Caps
from backend.checkpoints.catalog import RELEASED
from backend.errors import InvalidRequest, JobNotFound, NotNow, Unavailable
from backend.settings import Settings
from backend.types import Geometry
from h3ui.panels import licence as licence_panel
from h3ui.serve import ServeOptions, _probe_port, grant

LOGINS = (("ann", "a"), ("bob", "b"))


@pytest.fixture
def backend(tmp_path):
    backend = open_backend(tmp_path / "data", World())
    backend.pause()
    yield backend
    backend.close()


def released(folder):
    """A backend whose checkpoint is the released model."""
    checkpoint = FakeCheckpoint(name=RELEASED, source=RELEASED, geometry=Geometry())
    services = dataclasses.replace(fake_services(World()), find_checkpoint=lambda preset, settings: checkpoint)
    return Backend(Settings(data_dir=folder), preset="tiny-cpu", services=services)


def test_a_share_needs_a_password_or_the_word_that_it_is_open(backend):
    with pytest.raises(Unavailable, match=r"--auth.*--share-open"):
        grant(backend, ServeOptions(share=True))
    assert backend.caps == Caps()
    grant(backend, ServeOptions(share=True, share_open=True))
    assert backend.caps == SHARED
    grant(backend, ServeOptions(share=True, auth=LOGINS))


def test_caps_refuse_in_words_and_take_what_is_below_them(backend, tmp_path):
    grant(backend, ServeOptions(share=True, share_open=True))
    for _ in range(SHARED.waiting_per_owner):
        backend.submit(request(), owner="session:one")
    with pytest.raises(InvalidRequest, match="at most 5 of your jobs may wait"):
        backend.submit(request(), owner="session:one")
    backend.submit(request(), owner="session:two")
    backend.limit(Caps(waiting_in_all=6))
    with pytest.raises(InvalidRequest, match=r"at most 6 jobs may wait.*later"):
        backend.submit(request(), owner="session:three")
    backend.limit(Caps(media_bytes_per_owner=1000))
    picture = tmp_path / "a.png"
    picture.write_bytes(b"x" * 600)
    framed = dataclasses.replace(request(), first_frame=picture)
    backend.submit(framed, owner="session:four")
    with pytest.raises(InvalidRequest, match="media of your waiting jobs"):
        backend.submit(framed, owner="session:four")
    assert len(backend.queue(owner=ADMIN)) == 7


def test_many_at_once_do_not_slip_past_the_cap(backend):
    from concurrent.futures import ThreadPoolExecutor

    backend.limit(Caps(waiting_per_owner=3))

    def submit(_):
        try:
            return backend.submit(request(), owner="ann")
        except InvalidRequest:
            return None

    with ThreadPoolExecutor(16) as pool:
        assert sum(job is not None for job in pool.map(submit, range(32))) == 3


@pytest.mark.parametrize(("admin", "rules"), [(None, "ann"), ("bob", "bob")])
def test_the_first_user_rules_or_the_named_one(backend, admin, rules):
    grant(backend, ServeOptions(auth=LOGINS, admin=admin))
    job = backend.submit(request(), owner="session:x")
    other = "bob" if rules == "ann" else "ann"
    assert backend.job(job, owner=f"user:{rules}").id == job
    assert [record.id for record in backend.queue(owner=f"user:{rules}")] == [job]
    assert [record.id for record in backend.history(owner=f"user:{rules}")] == [job]
    with pytest.raises(JobNotFound):
        backend.cancel(job, owner=f"user:{other}")
    with pytest.raises(NotNow, match="administrator"):
        backend.resume(owner=f"user:{other}")
    backend.resume(owner=f"user:{rules}")
    backend.pause(owner=f"user:{rules}")


def test_an_administrator_must_be_a_user(backend):
    with pytest.raises(Unavailable, match="--auth eve:PASSWORD"):
        grant(backend, ServeOptions(auth=LOGINS, admin="eve"))
    with pytest.raises(Unavailable, match="cannot log in; serve without --auth"):
        grant(backend, ServeOptions(auth=LOGINS, mcp=True))
    with pytest.raises(Unavailable, match="auth=ann: has two passwords"):
        grant(backend, ServeOptions(auth=(*LOGINS, ("ann", "another"))))


@pytest.mark.parametrize("host", ["999.1.1.1", "192.0.2.1"])  # none at all, and one kept for documentation
def test_a_host_that_is_not_here_is_said_to_be_the_fault_not_the_port(host):
    with pytest.raises(Unavailable, match=f"host={host}: is no address of this machine"):
        _probe_port(ServeOptions(host=host))


@pytest.mark.parametrize(
    ("options", "may"),
    [({}, True), ({"host": "0.0.0.0"}, False), ({"share": True, "share_open": True}, False)],
)
def test_without_logins_only_a_page_of_one_machine_can_be_paused_by_anybody(backend, options, may):
    grant(backend, ServeOptions(**options))
    assert backend.may_pause("session:x") is may
    assert backend.rules("session:x") is False


def test_the_licence_is_asked_once_and_kept(tmp_path):
    backend = released(tmp_path / "data")
    asked = backend.licence()
    assert (asked.name, asked.accepted) == ("MiniMax H3 Community License", False)
    assert "accept-licence" in licence_panel.html(asked)
    sharing = ServeOptions(share=True, auth=LOGINS)
    with pytest.raises(Unavailable, match=r"MiniMax H3 Community License.*--accept-licence"):
        grant(backend, sharing)
    grant(backend, ServeOptions())  # at home the page asks
    grant(backend, dataclasses.replace(sharing, accept_licence=True))
    backend.close()
    backend = released(tmp_path / "data")
    assert backend.licence().accepted
    assert "<button" not in licence_panel.html(backend.licence())
    assert "huggingface.co/MiniMaxAI" in licence_panel.html(backend.licence())
    grant(backend, sharing)
    backend.close()


def test_the_built_in_model_needs_no_licence(backend):
    assert backend.licence() is None
    assert licence_panel.html(None) == ""
