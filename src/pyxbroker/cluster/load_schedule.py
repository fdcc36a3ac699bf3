"""The intervals of the load balancer: which of its work is due."""

from __future__ import annotations

from enum import Enum

from pyxbroker.settings.sections.load_balancing import LoadBalancing

MS_PER_MINUTE = 60_000


class Work(Enum):
    """Work that every broker or the leader repeats."""

    MEASURE = "measure the use of the host"
    REPORT = "write the load report if it is due"
    SHED = "leader: move bundles"
    STORE = "leader: store the average loads"


def interval_ms(work: Work, config: LoadBalancing) -> int:
    """Return the time between two repetitions."""
    if work is Work.REPORT:
        return config.loadBalancerReportUpdateMinIntervalMillis
    minutes = {
        Work.MEASURE: config.loadBalancerHostUsageCheckIntervalMinutes,
        Work.SHED: config.loadBalancerSheddingIntervalMinutes,
        Work.STORE: config.loadBalancerResourceQuotaUpdateIntervalMinutes,
    }
    return minutes[work] * MS_PER_MINUTE


class LoadSchedule:
    """The times when work was done last, in ms of a clock that is not set back."""

    def __init__(self, now_ms: int) -> None:
        self._done_ms = dict.fromkeys(Work, now_ms)

    def take_due(self, now_ms: int, config: LoadBalancing) -> list[Work]:
        """Return the work that is due, and count it as done."""
        due = [
            work
            for work, done_ms in self._done_ms.items()
            if now_ms - done_ms >= interval_ms(work, config)
        ]
        self._done_ms.update(dict.fromkeys(due, now_ms))
        return due
