"""`POST /detect`: forms, files, options and pictures."""

import io

import numpy as np
import pytest
from PIL import Image
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient

from stillbox.predicting.predictor import Predictor
from stillbox.serving.app import build_app
from stillbox.serving.bodies import read_file
from stillbox.serving.settings import ServeSettings
from tests.serving.conftest import LOOPBACK, check_refused, encoded
from tests.serving.fake import FakeBackend

KIND = "multipart/form-data; boundary=a"
FILE = b'Content-Disposition: form-data; name="f"; filename="owl.jpg"\r\n'
FIELD = b'Content-Disposition: form-data; name="f"\r\n\r\nx'


def form(*parts, boundary=b"a"):
    between = b"\r\n--" + boundary + b"\r\n"
    return between[2:] + between.join(parts) + b"\r\n--" + boundary + b"--\r\n"


@pytest.mark.parametrize(
    ("body", "name", "content"),
    [
        (form(FILE + b"\r\n\xff\xd8"), "owl.jpg", b"\xff\xd8"),
        (form(FIELD, FILE + b"\r\n", FIELD), "owl.jpg", b""),
        (b"before it\r\n" + form(FILE + b"\r\n--\r\n--b\r\n\r\n"), "owl.jpg", b"--\r\n--b\r\n\r\n"),
        (
            form(b"X: y\r\ncontent-disposition:form-data;filename=\xc3\xa9;name=f\r\n\r\n1"),
            "é",
            b"1",
        ),
        (form(FILE.replace(b"owl", b"\xff") + b"\r\n1"), "\ufffd.jpg", b"1"),
    ],
)
def test_the_file_of_a_form(body, name, content):
    assert read_file(KIND, body) == (name, content)


def test_a_quoted_boundary():
    assert read_file('multipart/form-data; boundary="a b"', form(FILE + b"\r\n1", boundary=b"a b"))


SIZE = 100_000


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (KIND, b""),
        (KIND, b"--a\r\n"),
        (KIND, b"--a--\r\n"),
        (KIND, b"-" * SIZE),
        (KIND, form(FIELD)),
        (KIND, form(FILE + b"\r\n1", FILE + b"\r\n1")),
        (KIND, form(*[FIELD] * 9)),
        (KIND, form(FILE + b"X: y\r\n" * SIZE + b"\r\n1")),
        (KIND, form(FILE + b"X" * SIZE)),
        (KIND, form(FILE.replace(b"owl", b"o" * SIZE) + b"\r\n1")),
        (
            KIND,
            form(b'Content-Disposition: form-data; filename="' + b";" * 3000 + b"\r\n\r\n")[:-4],
        ),
        (KIND, b"--a\r\n" * SIZE),
        (KIND, b"x\r\n" * SIZE),
        ("multipart/form-data", form(FILE + b"\r\n1")),
        ("multipart/form-data; boundary=", form(FILE + b"\r\n1")),
        ("multipart/form-data; boundary=" + "a" * 71, form(FILE + b"\r\n1", boundary=b"a" * 71)),
        ('multipart/form-data; boundary="' + ";" * SIZE, form(FILE + b"\r\n1")),
    ],
)
def test_other_forms_are_refused(kind, body):
    with pytest.raises(HTTPException) as refused:
        read_file(kind, body)
    assert refused.value.status_code == 400
    assert len(refused.value.detail) < 100


RED = encoded(204, (40, 20))


