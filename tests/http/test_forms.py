"""Bodies of `/v1/videos` with values of the wrong kind: refused by name, and what is unknown is ignored."""

import base64
import io
import json
from types import SimpleNamespace

import pytest
from fastapi import FastAPI
from starlette.datastructures import FormData, Headers, UploadFile
from starlette.testclient import TestClient

from backend.errors import InvalidRequest
from backend.http.forms import asked_by_json, request_from_form, request_from_json
from backend.http.videos import videos_router

PNG = b"\x89PNG\r\n\x1a\n" + b"pixels" * 10
URI = "data:image/png;base64," + base64.b64encode(PNG).decode()


def refused(read, body, folder):
    with pytest.raises(InvalidRequest) as error:
        read(body, folder)
    problem = error.value.problems[0]
    json.dumps(str(error.value), ensure_ascii=False).encode()  # it can be sent
    assert problem.rule
    return problem


WRONG_IN_JSON = [
    ("prompt", None),
    ("prompt", 5),
    ("prompt", ["a"]),
    ("prompt", {"text": "a"}),
    ("prompt", True),
    ("seed", -3),
    ("seed", 1.5),
    ("seed", True),
    ("seed", "seven"),
    ("seed", [1]),
    ("seed", 10**400),
    ("width", -(10**400)),
    ("width", "wide"),
    ("width", 1344.5),
    ("num_frames", 124.5),
    ("num_frames", {}),
    ("num_inference_steps", 8.5),
    ("num_inference_steps", False),
    ("flow_shift", "high"),
    ("fps", [24]),
    ("seconds", {}),
    ("size", 1344),
    ("size", ["1344x768"]),
    ("aspect_ratio", 1.78),
    ("aspect_ratio", ["16:9"]),
    ("task", "movie"),
    ("task", 3),
    ("target", "wide"),
    ("extra_params", [1]),
    ("conditions", "x"),
    ("conditions", 7),
    ("conditions", [5]),
    ("image_reference", "/etc/passwd"),
    ("image_reference", 4),
    ("input_reference", "/etc/passwd"),
    ("input_references", ["a.png"]),
    ("source_video", "a.mp4"),
]


@pytest.mark.parametrize(("field", "value"), WRONG_IN_JSON)
def test_a_known_field_of_the_wrong_kind_is_refused_by_name(tmp_path, field, value):
    problem = refused(request_from_json, {"prompt": "x", "size": "1344x768", field: value}, tmp_path)
    assert problem.field.startswith(field)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("field", ["input_reference", "input_references", "source_video", "video_noise_mask"])
@pytest.mark.parametrize("text", ["/etc/passwd", "@a.png", "https://example.com/a.png"])
def test_text_where_a_file_belongs_is_refused(tmp_path, field, text):
    problem = refused(request_from_form, FormData([("prompt", "x"), (field, text)]), tmp_path)
    assert problem.field == field and problem.way_out


def test_a_file_where_json_belongs_is_refused(tmp_path):
    upload = UploadFile(io.BytesIO(PNG), filename="a.png", headers=Headers())
    problem = refused(request_from_form, FormData([("prompt", "x"), ("image_reference", upload)]), tmp_path)
    assert problem.field == "image_reference" and "input_references" in problem.way_out


@pytest.mark.parametrize("field", ["seed", "prompt"])
def test_a_file_where_a_value_belongs_is_refused(tmp_path, field):
    upload = UploadFile(io.BytesIO(b"7"), filename="a.txt", headers=Headers())
    problem = refused(request_from_form, FormData([("prompt", "x"), (field, upload)]), tmp_path)
    assert problem.field == field


@pytest.mark.parametrize(("text", "seed"), [("7", 7), ("-1", None), ("", None), (str(2**63 - 1), 2**63 - 1)])
def test_seeds_of_forms_are_exact_and_minus_one_is_random(tmp_path, text, seed):
    assert request_from_form(FormData([("prompt", "x"), ("seed", text)]), tmp_path).sampling.seed == seed


@pytest.mark.parametrize("seed", ["-3", "-2", "1.5", "1e3", "nan", "0x10", str(2**64)])
def test_seeds_that_are_none_are_refused(tmp_path, seed):
    assert refused(request_from_form, FormData([("prompt", "x"), ("seed", seed)]), tmp_path).field == "seed"


