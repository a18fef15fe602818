"""The core of the readers: tables from fields of a language to fields of the schema."""

import pytest

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.sections import part
from tests.experiment.sections import read_section


def test_a_part_reads_fields_of_the_same_and_of_another_name():
    reader = part(schema.RandomImageScale, min_ratio="min_scale_ratio", max_ratio="max_scale_ratio")
    value, log = read_section(reader, "RandomImageScale", "min_scale_ratio: 0.25")
    assert value == schema.RandomImageScale(min_ratio=0.25, max_ratio=2.0)
    assert log.origins == {"here.min_ratio": "p:1:1"}


def test_an_optional_field_keeps_the_default_of_the_schema():
    reader = part(schema.RandomDownscaleToTargetPixels, ("max_target_pixels",))
    value, _ = read_section(reader, "RandomDownscaleToTargetPixels", "")
    assert value == schema.RandomDownscaleToTargetPixels()
    reader = part(schema.RandomDownscaleToTargetPixels)
    value, _ = read_section(reader, "RandomDownscaleToTargetPixels", "")
    assert value.max_target_pixels == 500000


def test_inner_sections_have_the_path_of_their_field_and_number():
    grid = part(schema.AnchorGrid, sizes="base_sizes")
    reader = part(schema.FlexibleGridAnchors, grids=("anchor_grid", grid))
    text = "anchor_grid { } anchor_grid { base_sizes: 3 }"
    value, log = read_section(reader, "FlexibleGridAnchorGenerator", text)
    assert [grid.sizes for grid in value.grids] == [(), (3.0,)]
    assert log.origins == {"here.grids.1.sizes": "p:1:31"}


def test_a_field_without_a_place_is_refused():
    reader = part(schema.RandomRgbToGray)
    assert read_section(reader, "RandomRGBtoGray", "probability: 0.5")[0].probability == 0.5
    with pytest.raises(UserError, match=r"p:1:1: RandomImageScale\.min_scale_ratio = 0\.25: has"):
        read_section(part(schema.RandomImageScale), "RandomImageScale", "min_scale_ratio: 0.25")


def test_a_misspelt_field_of_the_schema_is_a_mistake():
    with pytest.raises(TypeError, match="RandomImageScale has no field 'min_ration'"):
        part(schema.RandomImageScale, min_ration="min_scale_ratio")
