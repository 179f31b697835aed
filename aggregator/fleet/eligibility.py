"""Rules that select devices: a small language over their records, for cohorts, campaigns and lists.

Pure. No part of a rule is evaluated as code.

::

    rule  = term { "or" term }
    term  = factor { "and" factor }
    factor = "not" factor | "(" rule ")" | "known" FIELD | FIELD "has" WORD | FIELD COMPARISON VALUE
    | FIELD

A comparison is one of ``= != < <= > >=``. A word or value may be quoted. `FIELDS` lists the fields
with their kinds: numbers; yes or no, which stand alone; texts; versions, which are compared part by
part; sets, for ``has``. ``windows.3`` is the number of windows of class 3.

A test of an unreported fact is neither true nor false, and neither is its opposite: ``not metered``
does not select a device that does not know if its traffic is paid for. A rule selects the devices
for which it is true. ``known FIELD`` is always true or false.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple, cast

from aggregator.fleet.records import Campaign, Device
from wire.errors import ConfigError
from wire.messages import PROTOCOL_VERSION, VERSION

Kind = Literal["number", "yes or no", "text", "version", "set"]
Value = float | bool | str | tuple[str, ...] | None
Campaigns = Mapping[str, Campaign]
"""Campaigns of a fleet, by name."""
Read = Callable[[str, Device, Campaigns], Value]
Tree = tuple[Any, ...]
"""Part of a rule.

