import pytest
from starlette.exceptions import HTTPException

from stillbox.serving.forms import read_file

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
