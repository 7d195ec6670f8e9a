"""The running program from outside: what two people, a stranger and a forger can reach through its port."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from pathlib import Path

import httpx
import pytest
from job_fakes import World, open_backend, request

from backend.api import ADMIN
from backend.process.journal import NAME as PROGRAM_LOG

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A data folder with one finished job of ann and one of a browser without login."""
    folder = tmp_path_factory.mktemp("served") / "data"
    backend = open_backend(folder, World())
    jobs = {}
    for name, owner in (("ann", "user:ann"), ("visitor", "session:visitor")):
        jobs[name] = backend.submit(request(SCRIPT), owner=owner)
        list(backend.events(jobs[name], owner=owner))
    jobs["token"] = backend.file_token(jobs["ann"], owner=ADMIN)
    backend.close()
    (folder / ".env").write_text("HF_TOKEN=hf_secretsecret")
    return folder, jobs


def free_port():
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return trial.getsockname()[1]


@contextlib.contextmanager
def program(data, *arguments, port=None):
    port = port or free_port()
    command = [sys.executable, "app.py", "--port", str(port), "--preset", "tiny-cpu", "--data-dir", str(data)]
    log = data.with_name(f"server-{port}.log")
    with log.open("w") as out:
        process = subprocess.Popen([*command, *arguments], cwd=ROOT, stdout=out, stderr=subprocess.STDOUT)
    try:
        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 40
        while True:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{url}/health", trust_env=False).status_code == 200:
                    break
            time.sleep(0.1)
        yield url, process
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@contextlib.contextmanager
def person(url, name=None):
    """A browser, logged in by the page's form."""
    with httpx.Client(base_url=url, trust_env=False, timeout=20) as client:
        if name:
            assert client.post("/login", data={"username": name, "password": name}).status_code == 200
        yield client


@pytest.fixture(scope="module")
def served(data):
    with program(data[0], "--auth", "ann:ann", "--auth", "bob:bob", "--admin", "ann") as (url, process):
        yield url, process


@pytest.fixture
def bob(served):
    with person(served[0], "bob") as client:
        yield client


FILES = ("/etc/passwd", "{data}/jobs.sqlite3", "{data}/.env", "{data}/logs/program.log", "{root}/app.py",
         "{root}/backend/api.py", "{data}/jobs/{job}/output/video.mp4", "{data}/program.lock")  # fmt: skip
TRICKS = (
    *(f"/gradio_api/file={name}" for name in FILES),
    *(f"/gradio_api/file={{data}}/uploads/..{name.removeprefix('{data}')}" for name in FILES if "{data}" in name),
    *("/gradio_api/file=../../jobs.sqlite3", "/gradio_api/file=..%2f..%2fjobs.sqlite3"),
    *("/gradio_api/file=%2fetc%2fpasswd", "/gradio_api/file=https://example.com"),
    *("/gradio_api/file=HTTP://example.com", "/gradio_api/file=%68ttps://example.com"),
    *("/gradio_api/file=file:///etc/passwd", "/gradio_api/file=//example.com/x", "/gradio_api/file=%00/etc/passwd"),
    *("/file=/etc/passwd", "/gradio_api/file//etc/passwd", "/gradio_api/proxy=https://example.com/"),
    *(f"/{room}/../../../etc/passwd" for room in ("static", "assets", "studio", "files")),
    *(f"/{room}/../../../app.py" for room in ("static", "assets", "studio", "files")),
    *(f"/{room}/..%2f..%2f..%2f..%2fetc%2fpasswd" for room in ("static", "assets", "studio", "svelte")),
    *(f"/{room}/%2e%2e/%2e%2e/app.py" for room in ("static", "assets", "studio")),
    *("/studio/..%5c..%5capp.py", "/studio//etc/passwd", "/static//etc/passwd", "/assets//etc/passwd"),
    *("/files/{job}/video.mp4", "/files/{job}/..%2f..%2fjobs.sqlite3", "/files/{job}/video.mp4?token={token}x"),
    *("/v1/videos/{job}", "/v1/videos/{job}/content", "/v1/videos/..%2f..%2fetc%2fpasswd/content"),
    *("/theme.css/../app.py", "/gradio_api/theme.css/..%2fapp.py", "/.env", "/jobs.sqlite3", "/app.py"),
    *("/gradio_api/vibe-code", "/gradio_api/dev/reload", "/monitoring", "/gradio_api/custom_component/1/client/x/y"),
    *("/gradio_api/stream/x/1/1/playlist.m3u8", "/gradio_api/deep_link?session_hash=x", "/gradio_api/runs"),
)  # fmt: skip


