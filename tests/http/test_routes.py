"""Health, files and `/v1/videos` over HTTP: what answers, what is refused, and that nothing else gets out."""

import base64
import json
import time

import pytest
from fastapi import FastAPI
from job_fakes import request, wait_until
from starlette.testclient import TestClient

from backend.api import ADMIN
from backend.http import guards
from backend.http.login import login
from backend.http.routes import routers

PNG = b"\x89PNG\r\n\x1a\n" + b"pixels" * 10


def owner_of(http_request):
    """The name in X-Owner, nobody without one: stands for a login."""
    return http_request.headers.get("x-owner")


@pytest.fixture
def client(backend):
    app = FastAPI()
    for router in routers(backend, owner_of):
        app.include_router(router)
    with TestClient(app, headers={"x-owner": "ann"}, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def done(backend):
    job = backend.submit(request(), owner="ann")
    list(backend.events(job, owner="ann"))
    return job


# -- health -------------------------------------------------------------------------------------------------------


def test_health_and_ready_tell_the_truth(client, backend, world):
    wait_until(lambda: client.get("/ready").status_code == 200)
    assert client.get("/ready").json()["state"] == "ready"
    world.load_s, world.steps, world.step_s = 0.4, 10, 0.05
    job = backend.submit(request(), owner="ann")
    wait_until(lambda: client.get("/ready").json()["state"] == "starting")
    answer = client.get("/ready")
    assert (answer.status_code, answer.json()["ready"]) == (503, False)
    assert client.get("/health").status_code == 200
    wait_until(lambda: client.get("/ready").json()["state"] == "busy")
    assert client.get("/ready").status_code == 200
    assert job not in client.get("/ready").text + client.get("/health").text
    list(backend.events(job, owner="ann"))


def test_ready_gives_the_reason_of_a_failure(client, backend, world):
    world.fail_to_start = "rank 1: CUDA out of memory"
    list(backend.events(backend.submit(request(), owner="ann"), owner="ann"))
    wait_until(lambda: client.get("/ready").json()["state"] == "failed")
    answer = client.get("/ready")
    assert (answer.status_code, answer.json()["reason"]) == (503, "rank 1: CUDA out of memory")
    assert client.get("/health").status_code == 200


def test_closing_ends_health_too(client, backend):
    backend.close()
    assert client.get("/health").status_code == 503
    assert client.get("/ready").status_code == 503


# -- files --------------------------------------------------------------------------------------------------------


def test_d10_a_range_of_the_video(client, done):
    whole = client.get(f"/files/{done}/video.mp4")
    assert (whole.status_code, whole.headers["content-type"], len(whole.content)) == (200, "video/mp4", 5000)
    part = client.get(f"/files/{done}/video.mp4", headers={"range": "bytes=0-1"})
    assert (part.status_code, part.content, part.headers["content-type"]) == (206, b"vi", "video/mp4")
    assert part.headers["content-range"] == "bytes 0-1/5000"
    tail = client.get(f"/files/{done}/video.mp4", headers={"range": "bytes=-3"})
    assert (tail.status_code, tail.content) == (206, b"deo")
    assert client.get(f"/files/{done}/video.mp4", headers={"range": "bytes=9999-"}).status_code == 416
    head = client.head(f"/files/{done}/video.mp4")
    assert (head.status_code, head.headers["content-length"], head.content) == (200, "5000", b"")
    assert whole.headers["content-disposition"].startswith("inline")
    assert whole.headers["x-content-type-options"] == "nosniff"
    load = client.get(f"/files/{done}/video.mp4?download=1").headers["content-disposition"]
    assert load.startswith("attachment")
    for told in (load, whole.headers["content-disposition"]):  # many are saved in one folder
        assert f'filename="h3-{done}.mp4"' in told


def test_files_need_their_owner_or_the_token(client, backend, done):
    stranger = {"x-owner": "bob"}
    assert client.get(f"/files/{done}/video.mp4", headers=stranger).status_code == 404
    token = backend.file_token(done, owner="ann")
    assert client.get(f"/files/{done}/video.mp4?token={token}", headers=stranger).status_code == 200
    for wrong in ("", "x", token[:-1], token.upper() + "é"):
        answer = client.get(f"/files/{done}/video.mp4", params={"token": wrong}, headers=stranger)
        assert answer.status_code == 404, wrong
    assert client.get(f"/files/{done}/video.mp4", headers={"x-owner": ADMIN}).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/files/{job}/../../jobs.sqlite3",
        "/files/{job}/..%2f..%2fjobs.sqlite3",
        "/files/{job}/%2e%2e/%2e%2e/jobs.sqlite3",
        "/files/{job}/..%5c..%5cjobs.sqlite3",
        "/files/{job}/%2fetc%2fpasswd",
        "/files/{job}/inputs",
        "/files/{job}/output%2fvideo.mp4",
        "/files/{job}/video.mp4%00.png",
        "/files/{job}/VIDEO.MP4",
        "/files/{job}/.env",
        "/files/{job}/audio.wav",
        "/files/../jobs.sqlite3",
        "/files/..%2f{job}/video.mp4",
        "/files/%00/video.mp4",
        "/files/.leaving-{job}/video.mp4",
        "/files/unknown-job/video.mp4",
        "/files//etc/passwd",
        "/files/https:%2f%2fexample.com/video.mp4",
    ],
)
def test_d16_path_tricks_get_404(client, backend, done, path):
    backend.settings.database.with_name("jobs.sqlite3").stat()  # it is there, and not given
    for headers in ({"x-owner": "ann"}, {"x-owner": ADMIN}):
        assert client.get(path.format(job=done), headers=headers).status_code == 404


