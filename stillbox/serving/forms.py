"""The one file of a form, `multipart/form-data` (RFC 7578)."""

from python_multipart.multipart import parse_options_header

from stillbox.serving.responses import bad_request

_MOST_PARTS, _MOST_HEADER = 9, 4096
_LONGEST_BOUNDARY = 70


def read_file(content_type: str, body: bytes) -> tuple[str, bytes]:
    """Returns name and content of the one file of a form, which may have other fields.

    Args:
        content_type: the header with the boundary of the parts.
        body: of the request.

    Raises:
        HTTPException: 400, the form is invalid, or has no file or several.
    """
    boundary = parse_options_header(content_type[:_MOST_HEADER])[1].get(b"boundary", b"")
    if not 0 < len(boundary) <= _LONGEST_BOUNDARY:
        raise bad_request("the form has no boundary, or a long one")
    between = b"\r\n--" + boundary
    # The first boundary may be at the beginning; what follows the last is no part.
    parts = (b"\r\n" + body).split(between, _MOST_PARTS + 1)
    if len(parts) > _MOST_PARTS + 1 or not parts[-1].startswith(b"--"):
        raise bad_request(f"a form has 1 to {_MOST_PARTS - 1} parts and ends with its boundary")
    files = [found for part in parts[1:-1] if (found := _read_part(part)) is not None]
    if len(files) != 1:
        raise bad_request("a form has one file, as from curl --form image=@FILE")
    return files[0]


def _read_part(part: bytes) -> tuple[str, bytes] | None:
    """Returns name and content if a part is a file."""
    header, found, _ = part[:_MOST_HEADER].partition(b"\r\n\r\n")
    if not found:
        raise bad_request(f"a part of the form has no header of up to {_MOST_HEADER} bytes")
    for line in header.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-disposition":
            options = parse_options_header(value.strip())[1]
            if b"filename" not in options:
                return None
            start = len(header) + len(found)
            return options[b"filename"].decode("utf-8", "replace"), part[start:]
    return None
