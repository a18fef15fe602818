"""Bodies of another form than a path takes: the error names both."""

import base64
import gzip
import json
import zlib

import pytest

from tests.serving.conftest import check_refused, encoded

PATHS = {
    "/v1/models/owls:predict": '{"instances": [{"b64": BASE64_OF_A_FILE}]}',
    "/v2/models/owls/infer": '"datatype": "BYTES", "shape": [1], "data": [BASE64_OF_A_FILE]',
}
B64 = base64.b64encode(encoded())
INSTANCES = {"instances": [{"b64": B64.decode()}]}
TENSOR = {"name": "input_tensor", "datatype": "BYTES", "shape": [1], "data": [B64.decode()]}
JSON = {
    "/v1/models/owls:predict": json.dumps(INSTANCES).encode(),
    "/v2/models/owls/infer": json.dumps({"inputs": [TENSOR]}).encode(),
}
FORM = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\na\r\n--x--\r\n'
OTHERS = {
    "JPEG": (encoded(kind="JPEG"), "but an image; POST /detect takes an image"),
    "PNG": (encoded(), "but an image"),
    "WebP": (encoded(kind="WEBP"), "but an image"),
    "GIF": (encoded(kind="GIF"), "but an image"),
    "BMP": (encoded(kind="BMP"), "but an image"),
    "form": (FORM, "but a form of several parts"),
    "fields": (b"instances=%5B%5D&b64=abc", "but a form of fields"),
    "fields that begin like null": (b"nullable=1", "but a form of fields"),
    "str(dict)": (str(INSTANCES).encode(), "the text of a Python object"),
    "str(list)": (str([INSTANCES]).encode(), "the text of a Python object"),
    "str(bytes)": (str(JSON["/v1/models/owls:predict"]).encode(), "the text of a Python object"),
    "base64": (B64, "but base64 alone"),
    "lines of base64": (base64.encodebytes(encoded()), "but base64 alone"),
    "data URL": (b"data:image/png;base64," + B64, "but a data: URL"),
    "text": (b"owl.jpg, hawk.jpg", "but other data"),
    "TIFF": (b"II*\0" + bytes(40), "but other data"),
    "nothing": (b"", "but empty"),
    "space": (b" \r\n", "but empty"),
    "UTF-16": (json.dumps(INSTANCES).encode("utf-16"), "but other data"),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", OTHERS)
def test_a_body_that_is_no_json_is_named_with_the_form_that_is_taken(client, path, kind):
    body, taken = OTHERS[kind]
    answer = client().post(path, content=body)
    check_refused(answer, "the body is no JSON")
    assert taken in answer.json()["error"]
    assert PATHS[path] in answer.json()["error"]


@pytest.mark.parametrize("path", PATHS)
def test_json_is_taken_in_any_usual_form(client, path):
    for body in JSON[path], b"\xef\xbb\xbf" + JSON[path], b" \r\n\t" + JSON[path]:
        assert client().post(path, content=body).status_code == 200
    for other in b"[1]", b'"text"', b"17", b"null", b"true":
        check_refused(client().post(path, content=other), "the body is no object")


@pytest.mark.parametrize(
    ("body", "taken"),
    [
        (JSON["/v1/models/owls:predict"], "JSON"),
        (b" [[1, 2], [3, 4]]", "JSON"),
        (B64, "base64 alone"),
        (base64.encodebytes(encoded()), "base64 alone"),
        (base64.urlsafe_b64encode(encoded(kind="JPEG")), "base64 alone"),
        (b"data:image/jpeg;base64," + B64, "a data: URL"),
        (str(INSTANCES).encode(), "the text of a Python object"),
        (str(encoded()).encode(), "the text of a Python object"),
        (FORM, "a form of several parts"),
        (b"image=" + B64, "a form of fields"),
    ],
)
def test_text_at_the_path_of_images_is_named_with_the_paths_of_json(client, body, taken):
    answer = client().post("/detect", content=body, headers={"Content-Type": "image/jpeg"})
    check_refused(answer, f"no image but {taken}")
    assert "curl --data-binary @FILE" in answer.json()["error"]
    assert ":predict" in answer.json()["error"]


@pytest.mark.parametrize("path", [*PATHS, "/detect"])
@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress], ids=["gzip", "deflate"])
@pytest.mark.parametrize("says", [True, False], ids=["header", "no header"])
def test_a_compressed_body_is_refused_by_name(client, path, compress, says):
    name = "gzip" if compress is gzip.compress else "deflate"
    headers = {"Content-Encoding": name} if says else {}
    body = compress(JSON.get(path, encoded()))
    answer = client().post(path, content=body, headers=headers)
    check_refused(answer, "the body is compressed", 415)
    assert name in answer.json()["error"]
    assert answer.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("level", range(10))
def test_deflate_of_each_level_is_recognised(client, level):
    body = zlib.compress(JSON["/v1/models/owls:predict"], level)
    check_refused(client().post("/v1/models/owls:predict", content=body), "deflate", 415)


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip", "GZIP", "\x1b[31m"])
def test_other_codings_are_refused_before_the_body_arrives(client, backend, coding):
    headers = {"Content-Encoding": coding, "Content-Length": "9"}
    answer = client().post("/detect", content=b"x" * 9, headers=headers)
    check_refused(answer, "Content-Encoding", 415)
    assert "\x1b" not in answer.text
    assert backend.runs == []


def test_an_uncompressed_body_may_say_so(client):
    headers = {"Content-Encoding": "identity"}
    assert client().post("/detect", content=encoded(), headers=headers).status_code == 200


def test_a_binary_tensor_without_the_length_of_its_json_is_named(client):
    body = JSON["/v2/models/owls/infer"] + b"\0\1\2N"
    check_refused(client().post("/v2/models/owls/infer", content=body), "Inference-Header-Content")
