"""What the doctor notes of a folder without calling it wrong."""

import os
import time
from pathlib import Path

from aggregator.leadership.identity import own_secret
from aggregator.maintenance.examine import examine
from aggregator.operator.desk import ORDERS, submit
from aggregator.service.orders import Hold


def test_an_order_that_no_service_took_is_noted(tmp_path: Path) -> None:
    own_secret(tmp_path / "secret.key")
    assert "when one starts" in submit(tmp_path, Hold("run-1"))
    (order,) = (tmp_path / ORDERS).iterdir()
    where = f"{ORDERS}/{order.name}"
    assert where not in {finding.where for finding in examine(tmp_path)}, (
        "a service may take it yet"
    )
    os.utime(order, (0, time.time() - 600))
    (noted,) = [finding for finding in examine(tmp_path) if finding.where == where]
    assert noted.verdict == "note"
    assert noted.text.startswith(
        "an order of 600 s ago, which the next service that starts carries out: "
    )
    assert "campaign-pause" in noted.text
