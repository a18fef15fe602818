import numpy as np

from stillbox.experiment import schema
from tests.inputs.augment.samples import augmented, many, of_pixels, sample


def test_every_value_has_a_separate_factor():
    before = of_pixels([100] * 200, [250] * 200)
    image = augmented(schema.RandomPixelValueScale(), before).image
    factors = image[0] / 100
    assert factors.min() >= 0.9
    assert factors.max() < 1.1
    assert factors.std() > 0.05  # uniform: 0.2 / sqrt(12) = 0.058
    assert len(np.unique(factors)) > 550
    assert image[1].max() == 255
    assert image.dtype == np.float32


def test_gamma_by_hand():
    # (51 / 255)^2 = .04, times 255 = 10.2; half of it with a gain of .5; 255 stays where it is.
    image = augmented(schema.AdjustGamma(gamma=2.0), of_pixels([0, 51, 255])).image
    np.testing.assert_allclose(image[0, :, 0], [0, 10.2, 255], rtol=1e-5)
    image = augmented(schema.AdjustGamma(gamma=2.0, gain=0.5), of_pixels([0, 51, 255])).image
    np.testing.assert_allclose(image[0, :, 0], [0, 5.1, 127.5], rtol=1e-5)


def test_gamma_is_not_clipped_above_and_takes_negative_values_for_0():
    before = of_pixels([-7, 255], dtype=np.float32)
    image = augmented(schema.AdjustGamma(gamma=0.5, gain=2.0), before).image
    assert image[0, :, 0].tolist() == [0, 510]


def test_normalizing_maps_one_range_to_another():
    settings = schema.NormalizeImage(target_min=-1.0, target_max=1.0)
    image = augmented(settings, of_pixels([0, 127.5, 255], dtype=np.float32)).image
    np.testing.assert_allclose(image[0, :, 0], [-1, 0, 1], atol=1e-6)


def test_means_are_subtracted_from_their_channels():
    settings = schema.SubtractChannelMean(means=(1.0, 2.0, 300.0))
    image = augmented(settings, of_pixels([[10, 20, 30], [0, 0, 0]])).image
    assert image[0].tolist() == [[9, 18, -270], [-1, -2, -300]]


def test_gray_has_the_usual_weights_in_three_channels():
    # .2989 * 10 + .587 * 20 + .114 * 30 = 2.989 + 11.74 + 3.42
    image = augmented(schema.RgbToGray(), of_pixels([[10, 20, 30]])).image
    np.testing.assert_allclose(image[0, 0], [18.149] * 3, rtol=1e-6)


def test_gray_with_a_probability():
    before = sample(size=(2, 2))
    gray = sum(after is not before for after in many(schema.RandomRgbToGray(), before, 2000))
    assert abs(gray - 200) < 60  # a tenth; 4.5 standard deviations
    assert augmented(schema.RandomRgbToGray(probability=0.0), before) is before