def raw(url, path, method="GET", headers=None, body=None):
    """A request whose path nobody tidies up on the way."""
    parts = urllib.parse.urlsplit(url)
    line = http.client.HTTPConnection(parts.hostname, parts.port, timeout=20)
    try:
        line.request(method, path, body=body, headers=headers or {})
        answer = line.getresponse()
        return answer.status, answer.read()
    finally:
        line.close()


@pytest.mark.parametrize("who", ["nobody", "bob"])
def test_d16_path_tricks_open_nothing(served, data, bob, who):
    folder, jobs = data
    cookie = {} if who == "nobody" else {"cookie": "; ".join(f"{k}={v}" for k, v in bob.cookies.items())}
    secret = (b"root:", b"SQLite format", b"HF_TOKEN", b"argparse", b"job accepted", b"videovideo")
    for trick in TRICKS:
        path = trick.format(data=folder, root=ROOT, job=jobs["ann"], token=jobs["token"])
        status, body = raw(served[0], path, headers=cookie)
        assert status in (400, 401, 403, 404, 405), (path, status)
        assert not any(word in body for word in secret), path


def test_the_owner_and_the_link_open_a_result(served, data):
    _, jobs = data
    assert (
        httpx.get(f"{served[0]}/files/{jobs['ann']}/video.mp4?token={jobs['token']}", trust_env=False).status_code
        == 200
    )
    with httpx.Client(base_url=served[0], trust_env=False, auth=("ann", "ann")) as ann:
        assert ann.get(f"/v1/videos/{jobs['ann']}/content").status_code == 200
        assert {item["id"] for item in ann.get("/v1/videos").json()["data"]} >= {jobs["ann"]}
    with httpx.Client(base_url=served[0], trust_env=False, auth=("bob", "bob")) as bob:
        assert bob.get("/v1/videos").json()["data"] == []
        for method in ("GET", "DELETE"):
            assert bob.request(method, f"/v1/videos/{jobs['ann']}").status_code == 404


def press(client, elem, event_data, session="forged", tab="tab"):
    """What a browser sends when a button of the HTML panel `elem` is pressed; the text of the answer."""
    config = client.get("/config").json()
    ids = {item["props"].get("elem_id"): item["id"] for item in config["components"]}
    states = {item["id"] for item in config["components"] if item["type"] == "browserstate"}
    (call,) = [item for item in config["dependencies"] if (ids[elem], "click") in map(tuple, item["targets"])]
    values = [session if each in states else None for each in call["inputs"]]
    body = {
        "data": values,
        "fn_index": call["id"],
        "session_hash": tab,
        "event_data": event_data,
        "trigger_id": ids[elem],
    }
    assert client.post("/gradio_api/queue/join", json=body).status_code == 200
    heard = ""
    with client.stream("GET", "/gradio_api/queue/data", params={"session_hash": tab}) as stream:
        for line in stream.iter_lines():
            heard += line
            if "process_completed" in line or "close_stream" in line:
                return heard
    return heard


def test_a_forged_press_reaches_no_other_persons_job(served, data, bob):
    _, jobs = data
    for action in ("delete", "open", "settings", "retry", "reseed", "favourite", "cancel"):
        heard = press(bob, "gallery", {"action": action, "job": jobs["ann"]}, session="visitor", tab=f"b{action}")
        assert "alert(1)" not in heard, action
        assert jobs["token"] not in heard
    heard = press(bob, "queue", {"action": "pause"}, tab="bpause")
    assert "only an administrator" in heard
    with person(served[0], "ann") as ann:
        heard = press(ann, "gallery", {"action": "open", "job": jobs["ann"]}, tab="aopen")
        assert jobs["token"] in heard
        assert SCRIPT not in heard  # shown as text
        everybody = press(ann, "gallery", {"action": "open", "job": jobs["visitor"]}, tab="aopen2")
        assert "/video.mp4" in everybody  # the administrator sees all
    assert json.loads((httpx.get(f"{served[0]}/ready", trust_env=False)).text)["paused"] is False