def test_what_is_unknown_or_left_empty_is_ignored(tmp_path):
    fields = [("prompt", "a boat"), ("negative_prompt", "rain"), ("guidance_scale", "{"), ("n", "1"), ("seed", "")]
    upload = UploadFile(io.BytesIO(b""), filename="x", headers=Headers())
    form = FormData([*fields, ("input_reference", ""), ("whatever", upload)])
    made = request_from_form(form, tmp_path)
    assert (made.prompt, made.sampling.seed, made.first_frame, made.references) == ("a boat", None, None, ())
    body = {"prompt": "a boat", "seed": None, "nonsense": {"deep": [1]}, "width": None, "conditions": []}
    assert request_from_json(body, tmp_path).prompt == "a boat"


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "a\ud800"},
        {"prompt": "x", "size": "\udfff"},
        {"prompt": "x", "unknown": ["\ud800"]},
        {"prompt": "x", "\ud800": 1},
        {"prompt": "x", "extra_params": '{"task": "\\ud800"}'},
    ],
)
def test_half_a_character_is_refused(tmp_path, body):
    assert "Unicode" in refused(request_from_json, body, tmp_path).rule


def test_conditions_are_what_their_role_says(tmp_path):
    picture = {"type": "image", "uri": URI}
    made = request_from_json({"prompt": "x", "conditions": [{**picture, "role": "reference"}]}, tmp_path)
    assert len(made.references) == 1 and made.first_frame is None
    last = request_from_json(
        {"prompt": "x", "conditions": [{**picture, "role": "keyframe", "frame_index": -1}]}, tmp_path
    )
    assert last.last_frame is not None and last.first_frame is None and last.references == ()
    for wrong in ({"role": "extra"}, {"role": "keyframe", "frame_index": 5}, {"role": "keyframe", "frame_index": True}):
        refused(request_from_json, {"prompt": "x", "conditions": [{**picture, **wrong}]}, tmp_path)
    mixed = [{**picture, "role": "keyframe"}, {**picture, "role": "reference"}]
    assert refused(request_from_json, {"prompt": "x", "conditions": mixed}, tmp_path).field == "conditions"


MALFORMED = [
    ("multipart/form-data", b"x"),
    ("multipart/form-data; boundary=a", b"garbage"),
    ("multipart/form-data; boundary=a", b"--a\r\nContent-Disposition: form-data\r\n\r\nx\r\n--a--"),
    ("multipart/form-data; boundary=a", b"--a\r\n: :\r\n\r\n"),
    ("multipart/form-data; boundary=" + "b" * 300, b"--x"),
    ("application/json", b"\xff\xfe"),
    ("application/json", b'{"prompt": "a\\ud800"}'),
    ("text/plain", b"x"),
]


@pytest.mark.parametrize(("kind", "body"), MALFORMED)
def test_malformed_bodies_are_answered_in_the_one_form_of_errors(tmp_path, kind, body):
    app = FastAPI()
    app.include_router(videos_router(SimpleNamespace(settings=SimpleNamespace(uploads_dir=tmp_path)), lambda _: "ann"))
    with TestClient(app, raise_server_exceptions=False) as client:
        answer = client.post("/v1/videos", content=body, headers={"content-type": kind})
    error = answer.json()["error"]
    assert answer.status_code in (400, 415) and error["code"] == answer.status_code
    assert error["message"] and error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"start_time_seconds": [1.0]}, "one for each file, 2 here"),
        ({"start_time_seconds": "x"}, "must be a number"),
        ({"length_seconds": [None, True]}, "must be a number"),
        ({"quality": 3}, "must be text"),
        ({"preset": []}, "must be text"),
    ],
)
def test_trims_and_presets_that_are_none_are_refused(tmp_path, body, told):
    url = "data:video/mp4;base64,AAAA"
    conditions = [{"type": "video", "uri": url, "role": "reference"}] * 2
    with pytest.raises(InvalidRequest, match=told):
        asked_by_json({"prompt": "x", "conditions": conditions, **body}, tmp_path)


def test_the_released_body_names_trims_at_its_files(tmp_path):
    url = "data:video/mp4;base64,AAAA"
    conditions = [
        {"type": "video", "uri": url, "role": "reference", "start_time_seconds": 1.25},
        {"type": "video", "uri": url, "role": "reference"},
    ]
    asked = asked_by_json({"prompt": "x", "conditions": conditions, "quality": "lossless"}, tmp_path)
    assert [item.start_s for item in asked.request.references] == [1.25, 0.0]
    assert (asked.quality, asked.preset) == ("standard", None)
