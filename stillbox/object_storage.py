"""Objects below a URL, such as `s3://bucket/run`, through fsspec and its package for the service.

Credentials are those that the service's own programs find. Chained URLs of fsspec are refused: they
reach the disk and other services through one address.
"""

import re
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, NamedTuple, TypeVar

from stillbox.errors import UserError, nearest
from stillbox.extras import import_extra, not_installed
from stillbox.references import Setting

_EXTRA = "cloud"
# `Path` has made one slash of two.
_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]+):/+(?P<rest>.*)", re.DOTALL)
# What is kept of an object without a tag: any of them changes with its content.
_TAGS = ("ETag", "etag", "generation", "md5", "LastModified", "mtime", "last_modified", "created")
# The packages for the services repeat single requests; these are repetitions of whole uploads.
_PAUSES = (1.0, 4.0)
# What no repetition changes.
_LASTING = (PermissionError, FileExistsError, FileNotFoundError)
_OF_EXTRA = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs"}
_LOGIN = {
    "s3fs": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run `aws configure`",
    "gcsfs": "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS",
}
_LOCAL = {"file", "local"}
_BUCKETS = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl"}
_SCHEMES = _BUCKETS | _LOCAL | {"memory"}
_BUCKET = re.compile(rf"\b(?:{'|'.join(_BUCKETS)}):/+[^/\s\"',\[\]]+")
# Buckets that the user has named, and those that experiments stored with a model name.
_named: set[str] = set()
_stored: set[str] = set()

Result = TypeVar("Result")


def url_of(path: str | PurePath) -> str | None:
    """Returns the URL that a path is, even if `Path` has merged its two slashes.

    `Path` leaves `s3:` of an address without a bucket, and of the folder of a bucket.
    """
    text = str(path)
    match = _URL.fullmatch(f"{text}/" if text.removesuffix(":") in _SCHEMES else text)
    if match is None:
        return None
    # Two slashes before a path of this machine would make its first folder a host.
    slashes = "///" if match["scheme"] in _LOCAL else "//"
    return f"{match['scheme']}:{slashes}{match['rest']}"


def name_buckets(text: str) -> None:
    """Notes the buckets that a text of the user names, such as an option or a config's path."""
    _named.update(_buckets_of(text))


def note_stored_buckets(text: str) -> None:
    """Notes the buckets of a stored experiment, which may be of somebody else.

    `ObjectFolder` connects to none of them that the user has not named.
    """
    _stored.update(_buckets_of(text))


def _buckets_of(text: str) -> set[str]:
    return {url_of(address) or address for address in _BUCKET.findall(text)}


def _check_address(url: str, registered: Collection[str]) -> None:
    """Refuses other services than buckets, and buckets that a stored experiment alone names.

    `registered` are the schemes of file systems that the running program has added.
    """
    scheme = url.partition("://")[0]
    if scheme not in {*_SCHEMES, *registered}:
        problem = f"nothing is known of {scheme}:// as the address of a bucket"
        raise UserError(problem, where=url, fix=nearest(scheme, _SCHEMES))
    for bucket in _buckets_of(url) & _stored - _named:
        fix = (
            f"if you trust it, name it: {Setting('data.evaluation.paths', f'{bucket}/')}..., or "
            "data.train"
        )
        problem = f"the experiment that is stored with the model names {bucket}, and you do not"
        raise UserError(problem, where=url, fix=fix)
    name_buckets(url)


def local_path(path: str | PurePath, where: str | None = None) -> Path:
    """Returns a path of this machine, which may be spelled as a URL of `file://`.

    Raises:
        UserError: it is the URL of another service.
    """
    url = url_of(path)
    if url is None:
        return Path(path)
    scheme, _, rest = url.partition("://")
    if scheme not in _LOCAL:
        problem = f"{url} is not a local file or folder"
        raise UserError(problem, where=where, fix="copy it to this machine first")
    return Path(rest)


class ObjectPath(PurePosixPath):
    """The path of an object; its text is the URL."""

    def __str__(self) -> str:
        return url_of(super().__str__()) or super().__str__()


class Entry(NamedTuple):
    """An object of a listing."""

    size: int
    """Bytes."""
    version: str
    """Changes with the content."""


