"""Changes folders with a manifest as their writer would have."""

import json

from stillbox.checkpoints.files import Checksums, read_manifest, write_manifest


def reseal(folder, name="checkpoint.json", **changes):
    """Lets the manifest of a folder fit its present files, and changes fields of it."""
    content = read_manifest(folder / name, what="", fix="") | changes
    content["checksums"] = Checksums.of_folder(folder, name).to_json()
    (folder / name).write_bytes(write_manifest(content))


def age(folder, name="checkpoint.json", **changes):
    """Makes the manifest of a folder one of a version without checksums."""
    content = json.loads((folder / name).read_text()) | changes
    for field in ("sha256", "checksums"):
        del content[field]
    (folder / name).write_text(json.dumps(content))
