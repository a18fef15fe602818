"""Which network and which input a data set gets, on which machine, in which time."""

import numpy as np
import pytest

from stillbox.checking.candidates import (
    LARGE,
    NANO,
    PYRAMID,
    SMALL,
    SSD,
    Time,
    candidates,
    choose,
    reason,
    recipes_alone,
)
from stillbox.checking.machine_speed import measured_speed
from stillbox.checking.memory_verdict import Machine
from stillbox.checking.operations import forward_operations
from stillbox.experiment.resolve import read_config
from tests.checking.box_statistics import stats

CORES = 90e9
ACCELERATOR = 20e12


def minutes(number, speed=CORES, steps=10**9):
    return Time(speed, 60 * number, lambda samples: steps)


def chosen(data, time, weights=(SMALL,)):
    among = candidates(data, time, has_weights=lambda recipe: recipe in weights)
    return choose(among)


def sides(least, number=100):
    """Sides of which one in ten is about as short as the least."""
    return np.linspace(0.9 * least, 2 * least, number)


def test_large_boxes_get_the_smallest_input_in_the_shape_of_the_images():
    small = chosen(stats(sides=[sides(60)]), minutes(5))
    assert (small.recipe, small.size, small.tile) == (SMALL, (288, 384), 0)
    assert small.resolved == {"class_1": 1.0}
    panorama = chosen(stats(sides=[sides(60)], height=300, width=900), minutes(5))
    assert panorama.size == (192, 544)
    mixed = chosen(stats(sides=[sides(60)], one_shape=False), minutes(5))
    assert mixed.size == (320, 320)
    assert not mixed.changes


def test_a_class_of_small_boxes_gets_a_larger_input_as_far_as_time_allows():
    data = stats(sides=[sides(60), sides(9)], one_shape=False)
    sizes = [chosen(data, minutes(number)).size[0] for number in (2, 6, 120)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[1] < sizes[2] == 640
    assert chosen(data, minutes(120)).changes["model.anchors.max_level"] == 6


def test_images_much_larger_than_the_network_are_cut_into_tiles():
    slides = stats(images=22, sides=[sides(88), sides(32)], height=1440, width=1920)
    tiled = chosen(slides, minutes(5))
    assert (tiled.size, tiled.tile, tiled.samples) == ((320, 320), 640, 12)
    assert tiled.changes["data.tiles"]["whole_image"] is False
    assert read_config(SMALL, tiled.changes).experiment.data.tiles.side == 640
    assert min(tiled.resolved.values()) > 0.9
    with_large = stats(images=22, sides=[sides(700), sides(32)], height=1440, width=1920)
    assert chosen(with_large, minutes(5)).changes["data.tiles"]["whole_image"] is True


def test_images_of_usual_size_are_not():
    data = stats(sides=[sides(12)])
    among = candidates(data, minutes(60), has_weights=lambda recipe: True)
    assert not any(candidate.tile for candidate in among)


def test_no_large_network_is_trained_on_processors_within_an_hour():
    data = stats(sides=[sides(5)], one_shape=False)
    assert chosen(data, minutes(60)).recipe == SMALL
    assert chosen(data, minutes(60, ACCELERATOR), ()).recipe == PYRAMID
    many = stats(images=20_000, sides=[sides(60)])
    assert chosen(many, minutes(60, ACCELERATOR), ()).recipe == LARGE


@pytest.mark.parametrize(
    ("weights", "recipe"), [((SMALL, SSD), SMALL), ((SSD,), SSD), ((), SMALL), ((SMALL,), SMALL)]
)
def test_weights_on_the_machine_decide_between_small_recipes(weights, recipe):
    assert chosen(stats(sides=[sides(60)]), minutes(15), weights).recipe == recipe


def test_a_detector_to_begin_from_is_chosen_where_its_weights_are():
    data = stats(sides=[sides(60)])
    for length in (3, 15):
        assert chosen(data, minutes(length), (NANO, SMALL)).recipe == NANO
    among = candidates(data, minutes(15), has_weights=lambda recipe: recipe == SMALL)
    assert NANO not in {candidate.recipe for candidate in among}


def test_a_detector_gets_no_input_that_its_boxes_do_not_reach_across():
    panorama = stats(height=400, width=1200, sides=[sides(60)])
    among = candidates(panorama, minutes(15), has_weights=lambda recipe: True)
    longest = {
        recipe: max(max(each.size) for each in among if each.recipe == recipe)
        for recipe in (NANO, SMALL)
    }
    assert longest[NANO] <= 640 < longest[SMALL]


def test_a_trial_of_a_few_steps_takes_the_cheapest():
    few = chosen(stats(sides=[sides(60)]), minutes(15, steps=4))
    assert few.size == (288, 384)
    assert few.forecast == 0


def test_a_set_without_boxes_has_a_candidate():
    empty = chosen(stats(sides=[[]]), minutes(15))
    assert empty.recipe == SMALL
    assert "100% of box" in empty.describe()


def test_the_input_of_an_override_leaves_one_candidate_for_each_recipe():
    among = candidates(stats(sides=[sides(60)]), minutes(15), has_weights=lambda recipe: True)
    alone = recipes_alone(among)
    assert [candidate.recipe for candidate in alone] == [NANO, SMALL, PYRAMID]
    assert not any(candidate.changes for candidate in alone)
    assert reason(choose(alone), alone)


def test_operations_are_counted_and_follow_the_pixels():
    # 1,691,104,000 multiply-adds and additions of 320 x 320: performance.md has 1.69 GFLOP.
    model = read_config(SMALL).experiment.model
    half = {"model.resizer.height": 160, "model.resizer.width": 320}
    operations = forward_operations(model)
    assert operations == pytest.approx(1.691e9, rel=1e-3)
    assert 2 * forward_operations(read_config(SMALL, half).experiment.model) == operations


def test_the_speed_of_processors_is_measured_and_of_a_machine_elsewhere_assumed():
    assert 1e8 < measured_speed(Machine("here", "cpu", 2**34, 2**34)) < 1e14
    assert measured_speed(Machine("v6e", "tpu", 2**35, 2**35, 4)) == 5e12