@pytest.mark.parametrize("kind", [None, "image/png", "application/x-www-form-urlencoded"])
def test_a_file_as_the_body(client, kind):
    headers = {"Content-Type": kind} if kind else {}
    answer = client().post("/detect", content=RED, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.json() == {
        "image": "",
        "height": 20,
        "width": 40,
        "detections": [
            {
                "class_id": 1,
                "class": "owl",
                "score": 0.8,
                "box": {"ymin": 0.0, "xmin": 0.0, "ymax": 10.0, "xmax": 20.0},
            }
        ],
    }


def test_a_file_in_a_form(client):
    answer = client().post("/detect", files={"anything": ("owl.png", RED, "image/png")})
    assert answer.json()["image"] == "owl.png"
    assert len(answer.json()["detections"]) == 1


def test_the_score_is_chosen(client):
    http = client()
    detections = http.post("/detect?min_score=0.05", content=RED).json()["detections"]
    assert [detection["class"] for detection in detections] == ["owl", "hawk"]
    assert http.post("/detect?min_score=0.9", content=RED).json()["detections"] == []
    strict = client(min_score=0.85)
    assert strict.post("/detect", content=RED).json()["detections"] == []


def test_an_object_has_one_class_unless_the_request_or_the_server_says_all(client, backend):
    backend.doubts = True

    def classes(http, query=""):
        answer = http.post(f"/detect?min_score=0.3{query}", content=RED)
        return [detection["class"] for detection in answer.json()["detections"]]

    http = client()
    assert classes(http) == ["owl"]
    assert classes(http, "&classes_per_object=all") == ["owl", "hawk"]
    assert classes(http, "&iou=1") == ["owl", "hawk"]
    assert classes(client(classes_per_object="all")) == ["owl", "hawk"]
    assert classes(client(iou=1.0)) == ["owl", "hawk"]


@pytest.mark.parametrize("kind", ["png", "jpeg"])
def test_a_picture(client, kind):
    answer = client().post(f"/detect?format={kind}", content=encoded(204, (500, 300)))
    assert answer.headers["content-type"] == f"image/{kind}"
    picture = np.asarray(Image.open(io.BytesIO(answer.content)).convert("RGB"))
    assert picture.shape == (300, 500, 3)
    # The box ends at half the height: its lower edge is there, and nothing is drawn below.
    assert np.abs(picture[148, 100:200].astype(int) - (204, 7, 9)).max() > 20
    assert np.abs(picture[200, 100:200].astype(int) - (204, 7, 9)).max() < 9


def test_the_exif_orientation_is_applied(client):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    answer = client().post("/detect", content=encoded(204, (40, 20), "JPEG", exif=exif)).json()
    assert (answer["height"], answer["width"]) == (40, 20)


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("format=gif", "there is no 'gif'"),
        ("min_score=2", "a number in 0..1"),
        ("min_score=nan", "a number in 0..1"),
        ("min_score=", "a number in 0..1"),
        ("score=0.5", "there is no parameter 'score'"),
        ("classes_per_object=2", "classes_per_object: there is no '2'"),
        ("iou=2", "iou is a number in 0..1"),
    ],
)
def test_invalid_queries_are_refused(client, query, error):
    check_refused(client().post(f"/detect?{query}", content=RED), error)


@pytest.mark.parametrize(
    "sent",
    [
        {"content": b""},
        {"content": b"GIF89a"},
        {"content": RED[:45]},
        {"data": {"image": "no file"}, "files": {}},
        {"content": b"--x", "headers": {"Content-Type": "multipart/form-data; boundary=x"}},
        {"content": b"--x", "headers": {"Content-Type": "multipart/form-data"}},
        {"files": [("a", RED), ("b", RED)]},
    ],
)
def test_files_that_are_no_images_are_refused(client, sent):
    check_refused(client().post("/detect", **sent))


def test_predictions_that_are_not_finite_are_a_fault_of_the_server(client, monkeypatch):
    started, detect = client(), FakeBackend._found
    monkeypatch.setattr(
        FakeBackend, "_found", lambda self, image: detect(self, image)._replace(finite=False)
    )
    check_refused(started.post("/detect", content=RED), "not finite", 500)


def test_a_real_model(small_backend):
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (70, 90, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    predictor = Predictor(small_backend)
    wanted = predictor.predict(image, min_score=0).to_dict()["detections"]
    assert wanted
    app = build_app(predictor, ServeSettings(batch_sizes=(2,)))
    with TestClient(app, base_url=LOOPBACK) as client:
        answer = client.post("/detect?min_score=0", content=buffer.getvalue()).json()
    assert answer["detections"] == wanted
