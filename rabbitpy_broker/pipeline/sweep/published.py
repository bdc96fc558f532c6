"""What the paper reports: the send rate in its two modes, divided by the send rate before, by number of queues.

"RabbitMQ 小消息确认机制优化", Computer Systems & Applications 27(3), 2018. `consumer-ack` is its section 3.1,
`consumer-ack-light` its 3.2. It gives one and two queues as multiples of the old rate and the others in per cent of it.
"""

from __future__ import annotations

DRIVER_NAMES = {"load": "perf.load", "perftest": "PerfTest"}  # of our measurements
RATIOS = {
    "consumer-ack": {1: 3.08, 2: 2.01, 15: 1.409, 30: 1.403},
    "consumer-ack-light": {1: 3.48, 2: 2.16, 15: 1.526, 30: 1.534},
}
# over its queue counts above three, in per cent
MEAN_IMPROVEMENT = {"consumer-ack": 42.9, "consumer-ack-light": 56.5}
MEAN_ABOVE_QUEUES = 3


def percent(ratio: float) -> float:
    """How much more than 1 it is."""
    return 100 * (ratio - 1)
