"""No mechanism: updates are used as they come."""

from typing import ClassVar

from algorithms.privacy.base import DefaultPrivacy


class NoPrivacy(DefaultPrivacy):
    """Gives no guarantee."""

    name: ClassVar[str] = "no-privacy"
    citation: ClassVar[str] = ""
    protects: ClassVar[bool] = False
