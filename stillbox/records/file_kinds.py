"""Kinds of files that lie where data is expected, by their first bytes and their suffixes."""

import codecs

ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar")
"""Suffixes of archives."""
OTHER_IMAGES = (
    *(".cr2", ".cr3", ".nef", ".arw", ".dng", ".raf", ".orf", ".rw2", ".exr", ".hdr", ".jxl"),
    *(".svg", ".psd", ".pdf", ".eps", ".dcm", ".nii", ".fits", ".mp4", ".avi", ".mov", ".mkv"),
)
"""Suffixes of images and videos that are not read."""
_MARKS: tuple[tuple[bytes, str], ...] = (
    (b"version https://git-lfs", "a Git LFS pointer: run `git lfs pull` for the file itself"),
    (b"<!doctype html", "an HTML page, which a server sends in place of a file: download it again"),
    (b"<html", "an HTML page, which a server sends in place of a file: download it again"),
    (b"PK\3\4", "an archive: unpack it"),
    (b"Rar!", "an archive: unpack it"),
    (b"7z\xbc\xaf", "an archive: unpack it"),
    (b"\x1f\x8b", "an archive: unpack it"),
    (b"BZh", "an archive: unpack it"),
    (b"\xfd7zXZ", "an archive: unpack it"),
    (codecs.BOM_UTF16_LE, "text in UTF-16: save it as UTF-8"),
    (codecs.BOM_UTF16_BE, "text in UTF-16: save it as UTF-8"),
)


def other_content(head: bytes) -> str:
    """Returns what the first bytes of a file are in place of data, with the remedy, or nothing."""
    if not head.strip():
        return "the file is empty"
    start = head.lstrip()[:64].lower() if head.lstrip()[:1] in b"<v" else head[:64]
    return next((reason for mark, reason in _MARKS if start.startswith(mark)), "")
