"""Parts of a table, without Ray."""

from dataclasses import replace

import pytest

from stillbox.errors import UserError

parquet = pytest.importorskip("pyarrow.parquet")

from stillbox.predicting.selection import Selection  # noqa: E402
from stillbox.scaling.image_files import list_images  # noqa: E402
from stillbox.scaling.table import DetectionTable, write_part  # noqa: E402
from tests.scaling.tables import agrees, middle_score, rows  # noqa: E402

EVERY = Selection(min_score=0)


@pytest.fixture
def output(tmp_path):
    return tmp_path / "tables" / "one"


@pytest.fixture
def table(output):
    return DetectionTable.open(str(output), "a model")


def test_the_rows_of_good_and_bad_images(predictor, photos, table, output):
    images = list_images([f"{photos}/**"]).images
    min_score = middle_score(predictor, photos)
    count = write_part(predictor, table, images, Selection(min_score=min_score))
    assert (count.predicted, count.bad, count.unread) == (10, 2, [])
    agrees(rows(output), predictor, photos, min_score)
    assert table.images() == {image.name for image in images}
    (part,) = output.iterdir()
    assert parquet.read_table(part).column("image").to_pylist() == [image.name for image in images]


def test_unreadable_images_are_not_in_the_table(predictor, photos, table):
    images = list_images([f"{photos}/deep"]).images
    gone = replace(images[0], path=f"{photos}/deep/gone.jpg")
    count = write_part(predictor, table, [gone, *images[1:3]], EVERY)
    assert count.predicted == 2
    assert len(count.unread) == 1
    assert count.unread[0].startswith(f"{images[0].name}: ")
    assert table.images() == {image.name for image in images[1:3]}
    assert write_part(predictor, table, [gone], EVERY)[:2] == (0, 0)
    assert table.images() == {image.name for image in images[1:3]}


def test_the_same_images_have_one_file(predictor, photos, table, output):
    images = list_images([f"{photos}/deep"]).images[:2]
    for _ in range(2):
        write_part(predictor, table, images, EVERY)
    assert len(rows(output)) == 2


def test_an_unfinished_file_is_no_part(table, output, photos, predictor):
    (output / ".part-0.parquet.partial").write_bytes(b"half")
    assert table.images() == set()
    write_part(predictor, table, list_images([f"{photos}/deep"]).images[:2], EVERY)
    assert len(rows(output)) == 2


def test_a_table_of_another_model_is_refused(table, output, predictor, photos):
    write_part(predictor, table, list_images([f"{photos}/deep"]).images[:2], EVERY)
    other = DetectionTable.open(str(output), "another model")
    with pytest.raises(
        UserError, match=r"was made by a model, not by another model\n  fix: choose another --out"
    ):
        other.images()


def test_a_damaged_part_is_named(table, output):
    (output / "part-1.parquet").write_bytes(b"no parquet")
    with pytest.raises(UserError, match=r"part-1\.parquet: cannot be read as a part .*\n  fix: de"):
        table.images()
