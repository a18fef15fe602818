"""`stillbox serve`: a trained model or an export over HTTP, with a page to try it."""

import argparse
import errno
import os
import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stillbox import numerals
from stillbox.cli.arguments import add_bool, add_option, note
from stillbox.cli.running import add_model, model_arguments, say
from stillbox.devices.announcing import say_aside
from stillbox.errors import UserError
from stillbox.extras import install_command
from stillbox.predicting.selection import CLASSES_PER_OBJECT
from stillbox.serving.settings import BATCH_SIZES, HOST, ServeSettings
from stillbox.system import allow_rebinding

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from stillbox.predicting.backend import Backend

KEY_VARIABLE = "STILLBOX_API_KEY"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    add_model(parser, "best, latest or a number", runtime="the fastest installed one")
    parser.add_argument("--name", help="the model's name in addresses (default: the folder's)")
    parser.add_argument(
        "--model-version", dest="version", type=int, metavar="N", help="in addresses (default: 1)"
    )
    _add_address(parser.add_argument_group("address"))
    _add_limits(parser.add_argument_group("batches and limits"))


def _add_address(group: "argparse._ArgumentGroup") -> None:
    add_option(group, "--host", "127.0.0.1", "address", "HOST")
    add_option(group, "--port", 8501, "0: any free one", "PORT")
    about = f"key that clients have to send; also by ${KEY_VARIABLE}"
    group.add_argument("--api-key", metavar="KEY", help=about)
    add_bool(group, "--insecure", "accept requests of other machines without a key")
    group.add_argument(
        "--allowed-host",
        dest="allowed_hosts",
        metavar="NAME",
        action="append",
        default=[],
        help="name of the server in addresses, beside localhost, --host and the machine's name; "
        "may be repeated",
    )
    group.add_argument("--tls-cert", type=Path, metavar="FILE", help="certificate chain, PEM")
    group.add_argument("--tls-key", type=Path, metavar="FILE", help="its private key, PEM")
    add_bool(group, "--access-log", "print a line for each request")