def test_a_stranger_who_knows_a_tab_gets_nothing_of_it(served, data, bob):
    """Without a login nothing of Gradio answers; with another's, a tab's stream holds only what that tab asked for."""
    assert httpx.get(f"{served[0]}/gradio_api/queue/data?session_hash=aopen", trust_env=False).status_code == 401
    for path in ("/config", "/gradio_api/info", "/gradio_api/upload"):
        method = "POST" if path.endswith("upload") else "GET"
        assert httpx.request(method, served[0] + path, trust_env=False).status_code in (401, 405)


def test_no_handler_of_the_page_is_a_public_call(bob):
    info = bob.get("/gradio_api/info").json()
    assert all(not name.startswith("/_") for name in info["named_endpoints"])
    assert info["unnamed_endpoints"] == {}
    for api_name in ("generate", "act", "watch", "tick", "lambda"):
        called = bob.post(f"/gradio_api/call/{api_name}", json={"data": []})
        if called.status_code == 200:  # taken, and answered with an error
            answer = bob.get(f"/gradio_api/call/{api_name}/{called.json()['event_id']}").text
            print(api_name, answer)
            assert answer.startswith("event: error")


def test_uploads_get_folders_nobody_can_guess_and_forged_ones_stay_in_them(served, data, bob):
    folder = data[0] / "uploads"
    sent = [bob.post("/gradio_api/upload", files={"files": ("../../../evil.png", b"same")}).json()[0] for _ in range(2)]
    assert sent[0] != sent[1]
    for path in map(Path, sent):
        assert path.parent.parent == folder
        assert path.read_bytes() == b"same"
        assert len(path.parent.name) == 24
        assert bob.get(f"/gradio_api/file={path}").content == b"same"
        assert httpx.get(f"{served[0]}/gradio_api/file={path}", trust_env=False).status_code == 401
    assert not (data[0].parent / "evil.png").exists()
    page = bob.post("/gradio_api/upload", files={"files": ("a.html", SCRIPT.encode(), "text/html")}).json()[0]
    answer = bob.get(f"/gradio_api/file={page}")
    assert answer.headers["content-disposition"].startswith("attachment")


def test_other_sites_pages_change_nothing(served, bob):
    evil = ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}, {"origin": "null"})
    for headers in evil:
        for path in ("/gradio_api/queue/join", "/gradio_api/upload", "/gradio_api/cancel", "/login", "/v1/videos"):
            assert bob.post(path, headers=headers, json={}).status_code == 403, (path, headers)
    with person(served[0]) as anybody:
        ours = anybody.post("/login", data={"username": "bob", "password": "bob"}, headers={"origin": served[0]})
        assert ours.status_code == 200


def test_oversized_bodies_headers_and_slow_ones_are_cut_off(served, bob):
    cookie = "; ".join(f"{k}={v}" for k, v in bob.cookies.items())
    for path, length in (("/gradio_api/upload", 2**40), ("/gradio_api/queue/join", 2**30), ("/v1/videos", 2**40)):
        status, body = raw(served[0], path, "POST", {"content-length": str(length), "cookie": cookie})
        assert status == 413, path
        assert b"MiB" in body

    def endless():
        for _ in range(12):
            yield b"x" * 2**20

    assert (
        bob.post("/gradio_api/queue/join", content=endless(), headers={"content-type": "application/json"}).status_code
        == 413
    )
    assert raw(served[0], "/health", headers={f"x-{n}": "y" * 1000 for n in range(40)})[0] == 431
    parts = urllib.parse.urlsplit(served[0])
    with socket.create_connection((parts.hostname, parts.port), timeout=20) as bomb:
        with contextlib.suppress(OSError):
            bomb.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n" + b"x-a: " + b"y" * 2_000_000)
        answer = b""
        with contextlib.suppress(OSError):
            answer = bomb.recv(100)
        assert not answer or b" 400 " in answer or b" 431 " in answer
    assert httpx.get(f"{served[0]}/health", trust_env=False).status_code == 200


