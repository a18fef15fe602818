"""What a body is that a path does not take, and what the path takes."""

import re
from collections.abc import Mapping

from stillbox.serving.bodies import bad_request, http_error

TENSORFLOW_SERVING_FORM = '{"instances": [{"b64": BASE64_OF_A_FILE}]}'
OPEN_INFERENCE_FORM = (
    '{"inputs": [{"name": "input_tensor", "datatype": "BYTES", "shape": [1], '
    '"data": [BASE64_OF_A_FILE]}]}'
)
_JSON = re.compile(rb'[{["]|-?[0-9]|(true|false|null)\b')
_IMAGE = re.compile(rb"\xff\xd8\xff|\x89PNG|GIF8|RIFF|BM")
_COMPRESSED = re.compile(rb"(?P<gzip>\x1f\x8b)|(?P<deflate>x[\x01\x5e\x9c\xda])|(?P<zstd>\(\xb5/)")
_KINDS = (
    (_IMAGE, "an image"),
    (re.compile(rb"--[^\r\n]{1,70}\r?\n"), "a form of several parts (multipart/form-data)"),
    (re.compile(rb"[\[{(\s]*b?'"), "the text of a Python object, which json.dumps writes as JSON"),
    (re.compile(rb"data:[\w/+.-]{1,64};base64,"), "a data: URL"),
    (re.compile(rb"[\w.%+\[\]-]{1,64}="), "a form of fields (application/x-www-form-urlencoded)"),
    (re.compile(rb"[\w+/-]{16}[\w+/=\s-]*\Z", re.ASCII), "base64 alone"),
)
_START = 1024


def refuse_compressed(headers: Mapping[str, str]) -> None:
    """Checks the header of a body that has not arrived.

    Raises:
        HTTPException: 415, it is compressed.
    """
    coding = headers.get("content-encoding", "").strip().lower()
    if coding not in ("", "identity"):
        raise _compressed(f"Content-Encoding {coding[:40]!a}")


def refuse_other_than_json(body: bytes, form: str) -> None:
    """Checks the first bytes of a body of JSON; `form` is what the path takes.

    Raises:
        HTTPException: 400, it is no JSON; 415, it is compressed.
    """
    start = _start_of(body)
    kind = _kind_of(start)
    if kind is not None or not _JSON.match(start):
        content = kind or ("other data" if start else "empty")
        other = "; POST /detect takes an image as it is" if kind and start else ""
        raise bad_request(f"the body is no JSON but {content}{other}; this path takes {form}")


def refuse_other_than_image(body: bytes) -> None:
    """Checks the first bytes of a body that is an image file; unknown ones are left to decoders.

    Raises:
        HTTPException: 400, it is text or a form; 415, it is compressed.
    """
    start = _start_of(body)
    if not _IMAGE.match(start):
        kind = _kind_of(start) or ("JSON" if _JSON.match(start) else None)
        if kind is not None:
            raise bad_request(
                f"{len(body)} bytes and no image but {kind}; this path takes the bytes of a file "
                f"(curl --data-binary @FILE), or a form with it (curl "
                f"--form image=@FILE); /v1/models/NAME:predict and /v2/models/NAME/infer "
                "take base64 in JSON"
            )


def _start_of(body: bytes) -> bytes:
    return body[:_START].removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n")


def _kind_of(start: bytes) -> str | None:
    """Returns what begins in this way, beside JSON and unknown data."""
    if compression := _COMPRESSED.match(start):
        raise _compressed(str(compression.lastgroup))
    return next((kind for pattern, kind in _KINDS if pattern.match(start)), None)


def _compressed(how: str) -> Exception:
    problem = f"the body is compressed ({how}); send it as it is"
    return http_error(415, problem, {"Accept-Encoding": "identity"})
