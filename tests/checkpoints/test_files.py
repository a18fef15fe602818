from stillbox.checkpoints.files import list_folder, remove_folder, replace_durably


def test_replacing_leaves_nothing_but_the_file(tmp_path):
    replace_durably(tmp_path / "a.yaml", "old")
    replace_durably(tmp_path / "a.yaml", "new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.yaml"]
    assert (tmp_path / "a.yaml").read_text() == "new"


def test_removing_takes_everything_in_the_folder(tmp_path):
    (tmp_path / "7" / "inner").mkdir(parents=True)
    (tmp_path / "7" / "inner" / "file").touch()
    remove_folder(tmp_path / "7")
    assert list(tmp_path.iterdir()) == []


def test_a_long_folder_is_listed_in_part(tmp_path):
    for number in range(5):
        (tmp_path / f"file{number}").touch()
    (tmp_path / "a folder").mkdir()
    assert list_folder(tmp_path, limit=2) == "a folder/, file0 and 4 more"
