"""The four endpoints from outside: what is listed, whose jobs they reach, which files they take, and a Space's page."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from gradio_client import Client, handle_file
from PIL import Image

from backend.jobs.records import ADMIN, JobState
from backend.jobs.store import JobStore
from backend.types import JobId
from tests.http.test_served import program
from tests.job_fakes import World, open_backend, request

FOUR = {"/generate", "/status", "/result", "/cancel"}
JSON = {"Content-Type": "application/json"}
SMALL = {"num_frames": 107, "width": 64, "height": 64, "num_inference_steps": 4, "seed": 2**63 - 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> tuple[Path, dict[str, str]]:
    """A data folder with a finished job of ann and one of everybody, and a queue that stands still."""
    data = tmp_path_factory.mktemp("public") / "data"
    backend = open_backend(data, World())
    jobs = {}
    for name, owner in (("ann", "user:ann"), ("all", "api")):
        jobs[name] = backend.submit(request(), owner=owner)
        list(backend.events(jobs[name], owner=owner))
    backend.pause()
    backend.close()
    return data, jobs


@pytest.fixture(scope="module")
def served(folder):
    with program(folder[0], "--auth", "ann:ann", "--auth", "bob:bob") as (url, _):
        yield url


@pytest.fixture(scope="module")
def ann(served) -> Client:
    return Client(served, auth=("ann", "ann"), verbose=False)


@pytest.fixture(scope="module")
def bob(served) -> Client:
    return Client(served, auth=("bob", "bob"), verbose=False)


def stored(folder: Path, job: str) -> Any:
    store = JobStore(folder / "jobs.sqlite3", folder / "jobs")
    try:
        return store.get(JobId(job))
    finally:
        store.close()


def test_exactly_four_endpoints_are_listed_and_typed(ann):
    listed = ann.view_api(return_format="dict", print_info=False)
    assert set(listed["named_endpoints"]) == FOUR
    assert listed["unnamed_endpoints"] == {}
    types = {
        name: ([item["python_type"]["type"] for item in told["parameters"]], told["returns"][0]["python_type"]["type"])
        for name, told in listed["named_endpoints"].items()
    }
    assert types["/generate"][1] == "str" and types["/result"] == (["str"], "filepath")
    assert types["/generate"][0][:4] == ["str", *["None | filepath"] * 2, "None | list[filepath]"]
    assert "seed: int" in types["/generate"][0][4] and "Any" not in types["/status"][1]
    assert all(told["description"] for told in listed["named_endpoints"].values())


def test_no_handler_of_the_page_can_be_called_by_a_script(ann):
    private = [at for at, item in enumerate(ann.config["dependencies"]) if f"/{item['api_name']}" not in FOUR]
    assert len(private) > 10
    with pytest.raises(ValueError):
        ann.predict(fn_index=private[0])
    called = ann.config["dependencies"][private[0]]["api_name"]
    answer = httpx.post(f"{ann.src}gradio_api/call/{called}", json={"data": []}, trust_env=False, cookies=ann.cookies)
    assert answer.status_code >= 400 or "event_id" not in answer.json() or _ends_in_error(ann, called, answer)


def _ends_in_error(client: Client, name: str, answer: httpx.Response) -> bool:
    url = f"{client.src}gradio_api/call/{name}/{answer.json()['event_id']}"
    return "event: error" in httpx.get(url, trust_env=False, cookies=client.cookies, timeout=20).text


def test_a_job_is_its_users_alone(ann, bob, folder):
    job = ann.predict(prompt="a kettle 雨", settings=SMALL, api_name="/generate")
    record = stored(folder[0], job)
    assert (record.owner, record.request.prompt) == ("user:ann", "a kettle 雨")
    assert record.request.sampling.seed == 2**63 - 1
    told = ann.predict(job, api_name="/status")
    assert (told["status"], told["progress"], told["size"], told["num_frames"]) == ("queued", 0, "64x64", 107)
    for endpoint in ("/status", "/result", "/cancel"):
        with pytest.raises(Exception, match="no such job"):
            bob.predict(job, api_name=endpoint)
    with pytest.raises(Exception, match="it is queued"):
        ann.predict(job, api_name="/result")
    assert ann.predict(job, api_name="/cancel")["status"] == "failed"
    assert stored(folder[0], job).state is JobState.CANCELLED
    with pytest.raises(Exception, match="cancelled"):
        ann.predict(job, api_name="/cancel")


def test_a_result_is_downloaded(ann, folder):
    path = Path(ann.predict(folder[1]["ann"], api_name="/result"))
    assert path.suffix == ".mp4" and path.read_bytes() == b"video" * 1000


def test_files_are_uploaded_in_their_places(ann, folder, tmp_path):
    for name, colour in (("one", "red"), ("two", "blue")):
        Image.new("RGB", (320, 320), colour).save(tmp_path / f"{name}.png")
    files = [handle_file(str(tmp_path / f"{name}.png")) for name in ("one", "two")]
    job = ann.predict(prompt="x", last_frame=files[1], settings=SMALL, api_name="/generate")
    made = stored(folder[0], job).request
    assert made.first_frame is None and made.last_frame.read_bytes() == (tmp_path / "two.png").read_bytes()
    job = ann.predict(prompt="<Picture 1>", references=files[::-1], settings=SMALL, api_name="/generate")
    sent = [item.path.read_bytes() for item in stored(folder[0], job).request.references]
    assert sent == [(tmp_path / f"{name}.png").read_bytes() for name in ("two", "one")]
    with pytest.raises(Exception, match="do not go together"):
        ann.predict(prompt="x", first_frame=files[0], references=files, settings=SMALL, api_name="/generate")


def test_a_file_is_named_by_its_path_or_its_address_as_assistants_do(served, ann, folder, tmp_path):
    Image.new("RGB", (320, 320), "red").save(tmp_path / "one two.png")
    content = (tmp_path / "one two.png").read_bytes()
    way: dict[str, Any] = {"cookies": ann.cookies, "trust_env": False}
    sent = {"files": ("one two.png", content, "image/png")}
    (path,) = httpx.post(f"{served}/gradio_api/upload", files=sent, **way).json()
    for given in (
        path,
        f"{served}/gradio_api/file={quote(path)}",
        {"path": f"http://h3/gradio_api/file={quote(path)}"},
    ):
        data = ["<Picture 1>", None, None, [given], SMALL]
        url = f"{served}/gradio_api/call/generate"
        asked = httpx.post(url, content=json.dumps({"data": data}), headers=JSON, **way).json()["event_id"]
        text = httpx.get(f"{url}/{asked}", timeout=20, **way).text
        assert "event: complete" in text, text
        (job,) = json.loads(text.rsplit("data: ", 1)[1])
        assert [item.path.read_bytes() for item in stored(folder[0], job).request.references] == [content]


def test_what_is_wrong_is_said_in_words(ann):
    for settings, told in (
        ({"sead": 1}, "sead: is no setting; known are seconds"),
        ({**SMALL, "num_inference_steps": 1}, "num_inference_steps=1: must be 2 to 200"),
        ({**SMALL, "preset": "nope"}, "there is no such preset"),
        ({**SMALL, "quality": "nope"}, "there is no such preset"),
    ):
        with pytest.raises(Exception, match=told):
            ann.predict(prompt="x", settings=settings, api_name="/generate")


LONG = "x" * 100_000
DEEP = json.loads("[" * 900 + "]" * 900)


@pytest.mark.parametrize(
    ("endpoint", "data", "told"),
    [
        ("generate", ["x", None, None, None, "str"], "settings=str: must be an object"),
        ("generate", ["x", None, None, None, [1]], "settings=[1]: must be an object"),
        ("generate", ["x", None, None, None, 5], "settings=5: must be an object"),
        ("generate", ["x", None, None, None, False], "settings=false: must be an object"),
        ("generate", ["x", None, None, None, {"preset": ["a"]}], 'preset=["a"]: must be text'),
        ("generate", ["x", None, None, None, {"preset": LONG}], "there is no such preset"),
        ("generate", ["x", None, None, None, {"quality": LONG}], "there is no such preset"),
        ("generate", ["x", None, None, None, {"quality": {}}], "quality={}: must be text"),
        ("generate", ["x", None, None, None, {LONG: 1}], "is no setting"),
        ("generate", ["x", None, None, None, {"seed": DEEP}], "seed"),
        ("generate", ["x", None, None, None, {"lora": 5}], "lora=5: must be a JSON object"),
        ("generate", ["x", None, None, None, {"preset": "\ud800"}], "settings: its text must be valid Unicode"),
        ("generate", ["\ud800", None, None, None, {}], "prompt: its text must be valid Unicode"),
        ("generate", [5, None, None, None, {}], "prompt=5: must be text"),
        ("generate", [None, None, None, None, {}], "prompt=null: must be text"),
        ("generate", ["x", None, None, 5, {}], "references=5: must be a list of files"),
        ("generate", ["x", None, None, "abc", {}], "references=abc: must be a list of files"),
        ("generate", ["x", None, None, [5, None], {}], "references[0]: is no uploaded file"),
        ("generate", ["x", 5, None, None, {}], "first_frame: is no uploaded file"),
        ("generate", ["x", None, [1], None, {}], "last_frame: is no uploaded file"),
        ("generate", ["x", None, None, None, {"start_time_seconds": "x"}], "start_time_seconds=x: is a number or null"),
        ("generate", ["x", None, None, None, {"length_seconds": [1, 2]}], "length_seconds=[1, 2]: is a number or null"),
        *(
            (endpoint, [job], told)
            for endpoint in ("status", "result", "cancel")
            for job, told in (
                (["a"], 'job=["a"]: is no id of a job; send what generate returned'),
                ({"a": 1}, "is no id of a job"),
                (None, "job=null: is no id of a job"),
                ("", "job: is no id of a job"),
                ("\ud800", "is no id of a job"),
                (LONG, "is no id of a job"),
                ("unknown", "job=unknown: there is no such job"),
            )
        ),
    ],
)
def test_what_is_of_another_kind_is_refused_by_its_field_and_short(served, ann, endpoint, data, told):
    url = f"{served}gradio_api/call/{endpoint}" if served.endswith("/") else f"{served}/gradio_api/call/{endpoint}"
    asked = httpx.post(url, content=json.dumps({"data": data}), headers=JSON, cookies=ann.cookies, trust_env=False)
    text = httpx.get(f"{url}/{asked.json()['event_id']}", cookies=ann.cookies, trust_env=False, timeout=20).text
    assert "event: error" in text and "event: complete" not in text
    said = json.loads(text.split("data: ", 1)[1].splitlines()[0])
    message = said if isinstance(said, str) else said["error"]
    assert told in message and len(message) < 500
    assert "object has no" not in message and "sqlite" not in message


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "{data}/jobs.sqlite3", "{data}/uploads/../jobs.sqlite3", "{data}/uploads", ""]
)
def test_only_uploaded_files_are_taken(served, folder, path):
    file = {"path": path.format(data=folder[0]), "meta": {"_type": "gradio.FileData"}}
    with httpx.Client(base_url=served, trust_env=False, timeout=20) as client:
        client.post("/login", data={"username": "ann", "password": "ann"})
        asked = client.post("/gradio_api/call/generate", json={"data": ["x", file, None, None, {**SMALL}]})
        if asked.status_code == 200:
            text = client.get(f"/gradio_api/call/generate/{asked.json()['event_id']}").text
            assert "event: error" in text and "event: complete" not in text


def test_a_space_is_open_at_once_and_each_client_has_its_own_jobs(tmp_path, monkeypatch):
    for name, value in (("SPACE_ID", "me/studio"), ("SPACES_ZERO_GPU", "true"), ("GRADIO_SERVER_PORT", "1")):
        monkeypatch.setenv(name, value)
    data = tmp_path / "data"
    backend = open_backend(data, World())
    backend.pause(owner=ADMIN)
    backend.close()
    with program(data) as (url, _):
        first = httpx.get(f"{url}/", trust_env=False).text
        assert "H3 Studio starts" in first or "gradio" in first
        deadline = time.monotonic() + 90
        while httpx.get(f"{url}/ready", trust_env=False).status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert "ZeroGPU lends a GPU for one call at a time" in json.dumps(
            httpx.get(f"{url}/config", trust_env=False).json()
        )
        assert httpx.get(f"{url}/v1/videos", trust_env=False).status_code == 404
        one, other = (Client(url, verbose=False) for _ in range(2))
        jobs = [one.predict(prompt="x", settings=SMALL, api_name="/generate") for _ in range(5)]
        with pytest.raises(Exception, match="at most 5 of your jobs"):
            one.predict(prompt="x", settings=SMALL, api_name="/generate")
        with pytest.raises(Exception, match="no such job"):
            other.predict(jobs[0], api_name="/cancel")
        assert one.predict(jobs[0], api_name="/status")["status"] == "queued"
        with contextlib.suppress(Exception):
            one.close()