def test_a_link_in_the_output_folder_is_not_followed(client, backend, done, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (backend.settings.jobs_dir / done / "output" / "audio.wav").symlink_to(secret)
    assert client.get(f"/files/{done}/audio.wav").status_code == 404


# -- /v1/videos ---------------------------------------------------------------------------------------------------


def poll_until(client, job, status):
    deadline = time.monotonic() + 10
    while (body := client.get(f"/v1/videos/{job}").json())["status"] != status:
        assert time.monotonic() < deadline, body
        time.sleep(0.02)
    return body


def test_the_life_of_a_video(client, world):
    world.steps, world.step_s = 6, 0.1
    form = {"prompt": "a boat", "seconds": "5", "size": "224x128", "seed": "7", "fps": "24", "n": "1", "unknown": "x"}
    made = client.post("/v1/videos", data=form, files={"ignored": b""})
    assert made.status_code == 200, made.text
    body = made.json()
    assert (body["object"], body["size"], body["num_frames"]) == ("video", "224x128", 124)
    assert body["status"] in ("queued", "in_progress")
    job = body["id"]
    poll_until(client, job, "in_progress")
    assert client.get(f"/v1/videos/{job}/content").status_code == 404
    seen = set()
    while (now := client.get(f"/v1/videos/{job}").json())["status"] == "in_progress":
        seen.add(now["progress"])
        time.sleep(0.05)
    assert len(seen) > 2
    assert (now["status"], now["progress"], now["error"], now["seed"]) == ("completed", 100, None, 7)
    assert now["duration_s"] == pytest.approx(124 / 24, abs=0.001)
    content = client.get(f"/v1/videos/{job}/content", headers={"range": "bytes=0-1"})
    assert (content.status_code, content.content, content.headers["content-type"]) == (206, b"vi", "video/mp4")
    assert client.delete(f"/v1/videos/{job}").json() == {"id": job, "deleted": True, "object": "video.deleted"}
    assert client.get(f"/v1/videos/{job}").status_code == 404


def test_sglang_json_with_conditions(client, backend, world):
    backend.pause()
    url = "data:image/png;base64," + base64.b64encode(PNG).decode()
    body = {
        "task": "fl2va",
        "prompt": "x",
        "conditions": [{"type": "image", "uri": url, "role": "keyframe", "frame_index": -1}],
        "target": {"short_edge": 768, "aspect_ratio": "auto", "duration_seconds": 7.3},
        "seed": 3,
    }
    # the fakes tell kinds by suffix, which data URLs have none of
    backend._services = backend._intake._services = _png_services(world)
    made = client.post("/v1/videos", json=body)
    assert made.status_code == 200, made.text
    record = backend.history(owner="ann")[0]
    assert record.request.first_frame is None
    assert record.request.last_frame.read_bytes() == PNG
    assert record.request.sampling.num_frames == 175  # 7.3 s is 175.2 frames, and 175 = 17 * 10 + 5
    assert list(backend.settings.uploads_dir.iterdir()) == []


def _png_services(world):
    import dataclasses

    from job_fakes import fake_services

    from backend.types import MediaReport, ReferenceKind

    def look(path, field, keyframe):
        return MediaReport(name=path.name, kind=ReferenceKind.IMAGE, container="PNG", width=640, height=360)

    return dataclasses.replace(fake_services(world), probe_file=look)


def test_uploads_with_the_same_name_and_evil_names(client, backend):
    backend.pause()
    files = [
        ("input_references", ("../../a.png", PNG + b"1", "image/png")),
        ("input_references", ("a.png", PNG + b"2", "image/png")),
    ]
    made = client.post("/v1/videos", data={"prompt": "x"}, files=files)
    assert made.status_code == 200, made.text
    request = backend.history(owner="ann")[0].request
    assert [path.read_bytes()[-1:] for path in (request.first_frame, request.last_frame)] == [b"1", b"2"]
    made = client.post("/v1/videos", data={"prompt": "x", "extra_params": '{"task": "ref2va"}'}, files=files)
    assert len(backend.history(owner="ann")[0].request.references) == 2


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": "x", "seconds": "3"}, "must be 4 to 15 seconds"),
        ({"prompt": "x", "seconds": "NaN"}, "seconds"),
        ({"prompt": "x", "size": "100x100"}, "multiple of 32"),
        ({"prompt": "x", "size": "big"}, "WIDTHxHEIGHT"),
        ({"prompt": "x", "fps": "30"}, "must be 24"),
        ({"prompt": "x", "num_inference_steps": "-1"}, "must be 2 to 200"),
        ({"prompt": "x", "num_frames": "1e99"}, "num_frames"),
        ({"prompt": "x", "extra_params": "[1"}, "JSON object"),
        ({"prompt": "x", "extra_params": "[" * 100_000}, "JSON object"),
        ({"prompt": "x", "lora": '{"name": "a", "path": "/etc/passwd"}'}, "LoRA"),
        ({"prompt": "x", "image_reference": '{"image_url": "https://example.com/a.png"}'}, "fetches no URL"),
        ({"prompt": "x", "image_reference": '{"image_url": "file:///etc/passwd"}'}, "fetches no URL"),
        ({"prompt": "x", "audio_reference": '{"audio_url": "data:audio/wav;base64,!!!"}'}, "base64"),
    ],
)
def test_bad_fields_are_400_with_words_and_no_job(client, backend, fields, words):
    answer = client.post("/v1/videos", data=fields, files={"ignored": b""})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert words in error["message"]
    assert error["type"] == "invalid_request_error"
    assert backend.history(owner=ADMIN) == []


