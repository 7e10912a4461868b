import json
from pathlib import Path

import pytest

from rlvr import checkpoint
from rlvr.errors import CheckpointError

STATE = {"step": 3, "mean_reward": None, "sampler": {"epoch": 1}}


def write(folder: Path) -> None:
    (folder / "model").mkdir()
    (folder / "model/weights.bin").write_bytes(bytes(range(256)) * 4)
    (folder / "optimizer.pt").write_bytes(b"moments")


def save(folder: Path, step: int = 3, keep: int = 2) -> Path:
    return checkpoint.save(folder, step, write, STATE, keep)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_saved_checkpoint_is_whole(tmp_path: Path) -> None:
    folder = tmp_path / "run/checkpoints"
    path = save(folder)
    assert path == folder / "step-000003"
    assert checkpoint.latest(folder) == path
    assert checkpoint.verify(path) == STATE
    assert (path / "model/weights.bin").read_bytes() == bytes(range(256)) * 4
    assert set(json.loads((path / "manifest.json").read_text())) == {"model/weights.bin", "optimizer.pt", "state.json"}


def test_no_checkpoint_yet(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path / "missing") is None
    assert checkpoint.latest(tmp_path) is None


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 10, 1_000_000):
        save(tmp_path, step)
    assert names(tmp_path) == ["step-000010", "step-1000000"]
    assert checkpoint.latest(tmp_path) == tmp_path / "step-1000000"


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path)
    path = checkpoint.save(tmp_path, 3, lambda folder: None, {"step": 4}, 2)
    assert names(path) == ["manifest.json", "state.json"]
    assert checkpoint.verify(path) == {"step": 4}


@pytest.mark.parametrize("name", ["model/weights.bin", "optimizer.pt", "state.json"])
@pytest.mark.parametrize("place", [0, -1])
def test_a_flipped_byte_is_found_and_its_file_named(tmp_path: Path, name: str, place: int) -> None:
    path = save(tmp_path)
    content = bytearray((path / name).read_bytes())
    content[place] ^= 1
    (path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"step-000003/{name} is damaged"):
        checkpoint.verify(path)


@pytest.mark.parametrize("name", ["model/weights.bin", "state.json", "manifest.json"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    path = save(tmp_path)
    (path / name).unlink()
    with pytest.raises(CheckpointError, match=rf"step-000003/{name} is missing"):
        checkpoint.verify(path)


def test_a_damaged_manifest_is_named(tmp_path: Path) -> None:
    path = save(tmp_path)
    (path / "manifest.json").write_bytes(b"\xff" + (path / "manifest.json").read_bytes())
    with pytest.raises(CheckpointError, match=r"manifest\.json is missing or damaged"):
        checkpoint.verify(path)


def test_a_full_disk_leaves_the_earlier_checkpoints_only(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        write(folder)
        (folder / "more.bin").symlink_to("/dev/full")
        (folder / "more.bin").write_bytes(b"x")

    earlier = save(tmp_path, 2, keep=1)
    with pytest.raises(CheckpointError, match=r"step-000003 was not written, the disk is full"):
        checkpoint.save(tmp_path, 3, fill, STATE, keep=1)
    assert names(tmp_path) == ["step-000002"]
    assert checkpoint.verify(earlier) == STATE


def test_a_folder_that_cannot_be_made_is_a_users_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"was not written: Not a directory.*output="):
        save(tmp_path / "file/checkpoints")


def test_an_error_of_the_writer_itself_is_not_blamed_on_the_disk(tmp_path: Path) -> None:
    def broken(folder: Path) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        checkpoint.save(tmp_path, 3, broken, STATE, 2)
    assert names(tmp_path) == []


def test_a_full_disk_reported_by_a_foreign_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def foreign(folder: Path) -> None:
        raise RuntimeError("stream writer: unexpected pos 64 vs 0")

    monkeypatch.setattr("rlvr.checkpoint.ALMOST_FULL", 2**62)
    with pytest.raises(CheckpointError, match="the disk is full"):
        checkpoint.save(tmp_path, 3, foreign, STATE, 2)
    assert names(tmp_path) == []


def test_leftovers_are_neither_found_nor_kept(tmp_path: Path) -> None:
    whole = save(tmp_path, 1)
    (tmp_path / "step-000002.tmp").mkdir()
    (tmp_path / "step-000002.tmp/weights.bin").write_bytes(b"half")
    assert checkpoint.latest(tmp_path) == whole
    checkpoint.remove_leftovers(tmp_path)
    assert names(tmp_path) == ["step-000001"]


def test_an_interrupt_while_writing_leaves_nothing_behind(tmp_path: Path) -> None:
    def interrupted(folder: Path) -> None:
        write(folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(tmp_path, 3, interrupted, STATE, 2)
    assert names(tmp_path) == []


def test_identity() -> None:
    one = {"seed": 0, "objective": {"trust": {"kind": "clip", "high": 0.28}}, "model": {"path": "a"}}
    checkpoint.check_identity(one, json.loads(json.dumps(one)))
    other = {"seed": 0, "objective": {"trust": {"kind": "weight_clip", "high": 0.28}}, "data": {"path": "b"}}
    with pytest.raises(CheckpointError) as caught:
        checkpoint.check_identity(one, other)
    message = str(caught.value)
    assert "objective.trust.kind: 'clip' there, 'weight_clip' here" in message
    assert "model.path: 'a' there, None here" in message
    assert "data.path: None there, 'b' here" in message
    assert "seed" not in message
    assert "high" not in message
