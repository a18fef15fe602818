from stillbox.inputs.randomness import permutation, sample_generator

ORDER_0, ORDER_1 = [5, 3, 7, 2, 4, 1, 0, 6], [2, 7, 6, 5, 1, 3, 0, 4]


def test_an_order_has_every_record_once_and_differs_by_epoch_and_seed():
    orders = [permutation(seed, epoch, 100) for seed in (0, 1) for epoch in (0, 1)]
    assert all(sorted(order) == list(range(100)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    assert (permutation(7, 3, 100) == permutation(7, 3, 100)).all()


def test_an_order_outlives_an_upgrade_of_numpy():
    # Only raw words are used, which numpy promises not to change; these were written down once.
    assert permutation(0, 0, 8).tolist() == ORDER_0
    assert permutation(-1, 5, 8).tolist() == ORDER_1


def test_records_draw_different_numbers_in_every_epoch():
    drawn = {
        tuple(sample_generator(seed, epoch, record).random(2))
        for seed in (0, 1)
        for epoch in (0, 1)
        for record in (0, 1)
    }
    assert len(drawn) == 8
    assert sample_generator(-5, 1, 2).random() == sample_generator(-5, 1, 2).random()