def test_json_paths_and_urls_are_never_opened(client, backend, tmp_path):
    (tmp_path / "a.png").write_bytes(PNG)
    for uri in ("https://example.com/a.png", f"file://{tmp_path}/a.png", f"{tmp_path}/a.png", "//x/y", None, 5):
        body = {"prompt": "x", "conditions": [{"type": "image", "uri": uri, "role": "reference"}]}
        assert client.post("/v1/videos", json=body).status_code == 400
    assert backend.history(owner=ADMIN) == []


def test_nobody_and_strangers(client, backend, done):
    for method, path in (("GET", ""), ("POST", ""), ("GET", f"/{done}"), ("DELETE", f"/{done}")):
        answer = client.request(method, f"/v1/videos{path}", headers={"x-owner": ""})
        bare = client.build_request(method, f"/v1/videos{path}")
        del bare.headers["x-owner"]
        assert client.send(bare).status_code == 401
        assert answer.status_code in (200, 400, 401, 404, 415)
    for method, path in (("GET", f"/{done}"), ("GET", f"/{done}/content"), ("DELETE", f"/{done}")):
        assert client.request(method, f"/v1/videos{path}", headers={"x-owner": "bob"}).status_code == 404
    assert client.get("/v1/videos", headers={"x-owner": "bob"}).json()["data"] == []
    assert client.get(f"/v1/videos/{done}").json()["status"] == "completed"


def test_logins_of_the_page_work_here_and_only_they(backend):
    app = FastAPI()
    for router in routers(backend, login([("ann", "geheim:ü"), ("bob", "b")])):
        app.include_router(router)
    backend.pause()
    backend.submit(request(), owner="user:ann")
    with TestClient(app) as client:

        def seen(name, password):
            code = base64.b64encode(f"{name}:{password}".encode()).decode()
            return client.get("/v1/videos", headers={"authorization": f"Basic {code}"})

        assert len(seen("ann", "geheim:ü").json()["data"]) == 1
        assert seen("bob", "b").json()["data"] == []
        for wrong in (("ann", "b"), ("ann", ""), ("eve", ""), ("", ""), ("*", "")):
            assert seen(*wrong).status_code == 401
        for header in ("", "Basic", "Basic !!!", "Bearer x", "Basic " + base64.b64encode(b"\xff\xfe").decode()):
            assert client.get("/v1/videos", headers={"authorization": header}).status_code == 401


def test_an_open_page_has_an_open_door():
    assert login([])(None) == "api"


def test_without_a_way_to_tell_owners_there_is_no_v1(backend):
    app = FastAPI()
    for router in routers(backend):
        app.include_router(router)
    with TestClient(app) as client:
        assert client.get("/v1/videos").status_code == 404
        assert client.get("/health").status_code == 200


