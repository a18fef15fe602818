"""Object storage for tests: fsspec's own in memory, one that fails on request, and a local S3."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

FAULTS: list[tuple[str, Exception]] = []
"""Errors of the next calls, by the method that raises them."""


class FaultyFileSystem(MemoryFileSystem):
    """Objects in memory, `faulty://`; a method raises what `FAULTS` has for it, once each."""

    protocol = "faulty"
    store: dict = {}  # noqa: RUF012 - as the class above has it
    pseudo_dirs = [""]  # noqa: RUF012

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("faulty://", "memory://"))

    def pipe_file(self, *arguments, **options):
        _fail("pipe_file")
        return super().pipe_file(*arguments, **options)

    def put_file(self, *arguments, **options):
        _fail("put_file")
        return super().put_file(*arguments, **options)

    def cat_file(self, *arguments, **options):
        _fail("cat_file")
        return super().cat_file(*arguments, **options)


def _fail(method: str) -> None:
    for fault in FAULTS:
        if fault[0] == method:
            FAULTS.remove(fault)
            raise fault[1]


fsspec.register_implementation("faulty", FaultyFileSystem, clobber=True)


_ANSWERS = {
    "503": ("503 Slow Down", "SlowDown"),
    "lose": ("404 Not Found", "NoSuchUpload"),
    "deny": ("403 Forbidden", "AccessDenied"),
}


class FaultyS3:
    """A WSGI application before moto's, which spoils requests.

    `spoil` gets the method and the path with its query, and returns what to do with the request:
    `drop` the connection, answer `503`, `slow` by two seconds, `lose` the upload of parts, `deny`
    it, or None.
    """

    def __init__(self) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app

        self._moto = DomainDispatcherApplication(create_backend_app)
        self.spoil: Callable[[str, str], str | None] = lambda method, path: None
        self.seen: list[tuple[str, str, str | None]] = []

    def __call__(self, environ, start_response):
        query = environ.get("QUERY_STRING", "")
        path = environ["PATH_INFO"] + (f"?{query}" if query else "")
        fault = self.spoil(environ["REQUEST_METHOD"], path)
        self.seen.append((environ["REQUEST_METHOD"], path, fault))
        if fault == "drop":
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionAbortedError
        if fault == "slow":
            time.sleep(2)
        if fault in _ANSWERS:
            status, code = _ANSWERS[fault]
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            body = f"<Error><Code>{code}</Code><Message>spoilt</Message></Error>".encode()
            start_response(status, [("Content-Type", "application/xml")])
            return [body]
        return self._moto(environ, start_response)


@contextmanager
def local_s3(monkeypatch) -> Iterator[FaultyS3]:
    """Serves an S3 with an empty bucket `bucket`, and points the environment at it."""
    import boto3
    from werkzeug.serving import make_server

    application = FaultyS3()
    server = make_server("127.0.0.1", 0, application, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    names = {"AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    for name, value in (names | {"AWS_DEFAULT_REGION": "us-east-1"}).items():
        monkeypatch.setenv(name, value)
    boto3.client("s3").create_bucket(Bucket="bucket")
    try:
        yield application
    finally:
        server.shutdown()
        thread.join()