It has a kind (``and``, ``or``, ``not``, ``known``, ``has``, ``is``, ``of version`` or a
comparison's sign), then its parts, or the reader of its field and the value to compare with.
"""

LONGEST = 2000
"""Maximum number of characters of a rule."""
DEEPEST = 50
"""Maximum depth of nested parentheses and ``not``."""


class RuleField(NamedTuple):
    """Property of a device that rules may name."""

    kind: Kind
    read: Read
    about: str


def _fact(name: str) -> Read:
    return lambda _id, device, _all: getattr(device.facts, name) if device.facts else None


def _metered(_id: str, device: Device, _all: Campaigns) -> Value:
    unmetered = device.facts.unmetered if device.facts is not None else None
    return None if unmetered is None else not unmetered


def _free_mb(_id: str, device: Device, _all: Campaigns) -> Value:
    free_bytes = device.facts.free_bytes if device.facts is not None else None
    return None if free_bytes is None else free_bytes / 2**20


def _group(device_id: str, device: Device, campaigns: Campaigns) -> Value:
    campaign = campaigns.get(device.campaign)
    member = campaign.members.get(device_id) if campaign is not None else None
    return (member.current_group or None) if member is not None else None


FIELDS: dict[str, RuleField] = {
    "id": RuleField("text", lambda device_id, _, __: device_id, "the device's id"),
    "tags": RuleField("set", lambda _, device, __: device.tags, "what `shoal devices tag` gave it"),
    "battery": RuleField("number", _fact("battery_percent"), "percent"),
    "charging": RuleField("yes or no", _fact("charging"), "it runs on outside power"),
    "metered": RuleField("yes or no", _metered, "its traffic is paid for"),
    "idle": RuleField("yes or no", _fact("idle"), "nothing else wants its processor"),
    "temperature": RuleField("number", _fact("temperature_c"), "degrees Celsius"),
    "free_mb": RuleField("number", _free_mb, "free storage, in MiB"),
    "windows": RuleField("number", _fact("num_train"), "training windows"),
    "test_windows": RuleField("number", _fact("num_test"), "windows to test on"),
    "version": RuleField("version", _fact("client"), "the client's version"),
    "protocol": RuleField("version", _fact("protocol"), "the protocol that the client speaks"),
    "app": RuleField("version", _fact("app"), "the version of the app that the client is part of"),
    "runtime": RuleField("text", _fact("runtime"), "what runs its graphs"),
    "hardware": RuleField("text", _fact("hardware"), "what the board or phone is"),
    "bundle": RuleField("text", _fact("bundle"), "the digest of the bundle that it has loaded"),
    "online": RuleField("yes or no", lambda _, device, __: device.online, "it is connected"),
    "banned": RuleField(
        "yes or no", lambda _, device, __: device.ban is not None, "`shoal devices ban`"
    ),
    "withdrawn": RuleField(
        "yes or no", lambda _, device, __: device.withdrawn_s > 0, "its owner agrees no longer"
    ),
    "group": RuleField("text", _group, "its group in the campaign that it last worked for"),
    "campaign": RuleField(
        "text",
        lambda _, device, __: device.campaign or None,
        "the campaign that it last worked for",
    ),
    "declines": RuleField(
        "number", lambda _, device, __: device.declines, "assignments that it has declined"
    ),
    "updates": RuleField("number", lambda _, device, __: device.updates, "its accepted updates"),
    "train_s": RuleField(
        "number",
        lambda _, device, __: device.train_s if device.updates else None,
        "seconds of its last training",
    ),
    "release": RuleField(
        "number", lambda _, device, __: device.release_in_use, "the release that it uses; 0: none"
    ),
}
"""All fields by name.

`tests/aggregator/test_eligibility.py` compares the table in docs/who-trains.md with them.
"""

_TOKEN = re.compile(
    r"""\s*(?:(?P<sign><=|>=|!=|=|<|>|\(|\))|(?P<quoted>"[^"]*"|'[^']*')"""
    r"""|(?P<word>[^\s()<>=!"']+))"""
)
_WORDS = ("and", "or", "not", "has", "known")


class Rule(NamedTuple):
    """Parsed rule. ``str`` returns its text."""

    text: str
    tree: Tree
    conditions: tuple[str, ...] = ()
    """Texts that the rule joins with "and"; the whole rule if it joins none."""

    def __str__(self) -> str:
        return self.text

    def unmet(self, device_id: str, device: Device, campaigns: Campaigns) -> str:
        """Return the first condition that a device does not meet; empty if the rule is true."""
        return next(
            (each for each in self.conditions if not _means(each, device_id, device, campaigns)), ""
        )

    def value(self, device_id: str, device: Device, campaigns: Campaigns) -> str:
        """Return a device's value of the field that the rule compares, for people.

        It is empty if the rule is not a single comparison.
        """
        if self.tree[0] not in (*_COMPARE, "of version", "has"):
            return ""
        value = self.tree[1](device_id, device, campaigns)
        if isinstance(value, tuple):
            return ", ".join(value) or "none"
        if value in (None, ""):
            return "not reported"
        return f"{value:.6g}" if isinstance(value, float | int) else str(value)

    def means(self, device_id: str, device: Device, campaigns: Campaigns) -> bool:
        """Return True if the rule is true of a device. `campaigns`: the campaigns of its fleet."""
        return holds(self.tree, device_id, device, campaigns) is True


EVERYBODY = Rule("", ("is", lambda _id, _device, _all: True))


@lru_cache(256)
def read_rule(text: str) -> Rule:
    """Return the rule of a text. An empty text selects every device.

    Raises:
        ConfigError: the text is not a rule; the error has the place, and what is expected there.
    """
    if not text.strip():
        return EVERYBODY
    if len(text) > LONGEST:
        raise ConfigError(f"where must have at most {LONGEST} characters, got {len(text)}")
    parser = _Parser(text)
    return Rule(text.strip(), parser.rule(), parser.conditions())


def _means(text: str, device_id: str, device: Device, campaigns: Campaigns) -> bool:
    return read_rule(text).means(device_id, device, campaigns)


class _Parser:
    """Recursive-descent parser of a rule."""

    def __init__(self, text: str) -> None:
        self._text, self._tokens, self._at = text, list[tuple[str, str, int]](), 0
        place = 0
        while text[place:].strip():
            match = _TOKEN.match(text, place)
            if match is None or match.lastgroup is None:
                raise self._error(f"unexpected {text[place:].strip()[0]!r}", place)
            self._tokens.append(
                (match.lastgroup, match[match.lastgroup], match.start(match.lastgroup))
            )
            place = match.end()

    def rule(self) -> Tree:
        test = self._joined("or", 0)
        if self._at < len(self._tokens):
            raise self._expected("'and', 'or' or the end")
        return test

    def conditions(self) -> tuple[str, ...]:
        """Return the texts between the "and" outside of parentheses, if no "or" is there."""
        depth, texts, begin = 0, list[str](), 0
        for kind, value, place in self._tokens:
            depth += (value == "(") - (value == ")") if kind == "sign" else 0
            if kind == "word" and not depth and value in ("and", "or"):
                if value == "or":
                    return (self._text.strip(),)
                texts.append(self._text[begin:place].strip())
                begin = place + len(value)
        return (*texts, self._text[begin:].strip())

    def _joined(self, word: str, depth: int) -> Tree:
        """Return terms joined by "or", or a single term: factors joined by "and"."""
        tests = list[Tree]()
        while not tests or self._takes(word):
            tests.append(self._joined("and", depth) if word == "or" else self._factor(depth))
        return tests[0] if len(tests) == 1 else (word, *tests)

    def _factor(self, depth: int) -> Tree:
        if depth > DEEPEST:
            raise self._error(
                f"parentheses and 'not' are nested more than {DEEPEST} deep", self._place()
            )
        if self._takes("not"):
            return ("not", self._factor(depth + 1))
        if self._takes("("):
            test = self._joined("or", depth + 1)
            if not self._takes(")"):
                raise self._expected("')'")
            return test
        if self._takes("known"):
            _, field = self._field()
            return ("known", field.read)
        return self._test()

    def _test(self) -> Tree:
        name, field = self._field()
        if self._takes("has"):
            if field.kind != "set":
                raise self._error(
                    f"'has' after {name} ({field.kind}): expected a set, such as tags",
                    self._place(-1),
                )
            return ("has", field.read, self._value("a word"))
        kind, sign, place = self._token()
        if kind == "sign" and sign not in ("(", ")"):
            self._at += 1
            if field.kind in ("set", "yes or no") or (
                field.kind == "text" and sign not in ("=", "!=")
            ):
                how = {
                    "set": f"'{name} has WORD'",
                    "yes or no": f"'{name}' or 'not {name}' alone",
                }.get(field.kind, "= or !=")
                raise self._error(f"{sign!r} after {name} ({field.kind}): expected {how}", place)
            place, value = self._place(), self._value("a value")
            if field.kind == "text":
                return (sign, field.read, value)
            if field.kind == "version":
                if not version_of(value):
                    error = f"{value!r} after {name}: expected a version, such as 1.2"
                    raise self._error(error, place)
                return ("of version", field.read, sign, version_of(value))
            try:
                number = float(value)
            except ValueError:
                number = math.nan
            if not math.isfinite(number):
                raise self._error(f"{value!r} after {name}: expected a number", place)
            return (sign, field.read, number)
        if field.kind != "yes or no":
            raise self._expected("'has'" if field.kind == "set" else "a comparison")
        return ("is", field.read)

    def _field(self) -> tuple[str, RuleField]:
        kind, name, place = self._token()
        if kind != "word" or name in _WORDS:
            raise self._expected("a field, 'not', 'known' or '('")
        self._at += 1
        if (match := re.fullmatch(r"windows\.([0-9]{1,4})", name)) is not None:
            return name, RuleField("number", _windows_of(int(match[1])), "")
        if name not in FIELDS:
            raise self._error(
                f"no field {name!r}: expected one of {', '.join(FIELDS)}, windows.CLASS", place
            )
        return name, FIELDS[name]

    def _value(self, what: str) -> str:
        kind, value, _ = self._token()
        if kind not in ("word", "quoted") or value in _WORDS:
            raise self._expected(what)
        self._at += 1
        return value[1:-1] if kind == "quoted" else value

    def _token(self) -> tuple[str, str, int]:
        return (
            self._tokens[self._at] if self._at < len(self._tokens) else ("end", "", len(self._text))
        )

    def _takes(self, word: str) -> bool:
        kind, value, _ = self._token()
        is_match = kind in ("word", "sign") and value == word
        self._at += is_match
        return is_match

    def _place(self, back: int = 0) -> int:
        at = self._at + back
        return self._tokens[at][2] if at < len(self._tokens) else len(self._text)

    def _expected(self, what: str) -> ConfigError:
        kind, value, place = self._token()
        return self._error(
            f"{'end of the rule' if kind == 'end' else f'{value!r}'}: expected {what}", place
        )

    def _error(self, problem: str, place: int) -> ConfigError:
        return ConfigError(f"where {self._text!r}, at character {place + 1}: {problem}")


def holds(tree: Tree, device_id: str, device: Device, campaigns: Campaigns) -> bool | None:
    """Return True if a part of a rule is true for a device, and False if it is false.

    Return None if the device does not report a fact on which the part depends.
    """
    kind, first = tree[0], tree[1]
    if kind == "and" or kind == "or":
        decisive, has_all_facts = kind == "or", True
        for part in tree[1:]:
            truth = holds(part, device_id, device, campaigns)
            if truth is decisive:
                return decisive
            has_all_facts = has_all_facts and truth is not None
        return not decisive if has_all_facts else None
    if kind == "not":
        truth = holds(first, device_id, device, campaigns)
        return None if truth is None else not truth
    value = first(device_id, device, campaigns)
    if kind == "is":
        return cast(bool | None, value)
    if kind == "known":
        return value not in (None, "")
    if kind == "has":
        return tree[2] in value if isinstance(value, tuple) else None
    if kind == "of version":
        value = version_of(str(value or ""))
        return _COMPARE[tree[2]](value, tree[3]) if value else None
    return None if value is None or value == "" else _COMPARE[kind](value, tree[2])


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _windows_of(number: int) -> Read:
    def read(_id: str, device: Device, _all: Campaigns) -> float | None:
        counts = device.facts.classes if device.facts is not None else None
        return None if counts is None else float(counts[number]) if number < len(counts) else 0.0

    return read


def outdated(client: str, app: str = "", protocol: str = "") -> str:
    """Return the advice to update if a device's client is older than this service, else empty.

    `protocol`: version of the protocol that the client speaks; empty if it is not known.
    """
    if () < version_of(client) < version_of(VERSION):
        text = f"{client} is older than this service, {VERSION}"
    elif () < version_of(protocol) < version_of(PROTOCOL_VERSION):
        text = f"{client} speaks protocol {protocol}, and this service {PROTOCOL_VERSION}"
    else:
        return ""
    return f"{text}: update {f'the app, which is {app},' if app else 'the client'} of the device"


def version_of(text: str) -> tuple[int, ...]:
    """Return the numbers of the first version in a text, without trailing zeros.

    So 1.2 and 1.2.0 are equal. The result is empty if the text has no version.
    """
    match = re.search(r"[0-9]{1,9}(\.[0-9]{1,9})*", text)
    numbers = [int(part) for part in match[0].split(".")] if match else []
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