def _add_limits(group: "argparse._ArgumentGroup") -> None:
    sizes = ",".join(map(str, BATCH_SIZES))
    group.add_argument(
        "--batch-sizes",
        type=_sizes,
        metavar="N,N",
        help=f"compiled at the start (default: those of {sizes} that the model accepts)",
    )
    for name, about in (
        ("max_delay_ms", "most milliseconds that an image waits for its batch"),
        ("runs_at_once", "batches that run at a time; 0: as many as are fastest, measured"),
        ("queue", "most images at a time; clients get 503 beyond them"),
        ("max_images", "most images of a request"),
        ("max_body", "most bytes of a request"),
        ("max_pixels", "most pixels of an image"),
        ("max_memory", "most bytes for the images in progress"),
        ("timeout", "most seconds for a request to arrive, and for its answer"),
        ("min_score", "least score of the detections of /detect"),
        ("iou", "with one class per object, boxes with a greater overlap are one object"),
    ):
        add_option(group, f"--{name.replace('_', '-')}", getattr(ServeSettings, name), about)
    group.add_argument(
        "--classes-per-object",
        choices=CLASSES_PER_OBJECT,
        help="one: a box is dropped for a better one of any class (default: one for /detect and "
        "the page, all for the model protocols)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Loads the model, compiles its batches and serves until a signal."""
    settings = _settings(arguments)
    tls = _load_tls(arguments.tls_cert, arguments.tls_key)
    _check_address(arguments)
    bound = _bind(arguments.host, arguments.port)
    try:
        app = _build(arguments, settings)
        _serve(app, bound, tls, arguments, settings)
    finally:
        bound.close()
    return 0


def _build(arguments: argparse.Namespace, settings: ServeSettings) -> "Starlette":
    try:
        from stillbox.serving.app import build_app
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is not installed", fix=install_command("serve")) from error
    from stillbox.api import load
    from stillbox.devices.setup import prepare_process
    from stillbox.exporting.manifest import is_export
    from stillbox.exporting.settings import FASTEST

    prepare_process()
    model = model_arguments(arguments)
    if not arguments.runtime and is_export(Path(arguments.config)):
        model["runtime"] = FASTEST
    predictor = load(**model, say=say_aside)
    _check_export(predictor.backend)
    app = build_app(predictor, settings)
    app.state.engine.start(say)
    return app


def _check_export(backend: "Backend") -> None:
    """Refuses an export that compiles a program for every size of image."""
    from stillbox.exporting.backend import ExportBackend

    if not isinstance(backend, ExportBackend):
        return
    settings = backend.manifest.settings
    free = settings.image_size is None and settings.input_type != "raw_image_tensor"
    if settings.format == "stablehlo" and free:
        raise UserError(
            "this export compiles a program for every size of image",
            where=backend.source,
            fix="export it again, `stillbox export DIR --image-size HEIGHT,WIDTH`, or serve the "
            "model directory",
        )


def _serve(
    app: "Starlette",
    bound: socket.socket,
    tls: ssl.SSLContext | None,
    arguments: argparse.Namespace,
    settings: ServeSettings,
) -> None:
    from stillbox.serving.connections import BACKLOG, ConnectionLimits, Server

    limits = ConnectionLimits.of_process(settings.timeout)
    server = Server(app, limits, tls=tls, access_log=arguments.access_log)
    host, port = bound.getsockname()[:2]
    with _explaining(arguments.host, port):
        # Otherwise the connections of an earlier server, which are still closing, forbid a restart.
        allow_rebinding(bound)
        bound.listen(BACKLOG)
    scheme = "https" if tls else "http"
    say(f"{settings.name} at {scheme}://{f'[{host}]' if ':' in host else host}:{port}/")
    server.run(sockets=[bound])


def _settings(arguments: argparse.Namespace) -> ServeSettings:
    """Returns the given settings and the defaults of the others."""
    given: dict[str, Any] = {
        field.name: value
        for field in fields(ServeSettings)
        if (value := getattr(arguments, field.name, None)) is not None
    }
    if "name" not in given:
        # A config's name may end in .config or be a recipe's.
        stem = Path(arguments.config).resolve().name.removesuffix(".config")
        given["name"] = re.sub(r"[^A-Za-z0-9._-]+|^[^A-Za-z0-9]+", "_", stem).lstrip("_") or "model"
    given["api_key"] = _key(arguments)
    given["allowed_hosts"] = (*arguments.allowed_hosts, *_own_names(arguments.host))
    return ServeSettings(**given).checked()


def _own_names(host: str) -> list[str]:
    """Returns the names of this machine in the network, if other machines can reach it."""
    names = [] if _is_loopback(host) else [host, socket.gethostname()]
    bracketed = [f"[{name}]" if ":" in name else name for name in names]
    return [name for name in bracketed if HOST.fullmatch(name)]


def _key(arguments: argparse.Namespace) -> str:
    return arguments.api_key or os.environ.get(KEY_VARIABLE, "")


def _load_tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Returns what encrypts connections; refuses unusable files before the model is loaded."""
    if (certificate is None) != (key is None):
        problem = "a certificate and its key belong together"
        raise UserError(problem, where="--tls-cert, --tls-key", fix="give both")
    if certificate is None:
        return None
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        tls.load_cert_chain(certificate, key)
    except OSError as error:  # ssl.SSLError is one
        problem = f"{certificate} and {key} cannot be used: {error}"
        fix = "give PEM files that belong together"
        raise UserError(problem, where="--tls-cert, --tls-key", fix=fix) from error
    return tls


def _check_address(arguments: argparse.Namespace) -> None:
    """Refuses an address that is open to others by mistake."""
    if _is_loopback(arguments.host):
        return
    if not _key(arguments) and not arguments.insecure:
        problem = f"{arguments.host} is open to other machines, and there is no key"
        fix = f"set ${KEY_VARIABLE}, or add --insecure in a closed network"
        raise UserError(problem, where="--host", fix=fix)
    if _key(arguments) and arguments.tls_cert is None:
        note("the key is sent unencrypted; --tls-cert and --tls-key encrypt it, as does a proxy")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _bind(host: str, port: int) -> socket.socket:
    """Binds the port before the model is loaded, without accepting connections."""
    with _explaining(host, port), ExitStack() as stack:
        if not 0 <= port < 2**16:  # the resolver would truncate it
            raise OSError("there is no such port")
        (family, kind, _, _, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        bound = stack.enter_context(socket.socket(family, kind))
        try:
            # Without SO_REUSEADDR no other process can bind the port while the model is compiled.
            bound.bind(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            allow_rebinding(bound)
            bound.bind(address)
        stack.pop_all()
    return bound


@contextmanager
def _explaining(host: str, port: int) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: the resolver takes no such name
        number = getattr(error, "errno", None)
        fix = "give another --port; 0 takes any that is free"
        if isinstance(error, socket.gaierror | ValueError) or number == errno.EADDRNOTAVAIL:
            fix = "give --host an address or a name of this machine, as 127.0.0.1"
        elif number == errno.EACCES:
            fix = "give a --port of 1024 or more; lower ones are reserved for the system"
        problem = f"cannot listen at {host}:{port}: {getattr(error, 'strerror', None) or error}"
        raise UserError(problem, where="--host, --port", fix=fix) from error


def _sizes(text: str) -> tuple[int, ...]:
    sizes = [numerals.whole(size) for size in text.split(",")]
    if None in sizes:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of sizes, as 1,2,4,8")
    return tuple(size for size in sizes if size is not None)