class ObjectFolder:
    """The objects below a URL; their names are relative to it.

    Every method raises `UserError` if the service refuses, or does not answer for `patience`
    seconds. Objects appear complete or not at all.

    Raises:
        UserError: the package for the service is not installed, or the URL is malformed.
    """

    def __init__(self, url: str) -> None:
        self.url, self.patience = url.rstrip("/"), 0.0
        scheme = url.partition("://")[0]
        if "::" in url or not url.partition("://")[2].strip("/"):
            raise UserError("this is no address of objects", where=url, fix="s3://BUCKET/FOLDER")
        fsspec = import_extra("fsspec", _EXTRA)
        _check_address(self.url, set(fsspec.registry) - set(fsspec.available_protocols()))
        try:
            with _translated(self.url):
                self._files, root = fsspec.core.url_to_fs(self.url, use_listings_cache=False)
        except ImportError as error:
            if scheme in _OF_EXTRA:
                raise not_installed(_OF_EXTRA[scheme], _EXTRA) from error
            fix = f"install the package of fsspec for {scheme}://"
            raise UserError(str(error), where=url, fix=fix) from error
        self._root, self._makes_folders = root.rstrip("/"), scheme not in _BUCKETS

    def list(self, below: str = "") -> dict[str, Entry]:
        """Returns all objects, or the objects of a folder, by name."""

        def ask() -> dict[str, Any]:
            self._files.invalidate_cache()
            return dict(self._files.find(f"{self._root}/{below}".rstrip("/"), detail=True))

        try:
            files = self._asked("", ask)
        except FileNotFoundError:
            return {}
        names = {path: path.removeprefix(self._root).lstrip("/") for path in files}
        return {
            names[path]: Entry(int(info.get("size") or 0), _version(info))
            for path, info in files.items()
            if names[path]
        }

    def find(self, name: str) -> Entry | None:
        """Returns an object's size and version; None if there is none."""
        try:
            info = self._asked(name, lambda: self._files.info(self._path(name)))
        except FileNotFoundError:
            return None
        return Entry(int(info["size"]), _version(info)) if info.get("type") == "file" else None

    def read(self, name: str, start: int | None = None, end: int | None = None) -> bytes:
        """Returns the bytes of an object from `start` to before `end`; all by default.

        Raises:
            FileNotFoundError: there is none.
        """
        path = self._path(name)
        return bytes(self._asked(name, lambda: self._files.cat_file(path, start=start, end=end)))

    def write(self, name: str, content: bytes) -> None:
        """Writes or replaces a small object."""
        self._sent(name, lambda: self._files.pipe_file(self._path(name), content))

    def create(self, name: str, content: bytes) -> bool:
        """Writes an object unless there is one, and returns whether it is the one with `content`.

        Of two processes that create it at once, one succeeds, where the service can do it: Amazon
        S3, Google Cloud Storage and others.
        """
        try:
            self._sent(
                name,
                lambda: self._files.pipe_file(self._path(name), content, mode="create"),
            )
        except FileExistsError:
            # If the answer to a request was lost, its repetition finds what it wrote.
            return self.read(name) == content
        return True

    def upload(self, source: Path, name: str) -> None:
        """Writes or replaces an object with the content of a file, which may be growing."""
        size = source.stat().st_size

        def send() -> None:
            self._files.put_file(str(source), self._path(name))
            there = self._files.info(self._path(name))["size"]
            if there < size:
                raise OSError(f"{there} of {size} bytes arrived")

        self._sent(name, send)

    def download(self, name: str, target: Path) -> None:
        """Copies an object into a new file in a folder that exists.

        Raises:
            FileNotFoundError: there is none.
        """
        self._asked(name, lambda: self._files.get_file(self._path(name), str(target)))

    def remove(self, name: str) -> None:
        """Removes an object, if there is one."""
        with suppress(FileNotFoundError):
            self._asked(name, lambda: self._files.rm_file(self._path(name)))

    def _asked(self, name: str, ask: Callable[[], Result]) -> Result:
        """Asks for an object, and repeats it for the time of `patience`."""
        with _translated(self._url(name).rstrip("/")):
            return self._patiently(ask)

    def _patiently(self, call: Callable[[], Result]) -> Result:
        waited = sum(_PAUSES)
        while 0 < waited < self.patience:
            try:
                return call()
            except _LASTING:
                raise
            except Exception as error:
                if _lacks_credentials(error):
                    raise
                time.sleep(_PAUSES[-1])
                waited += _PAUSES[-1]
        return call()

    def _sent(self, name: str, send: Callable[[], Result]) -> Result:
        """Sends an object, several times if the connection or an upload of parts is lost."""
        with _translated(self._url(name)):
            if self._makes_folders:
                self._files.makedirs(self._path(name).rpartition("/")[0], exist_ok=True)
            for pause in _PAUSES:
                try:
                    return send()
                except (PermissionError, FileExistsError):
                    raise
                # Each service has errors of its own.
                except Exception as error:
                    if _lacks_credentials(error):
                        raise
                    time.sleep(pause)
            try:
                return self._patiently(send)
            except FileNotFoundError as error:
                # s3fs raises this for a lost upload too.
                raise OSError(f"the bucket, or the upload itself, is gone: {error}") from error

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _url(self, name: str) -> str:
        return f"{self.url}/{name}"


def object_at(url: str) -> tuple[ObjectFolder, str]:
    """Returns the folder of an object and its name there."""
    folder, _, name = url.rpartition("/")
    return ObjectFolder(folder), name


def read_object(url: str, *, most: int) -> bytes:
    """Returns the content of an object.

    Raises:
        UserError: there is none, or it has more than `most` bytes.
    """
    folder, name = object_at(url)
    entry = folder.find(name)
    if entry is None:
        raise UserError("there is no such object", where=url)
    if entry.size > most:
        problem = f"the object has {entry.size:,} bytes; such a file has {most:,} at most"
        raise UserError(problem, where=url)
    return folder.read(name)


def _version(info: dict[str, object]) -> str:
    return next((str(info[tag]).strip('"') for tag in _TAGS if info.get(tag)), "")


@contextmanager
def _translated(url: str) -> Iterator[None]:
    """Turns the errors of a service into a `UserError`."""
    try:
        yield
    except (UserError, ImportError, FileNotFoundError, FileExistsError):
        raise
    except Exception as error:
        raise _refusal(url, error) from error


def _refusal(url: str, error: Exception) -> UserError:
    reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    package = _OF_EXTRA.get(url.partition("://")[0], "")
    login = _LOGIN.get(package, "log in with the program of the service")
    if _lacks_credentials(error):
        return UserError(f"there are no credentials: {reason}", where=url, fix=login)
    if isinstance(error, PermissionError):
        fix = f"let this account read and write there, or use another: {login}"
        return UserError(f"access is denied: {reason}", where=url, fix=fix)
    fix = "see that the address is right and the service can be reached; then run this again"
    return UserError(f"the storage fails: {reason}", where=url, fix=fix)


def _lacks_credentials(error: Exception) -> bool:
    words = f"{type(error).__name__} {error}".lower()
    return "credential" in words or "anonymous caller" in words
