"""A static page that runs an exported `model.tflite` in the browser, with LiteRT.js.

Any file server works; browsers run no modules from `file://`. The page loads LiteRT.js
(https://www.npmjs.com/package/@litertjs/core, Apache-2.0) from `node_modules` in the folder, or
from a CDN where there is none. MediaPipe's `@mediapipe/tasks-vision` is not used: it reports its
use to Google, and resizes images in its own way, which changes boxes and scores.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from stillbox.experiment.values import section_to_plain
from stillbox.exporting.program import ExportProgram
from stillbox.predicting.web_page import page_files, render_index

INDEX, PAGE = "index.html", "page"
_FOLDER = Path(__file__).with_name("web_page")

VERSION = "2.5.3"
"""Of the packages `@litertjs/core` and `@litertjs/wasm-utils`."""
LOCAL, CDN = "node_modules/@litertjs/", "https://cdn.jsdelivr.net/npm/@litertjs/"
_MODULE = "dist/index.js"
INTEGRITY: Mapping[str, Mapping[str, str]] = {
    "core": {
        _MODULE: "MapSVJ/DPwvaWpp7q+Bid9O3uY1oB0KOU1QRMP+Mm5zdz5oMme/BUyX6dVAMWnPg",
        "wasm/litert_wasm_internal.js": (
            "NB/Wc4iozynQO5jzJ2VFoMKbqMvwwFGWxJL/o63IJT6W2JfZbsSLxA2cF6H/mLpQ"
        ),
        "wasm/litert_wasm_internal.wasm": (
            "AZ/Ak4CbDpjqpSr8WsnoL3Dcx6bDFA/k9b/jahok1TGHZ2OqIRjLBMiEmiNedhlC"
        ),
        "wasm/litert_wasm_compat_internal.js": (
            "oh4nb8zDq6eVOpGeZE5gwDOJ16QujHLL8k/HEXt3XiPxr+8zn3YnkXP8P3BlJET1"
        ),
        "wasm/litert_wasm_compat_internal.wasm": (
            "glAZ6WjS7tLRt89pbTPXvLC1c7DCaVSfL2ngn5gZJiUuPs76fWYJy7ZeFaD0PJXx"
        ),
    },
    "wasm-utils": {_MODULE: "HIPwlWsctS5BRqrnvJKDVJ8SvqKB0QmiImdr6+hpP7+8UqeMJX/qrBkdfKQV2WZ/"},
}
"""SHA-384 by package and file. Browsers refuse other content."""

_HEAD = """<meta http-equiv="Content-Security-Policy" content="default-src 'none';
 script-src 'self' {cdn} blob: 'wasm-unsafe-eval' 'sha256-{digest}'; style-src 'self';
 img-src 'self' blob: data:; media-src 'self' blob:; connect-src 'self' {cdn}; base-uri 'none';
 form-action 'none'">
<meta name="referrer" content="no-referrer">
<script type="importmap">{imports}</script>
"""
# The page's script replaces this text. It stays if modules do not run.
_NOTE = """<p id="runtime" class="hint" role="status">This page needs a web server. Run
<code>python3 -m http.server</code> in its folder, then open http://localhost:8000.</p>
"""


def write_page(program: ExportProgram, labels: Sequence[str], folder: Path) -> dict[str, str]:
    """Writes the page beside `model.tflite`, and returns descriptions of what was written.

    Labels are the names of all class indices.
    """
    settings = json.dumps(_settings(program, labels), ensure_ascii=False, indent=1)
    index = render_index({"name": program.model.experiment.name}, {"head": _head(), "note": _NOTE})
    (folder / INDEX).write_text(index, encoding="utf-8")
    (folder / PAGE).mkdir()
    for name, content in page_files(_FOLDER).items():
        (folder / PAGE / name).write_bytes(content)
    (folder / PAGE / "model.json").write_text(settings, encoding="utf-8")
    return {
        INDEX: "runs the model in a browser, from any server: python3 -m http.server",
        PAGE: f"its scripts; `npm install @litertjs/core@{VERSION}` in the folder for use offline",
    }


def _settings(program: ExportProgram, labels: Sequence[str]) -> dict[str, object]:
    """Returns the content of `model.json`."""
    resizer, settings = program.description.resizer, program.settings
    size = settings.image_size or program.input_size
    if size == program.input_size:
        plain = section_to_plain(resizer) | {"align_corners": resizer.align_corners}
    else:  # the model itself resizes as in training
        plain = {"kind": "fixed_shape", "height": size[0], "width": size[1]}
        plain["method"] = "opencv_area"
    raw = settings.input_type == "raw_image_tensor"
    pixels = program.normalization if raw else None
    return {
        "library": {
            "version": VERSION,
            "folder": f"{LOCAL}core/",
            "cdn": f"{CDN}core@{VERSION}/",
            "integrity": {name: f"sha384-{digest}" for name, digest in INTEGRITY["core"].items()},
        },
        "input": {
            "name": settings.input,
            "height": size[0],
            "width": size[1],
            "dtype": settings.input_dtype,
            "mean": list(pixels.mean) if pixels else [0, 0, 0],
            "std": list(pixels.std) if pixels else [1, 1, 1],
            "resizer": plain,
        },
        "classes": [
            {"id": class_id, "name": name}
            for class_id, name in zip(program.model.slots().ids, labels, strict=True)
        ],
    }


def _head() -> str:
    """Returns the policy of the page, and the import map with the checksums of the modules."""
    bases = f"./{LOCAL}{{}}/", f"{CDN}{{}}@{VERSION}/"
    modules = {
        base: {package: base.format(package) + _MODULE for package in INTEGRITY} for base in bases
    }
    imports = json.dumps(
        {
            "scopes": {
                base.format("core"): {"@litertjs/wasm-utils": paths["wasm-utils"]}
                for base, paths in modules.items()
            },
            "integrity": {
                path: f"sha384-{INTEGRITY[package][_MODULE]}"
                for paths in modules.values()
                for package, path in paths.items()
            },
        }
    )
    digest = base64.b64encode(hashlib.sha256(imports.encode()).digest()).decode()
    return _HEAD.format(cdn=CDN, digest=digest, imports=imports)
