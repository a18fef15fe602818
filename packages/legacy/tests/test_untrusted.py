"""Files of others are opened by stillbox's readers alone."""

import stillbox_legacy
from tests.test_untrusted import images_opened_by, readers_of

# Modules that read files of the package.
TRUSTED = {"model_garden/keys.py", "tutorials/protos.py"}


def test_modules_open_no_file_but_their_own():
    assert readers_of(stillbox_legacy) == TRUSTED
    assert images_opened_by(stillbox_legacy) == []
