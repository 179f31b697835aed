"""Learning rate schedules: the factor of the learning rate in each round of training.

The server computes a rate for every round and sends it in the plan, as the hyper-parameter ``lr``;
devices do not know the schedule. Legend: t the number of completed rounds of training, w the rounds
of warm-up, s = t - w, T the rounds of the campaign.

    t < w        (t + 1) / (w + 1): P. Goyal et al., Accurate, Large Minibatch SGD, arXiv
                 1706.02677, 2017, 2.2
    constant     1
    step         factor ^ floor(s / every)
    exponential  factor ^ s
    cosine       final + (1 - final) (1 + cos(pi s / (T - w))) / 2: I. Loshchilov, F. Hutter, SGDR,
                 ICLR 2017, Eq. 5
"""

import math
from collections.abc import Mapping
from functools import cache

from algorithms.spec import Choice, Option, Options, read
from wire.errors import ConfigError
from wire.messages import Train, Verb

_COMMON = {"warmup": Option(0, "rounds in which the rate rises to its full height", low=0)}
_FACTOR = "what the rate is multiplied by"
SCHEDULES: Mapping[str, Options] = {
    "constant": _COMMON,
    "step": {
        "every": Option(10, "rounds between two steps", low=1),
        "factor": Option(0.5, f"{_FACTOR} at each", above=0, high=1),
        **_COMMON,
    },
    "exponential": {
        "factor": Option(0.95, f"{_FACTOR} after each round", above=0, high=1),
        **_COMMON,
    },
    "cosine": {
        "rounds": Option(
            0,
            "the round after which the rate stays at its last value; 0: as many as the run has",
            low=0,
        ),
        "final": Option(0.0, "the last value, as a share of the full one", low=0, high=1),
        **_COMMON,
    },
}
"""Options of every schedule, by its name."""


@cache
def read_schedule(text: str) -> Choice:
    """Return the schedule of this text; see `SCHEDULES`.

    Raises:
        ConfigError: no such schedule or option, or an invalid value.
    """
    return read(text, SCHEDULES, "learning rate schedule")


def check_schedule(text: str, rounds: int) -> None:
    """Check the schedule of a campaign of `rounds` rounds; an empty text means none.

    Raises:
        ConfigError: the text is invalid, or the warm-up is not shorter than the schedule.
    """
    if not text:
        return
    schedule = read_schedule(text)
    last = schedule.options.get("rounds") or rounds
    if schedule.options["warmup"] >= last:
        raise ConfigError(
            f"learning rate schedule {text!r}: warmup must be below the number of rounds, {last}, "
            f"got {schedule.options['warmup']}"
        )


def share_of(schedule: Choice, trained: int, rounds: int) -> float:
    """Return the factor of the learning rate, from 0 to 1, after `trained` rounds of training.

    `rounds` is the number of rounds of the campaign.
    """
    options = schedule.options
    warmup = options["warmup"]
    if trained < warmup:
        return float((trained + 1) / (warmup + 1))
    since = trained - warmup
    if schedule.name == "step":
        return float(options["factor"] ** (since // options["every"]))
    if schedule.name == "exponential":
        return float(options["factor"] ** since)
    if schedule.name == "cosine":
        length = max((options["rounds"] or rounds) - warmup, 1)
        way = min(since / length, 1.0)
        return float(options["final"] + (1 - options["final"]) * (1 + math.cos(math.pi * way)) / 2)
    return 1.0


def scheduled(
    hyper: Mapping[str, float], schedule: str, trained: int, rounds: int
) -> Mapping[str, float]:
    """Return the hyper-parameters after `trained` of `rounds` rounds.

    Without a schedule they are unchanged.
    """
    return (
        {**hyper, "lr": hyper["lr"] * share_of(read_schedule(schedule), trained, rounds)}
        if schedule
        else hyper
    )


def rate_in(verbs: tuple[Verb, ...]) -> float | None:
    """Return the learning rate in these verbs, or None if they contain none."""
    return next(
        (verb.hyper["lr"] for verb in verbs if isinstance(verb, Train) and "lr" in verb.hyper), None
    )
