from stillbox.checkpoints.import_report import ImportReport, Mismatch


def test_the_report_counts_and_lists_arrays():
    report = ImportReport(
        path="model.ckpt",
        loaded={"backbone.conv_0.kernel": "Conv2d_0/weights"},
        skipped={"Conv2d_0/weights/Momentum": "optimizer slot", "global_step": "training counter"},
        missing={f"neck.{n}": f"Extra_{n}/weights" for n in range(7)},
        mismatched=(Mismatch("head.map_0.box.bias", "Box/biases", (12,), (24,)),),
        notes=("look here",),
    )
    # 1 loaded, 7 missing and 1 of another shape are 9.
    assert report.summary() == (
        "1 of 9 wanted arrays loaded, 7 missing, 1 of another shape, 2 not wanted"
    )
    assert report.loaded_share == 1 / 9
    assert report.render().splitlines() == [
        "weights from model.ckpt",
        "  loaded          1 of 9 wanted arrays",
        "  missing         7",
        "                    Extra_0/weights",
        "                    Extra_1/weights",
        "                    Extra_2/weights",
        "                    Extra_3/weights",
        "                    Extra_4/weights",
        "                    and 2 more",
        "  other shape     1",
        "                    Box/biases: [24] in the file, [12] wanted",
        "  not wanted      2",
        "                       1 optimizer slot",
        "                       1 training counter",
        "  note: look here",
    ]


def test_nothing_wanted_is_no_division_by_zero():
    assert ImportReport("a.npz", {}, {}, {}, ()).loaded_share == 0