def test_other_sites_pages_may_not_change_anything(client, backend):
    for headers in (
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://testserver.evil.example"},
        {"sec-fetch-site": "cross-site"},
    ):
        answer = client.post("/v1/videos", data={"prompt": "x"}, files={"ignored": b""}, headers=headers)
        assert answer.status_code == 403
    assert backend.history(owner=ADMIN) == []
    ours = client.post("/v1/videos", data={"prompt": "x"}, headers={"origin": "http://testserver"})
    assert ours.status_code == 200


def test_oversized_bodies_are_cut_off(client, backend, monkeypatch):
    monkeypatch.setattr(guards, "MAX_BODY_BYTES", 100_000)

    def endless():
        for _ in range(1000):
            yield b"x" * 1000

    declared = client.post("/v1/videos", content=b"x" * 200_000, headers={"content-type": "application/json"})
    streamed = client.post("/v1/videos", content=endless(), headers={"content-type": "application/json"})
    upload = client.post("/v1/videos", data={"prompt": "x"}, files={"input_reference": b"x" * 200_000})
    lie = client.post("/v1/videos", content=b"{}", headers={"content-length": "9" * 30})
    assert [answer.status_code for answer in (declared, streamed, upload, lie)] == [413] * 4
    many = {f"field{index}": "x" for index in range(200)}
    assert client.post("/v1/videos", data=many, files={"ignored": b""}).status_code == 400
    assert client.post("/v1/videos", content=b"x", headers={"content-type": "text/plain"}).status_code == 415
    assert (
        client.post("/v1/videos", content=b"[" * 90_000, headers={"content-type": "application/json"}).status_code
        == 400
    )
    assert backend.history(owner=ADMIN) == []
    assert not list(backend.settings.uploads_dir.iterdir())


def test_pages_of_the_list(client, backend):
    backend.pause()
    jobs = [backend.submit(request(str(index)), owner="ann") for index in range(5)]
    first = client.get("/v1/videos?limit=2").json()
    assert [item["id"] for item in first["data"]] == jobs[:2:-1]
    assert (first["has_more"], first["first_id"], first["last_id"]) == (True, jobs[4], jobs[3])
    second = client.get(f"/v1/videos?limit=3&after={first['last_id']}").json()
    assert [item["id"] for item in second["data"]] == jobs[2::-1]
    assert second["has_more"] is False
    oldest = client.get("/v1/videos?order=asc&limit=1").json()
    assert oldest["data"][0]["id"] == jobs[0]
    assert client.get("/v1/videos?limit=-1").status_code == 400


@pytest.mark.parametrize(
    ("query", "lines"),
    [
        ("?limit=abc", ["limit=abc: must be a whole number"]),
        ("?limit=1.5", ["limit=1.5: must be a whole number"]),
        ("?limit=", ["limit: must be a whole number"]),
        ("/{job}/events?after=x", ["after=x: must be a whole number"]),
        ("/{job}/events?after=x&wait=y", ["after=x: must be a whole number", "wait=y: must be a number"]),
        ("/{job}/events?after=99999999999999999999", ["after=99999999999999999999: is too large"]),
        ("/{job}/events?after=-99999999999999999999", ["after=-99999999999999999999: is too small"]),
        ("/{job}/events?wait=nan", ["wait=nan: must be a number"]),
        ("?limit=" + "9" * 9000, ["limit=" + "9" * 40 + ": must be a whole number"]),
    ],
)
def test_a_wrong_value_in_the_address_is_400_in_the_one_form_of_errors(client, done, query, lines):
    answer = client.get("/v1/videos" + query.format(job=done))
    assert (answer.status_code, set(answer.json())) == (400, {"error"})
    error = answer.json()["error"]
    assert error["message"].splitlines() == lines
    assert (error["type"], error["param"]) == ("invalid_request_error", lines[0].split("=")[0].split(":")[0])


def test_delete_stops_a_running_job_and_a_failed_job_shows_its_words(client, backend, world):
    world.steps, world.step_s = 100, 0.05
    running, waiting = (backend.submit(request(), owner="ann") for _ in range(2))
    wait_until(lambda: world.rendered)
    for job in (waiting, running):
        assert client.delete(f"/v1/videos/{job}").status_code == 200
    assert backend.history(owner=ADMIN) == []
    world.steps, world.fail_at_step = 3, 2
    broken = backend.submit(request(), owner="ann")
    body = poll_until(client, broken, "failed")
    assert body["error"]["message"] == "rank 0 was killed by SIGKILL"
    assert client.get(f"/v1/videos/{broken}").status_code == 200
    assert client.get(f"/v1/videos/{broken}/content").status_code == 422


def test_prompts_with_markup_come_back_as_json_text(client, backend):
    backend.pause()
    prompt = "<script>alert(1)</script> \" ' \u2028 </json>"
    made = client.post("/v1/videos", json={"prompt": prompt})
    assert made.headers["content-type"] == "application/json"
    assert json.loads(made.text)["prompt"] == prompt
