"""How fast records of a bucket are read, beside the same records on disk: images/s, decoded.

The records are copied below the URL first. Rows: the disk; the bucket for the first time, with the
making of the index; again, from the blocks that were kept; and without room for any block, where
each record is a request of its own.

    moto_server --port 5555 &
    export AWS_ENDPOINT_URL=http://127.0.0.1:5555 AWS_ACCESS_KEY_ID=a AWS_SECRET_ACCESS_KEY=b
    python benchmarks/buckets.py 'scenes/train.record-*' s3://bucket/scenes --make-bucket
"""

import argparse
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from stillbox.inputs.decode import decode_image
from stillbox.object_storage import ObjectFolder
from stillbox.printing import size_text
from stillbox.records.byte_source import BlockCache
from stillbox.records.source import ExampleSource, expand


def images_per_second(pattern: str, threads: int) -> tuple[float, float]:
    """Returns the seconds until the first image, and images/s of all, in a random order."""
    began = time.monotonic()
    source = ExampleSource([pattern])
    order = np.random.default_rng(0).permutation(len(source))

    def decode(index: int) -> None:
        example = source.example(int(index))
        assert example is not None
        decode_image(example.encoded)

    decode(order[0])
    first = time.monotonic() - began
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(decode, order))
    return first, len(order) / (time.monotonic() - began - first)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", metavar="PATTERN")
    parser.add_argument("url", metavar="URL")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--make-bucket", action="store_true", help="for a local S3, which is empty")
    arguments = parser.parse_args()
    if arguments.make_bucket:
        import boto3

        boto3.client("s3", region_name="us-east-1").create_bucket(
            Bucket=arguments.url.split("/")[2]
        )
    folder, paths = ObjectFolder(arguments.url), [Path(str(p)) for p in expand([arguments.records])]
    for path in paths:
        folder.upload(path, path.name)
    size = sum(path.stat().st_size for path in paths)
    print(f"{len(paths)} files, {size_text(size)}, {arguments.threads} threads\n")
    print("| records | s to the first image | images/s |\n|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache

        def row(name: str, pattern: str) -> None:
            first, speed = images_per_second(pattern, arguments.threads)
            print(f"| {name} | {first:.2f} | {speed:.0f} |", flush=True)

        there = f"{arguments.url}/*"
        row("disk", arguments.records)
        row("bucket, for the first time", there)
        row("bucket, again", there)
        os.environ["XDG_CACHE_HOME"] = f"{cache}/empty"
        BlockCache.has_room = lambda self: False
        row("bucket, no room for blocks", there)
        row("disk, again", arguments.records)


if __name__ == "__main__":
    main()