def test_urls_are_never_fetched(served, bob):
    """Whatever names an address, nobody calls there."""
    calls = []
    with socket.create_server(("127.0.0.1", 0)) as trap:
        port = trap.getsockname()[1]

        def listen():
            with contextlib.suppress(OSError):
                while True:
                    calls.append(trap.accept())

        threading.Thread(target=listen, daemon=True).start()
        for host in ("127.0.0.1", "localhost", f"{socket.gethostname()}"):
            url = f"http://{host}:{port}/a.png"
            for path in (
                f"/gradio_api/file={url}",
                f"/gradio_api/proxy={url}",
                f"/gradio_api/file=%68ttp://{host}:{port}/",
            ):
                assert raw(served[0], path)[0] in (401, 403, 404)
            drop = {"path": url, "url": url, "orig_name": "a.png", "meta": {"_type": "gradio.FileData"}}
            heard = forge_drop(bob, drop)
            assert '"success": true' not in heard and '"success":true' not in heard
            for body in (
                {"prompt": "x", "image_reference": {"image_url": url}},
                {"prompt": "x", "conditions": [{"type": "image", "uri": url, "role": "reference"}]},
            ):
                assert bob.post("/v1/videos", json=body, auth=("bob", "bob")).status_code == 400
        time.sleep(0.5)
    assert calls == []


def forge_drop(client, value, tab="drop"):
    """A file component told of an upload that never was."""
    config = client.get("/config").json()
    (call, *_) = [item for item in config["dependencies"] if any(target[1] == "upload" for target in item["targets"])]
    body = {"data": [value, *[None] * (len(call["inputs"]) - 1)], "fn_index": call["id"], "session_hash": tab}
    joined = client.post("/gradio_api/queue/join", json=body)
    if joined.status_code != 200:
        return joined.text
    with client.stream("GET", "/gradio_api/queue/data", params={"session_hash": tab}) as stream:
        return next((line for line in stream.iter_lines() if "process_completed" in line), "")


@pytest.mark.parametrize("stolen", ["{data}/jobs.sqlite3", "/etc/passwd", "{root}/app.py", "{data}/uploads/../.env"])
def test_a_forged_upload_names_no_other_file(served, data, bob, stolen):
    path = stolen.format(data=data[0], root=ROOT)
    heard = forge_drop(bob, {"path": path, "meta": {"_type": "gradio.FileData"}}, tab=f"steal{abs(hash(stolen))}")
    assert '"success":true' not in heard.replace(" ", "")


def test_the_programs_log_is_lines_of_json_without_secrets(served, data):
    raw(served[0], "/gradio_api/vibe-code?token=hf_abcdefghijkl")
    lines = (data[0] / "logs" / PROGRAM_LOG).read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert {"job accepted", "job started", "job ended", "request refused"} <= {line["message"] for line in found}
    assert all({"at", "level", "logger"} <= set(line) for line in found)
    assert "hf_abcdefghijkl" not in "".join(lines)


def test_doctor_tells_what_ready_tells(served, data):
    done = subprocess.run(
        [sys.executable, "app.py", "doctor", "--json", "--preset", "tiny-cpu", "--data-dir", str(data[0])],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    told, ready = json.loads(done.stdout)["running"], httpx.get(f"{served[0]}/ready", trust_env=False).json()
    assert told == {"url": served[0], "pid": served[1].pid, **ready}


def test_after_kill_9_the_same_port_and_folder_serve_again_at_once(tmp_path, data, capsys):
    import shutil

    folder = tmp_path / "data"
    shutil.copytree(data[0], folder, ignore=shutil.ignore_patterns("run", "program.lock"))
    with contextlib.suppress(AssertionError), program(folder) as (url, process):
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    began = time.monotonic()
    with program(folder, port=int(url.rpartition(":")[2])) as (again, _):
        took = time.monotonic() - began
        assert again == url
        assert httpx.get(f"{again}/ready", trust_env=False).json()["state"] == "ready"
    with capsys.disabled():
        print(f"\nkill -9 of the program: the same port answers again after {took:.1f} s")


def test_sigterm_twice_and_while_a_model_loads_ends_in_time(tmp_path):
    folder = tmp_path / "data"
    with contextlib.suppress(AssertionError), program(folder) as (url, process):
        job = httpx.post(f"{url}/v1/videos", json={"prompt": "x", "num_inference_steps": 6}, trust_env=False).json()
        assert job["status"] in ("queued", "in_progress"), job
        time.sleep(0.3)  # preparing, building or loading
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) in (0, -signal.SIGTERM)
        assert time.monotonic() - began < 15
    backend = open_backend(folder, World())
    try:
        assert backend.job(job["id"], owner=ADMIN).state in ("interrupted", "queued", "running", "succeeded")
    finally:
        backend.close()
