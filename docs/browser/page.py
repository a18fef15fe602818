"""Writes a static page that runs an exported `model.tflite` in the browser, with LiteRT.js.

`python docs/browser/page.py EXPORT SITE` writes the folder SITE for the folder that
`stillbox export --format tflite` wrote. Any file server works; browsers run no modules from
`file://`. The page loads LiteRT.js (https://www.npmjs.com/package/@litertjs/core, Apache-2.0) from
`node_modules` in the folder, or from a CDN where there is none. MediaPipe's
`@mediapipe/tasks-vision` is not used: it reports its use to Google, and resizes images in its own
way, which changes boxes and scores.
"""

import argparse
import base64
import hashlib
import json
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path

from stillbox.experiment.schema import Experiment
from stillbox.experiment.values import section_to_plain
from stillbox.exporting.backend import read_experiment
from stillbox.exporting.manifest import Manifest
from stillbox.predicting.web_page import page_files, render_index

MODEL, PAGE = "model.tflite", "page"

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


def write_page(export: Path, site: Path) -> None:
    """Writes the page and a copy of `model.tflite` into the new folder `site`."""
    manifest, experiment = Manifest.read(export), read_experiment(export)
    if manifest.settings.format != "tflite" or manifest.settings.postprocess != "built_in":
        raise SystemExit(f"{export}: the page runs TFLite models of built-in operations alone")
    (site / PAGE).mkdir(parents=True)
    for name, content in page_files(Path(__file__).parent).items():
        (site / PAGE / name).write_bytes(content)
    (site / PAGE / "model.json").write_text(
        json.dumps(_settings(manifest, experiment, _classes(export)), ensure_ascii=False, indent=1),
        encoding="utf-8",
    )
    index = render_index({"name": experiment.name}, {"head": _head(), "note": _NOTE})
    (site / "index.html").write_text(index, encoding="utf-8")
    shutil.copyfile(export / MODEL, site / MODEL)


def _classes(export: Path) -> list[dict[str, object]]:
    """Returns id and name of every class index, from the archive behind the model."""
    with zipfile.ZipFile(export / MODEL) as archive:
        ids, names = (
            archive.read(name).decode().splitlines() for name in ("label_ids.txt", "labels.txt")
        )
    return [{"id": int(number), "name": name} for number, name in zip(ids, names, strict=True)]


def _settings(
    manifest: Manifest, experiment: Experiment, classes: list[dict[str, object]]
) -> dict[str, object]:
    """Returns the content of `model.json`."""
    settings, resizer = manifest.settings, experiment.model.resizer
    size = settings.image_size or manifest.input_size
    if size == manifest.input_size:
        plain = section_to_plain(resizer) | {"align_corners": resizer.align_corners}
    else:  # the model itself resizes as in training
        plain = {"kind": "fixed_shape", "height": size[0], "width": size[1]}
        plain["method"] = "opencv_area"
    raw = settings.input_type == "raw_image_tensor"
    pixels = experiment.model.normalization if raw else None
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
        "classes": classes,
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("export", type=Path, metavar="EXPORT")
    parser.add_argument("site", type=Path, metavar="SITE", help="a new folder")
    arguments = parser.parse_args()
    write_page(arguments.export, arguments.site)
