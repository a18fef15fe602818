"""Changes of files that a fuzzer finds by luck only: in the structure of JSON, and of bytes."""

import json
import random
from typing import Any

HOSTILE: tuple[Any, ...] = (
    *(None, True, "", "x", "\0", "../../x", "/etc/passwd", "\ud800", "1", "é" * 300),
    *(0, -1, 2**31, 2**63, 2**64, 10**400, 1.5, 1e300, -1e-300),
    *(float("nan"), float("inf"), [], {}, [[]], [None] * 4, {"id": 1}),
)


def mutate_json(data: bytes, rng: random.Random) -> bytes | None:
    """Returns a document with one value changed, removed or moved; None if it is no JSON."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return None
    places = list(_places(content))
    if not places:
        return None
    holder, key = rng.choice(places)
    match rng.randrange(4):
        case 0:
            del holder[key]
        case 1:
            other, place = rng.choice(places)
            if _contains(other, place):
                # A copy: a document that holds itself has no text.
                holder[key] = json.loads(json.dumps(other[place]))
        case _:
            holder[key] = rng.choice(HOSTILE)
    return json.dumps(content).encode()


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Returns a file with some bytes changed, removed, repeated or cut off."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(changed) + 1)
        size = rng.choice((1, 1, 2, 4, 8, 40))
        match rng.randrange(5):
            case 0:
                changed[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                changed[at : at + size] = rng.choice((b"\xff", b"\0", b"\x80", b"9")) * size
            case 2:
                del changed[at : at + size]
            case 3:
                changed[at:at] = changed[at : at + size] * rng.choice((1, 2, 500))
            case _:
                del changed[at:]
    return bytes(changed)


def _contains(holder: Any, key: Any) -> bool:  # noqa: ANN401
    return key in holder if isinstance(holder, dict) else key < len(holder)


def _places(content: Any) -> Any:  # noqa: ANN401
    """Yields each place in a document, as a dictionary or list and a key."""
    if isinstance(content, dict | list):
        for key in list(content) if isinstance(content, dict) else range(len(content)):
            yield content, key
            yield from _places(content[key])
