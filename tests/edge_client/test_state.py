"""The device state contract over memory and a folder."""

from pathlib import Path

import pytest

from edge_client.adapters.state import FolderState, MemoryState
from edge_client.core.ports import DeviceState
from tests.contracts.store import DeviceStateContract
from wire.errors import ConfigError


class TestMemoryState(DeviceStateContract):
    @pytest.fixture
    def state(self) -> DeviceState:
        return MemoryState()


class TestFolderState(DeviceStateContract):
    @pytest.fixture
    def state(self, tmp_path: Path) -> DeviceState:
        self.folder = tmp_path / "state"
        return FolderState(self.folder)

    def again(self, state: DeviceState) -> DeviceState:
        return FolderState(self.folder)

    def test_a_damaged_session_is_named(self, state: DeviceState) -> None:
        (self.folder / "session.json").write_text("{")
        with pytest.raises(ConfigError, match=r"session\.json"):
            state.load()
