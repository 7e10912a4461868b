"""The options: every key has a meaning."""

import pytest

from rlvr.config import TrainConfig
from rlvr.validation import flat_fields


@pytest.mark.parametrize("row", flat_fields(TrainConfig), ids=lambda row: row[0])
def test_every_key_has_its_meaning_under_it(row):
    key, _, _, meaning = row
    assert meaning.endswith("."), key
